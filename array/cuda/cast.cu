/* array/cuda/cast.cu - conversion between all dtypes, and normal numbers, on the device; by the
 * rules of array/kernels_cast.c. */
#include "array/cuda/random.h"

namespace {
/* Toward zero; what does not fit becomes the nearest that does, NaN becomes 0. */
template <class I> __device__ inline I saturated(double x)
{
    constexpr int value_bits = 8 * (int)sizeof(I) - std::is_signed_v<I>;
    constexpr I high = (I)(~(uint64_t)0 >> (64 - value_bits));
    constexpr I low = std::is_signed_v<I> ? (I)(-high - 1) : 0;
    if (!(x > (double)low))
        return x == x ? low : 0;
    return x >= (double)high ? high : (I)x; /* i64: 2^63, as high is no double */
}

template <class To, class From> __device__ inline To converted(From x)
{
    using Real = gpu::real<From>;
    if constexpr (std::is_integral_v<To> && std::is_floating_point_v<Real>)
        return saturated<To>((double)gpu::to_real(x));
    else if constexpr (sizeof(To) == 2)
        return gpu::from_real<To>((float)gpu::to_real(x));
    else
        return (To)gpu::to_real(x);
}

template <class To> struct convert_op {
    template <class From> __device__ To operator()(From x) const
    {
        return converted<To>(x);
    }
};

/* A thread has the four elements of one block of random words. */
template <class S>
__global__ void __launch_bounds__(gpu::BLOCK)
    normal_kernel(dt_key key, uint64_t first, int64_t n, double std, S *out)
{
    const uint64_t block = first / 4 + (uint64_t)gpu::thread_index();
    const int64_t at = (int64_t)(block * 4 - first);
    if (at >= n)
        return;
    uint32_t word[4];
    gpu::random_words(key, block, word);
    for (int j = 0; j < 4; j++) {
        const int64_t i = at + j;
        if (i >= 0 && i < n)
            out[i] = converted<S>((float)(std * (double)gpu::normal_of(word[j])));
    }
}
} // namespace

void dti_cuda_cast(dt_dtype to, void *dst, dt_dtype from, const void *src, int64_t n)
{
    gpu::for_any(to, [&](auto t) {
        using To = typename decltype(t)::storage;
        gpu::for_any(from, [&](auto f) {
            using From = typename decltype(f)::storage;
            gpu::map_stored(n, convert_op<To>(), (To *)dst, (const From *)src);
        });
    });
}

void dti_cuda_normal(dt_dtype dtype, dt_key key, uint64_t first, int64_t n, double std, void *out)
{
    if (n <= 0)
        return;
    const int64_t nblocks = (int64_t)((first + (uint64_t)n - 1) / 4 - first / 4) + 1;
    gpu::for_any(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        GPU_LAUNCH(normal_kernel<S>, gpu::blocks(nblocks, gpu::BLOCK), gpu::BLOCK, 0,
                   dti_gpu_stream(), key, first, n, std, (S *)out);
    });
}
