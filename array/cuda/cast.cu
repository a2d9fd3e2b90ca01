/* array/cuda/cast.cu - conversion between all dtypes, of a list of arrays in one launch, and normal
 * numbers, on the device; by the rules of array/kernels_cast.c. */
#include "array/cuda/lists.h"
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

enum { CAST_LIST = DT_CASTS }; /* arrays of one launch */

struct cast_array {
    const void *src;
    void *dst;
    int64_t n, wide; /* wide: packs everywhere */
};

struct cast_list {
    gpu::block_map<CAST_LIST> map;
    cast_array array[CAST_LIST];
};

/* A thread's elements, all in accesses of at most 16 bytes. */
template <class To, class From>
constexpr int CAST_PACK = 16 / (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));

template <int N, class To, class From> __device__ inline void cast_pack(const From *src, To *dst)
{
    const gpu::pack<From, N> x = gpu::load<N>(src);
    gpu::pack<To, N> y;
#pragma unroll
    for (int j = 0; j < N; j++)
        y.at[j] = converted<To>(x.at[j]);
    gpu::store(dst, y);
}

template <class To, class From>
__global__ void __launch_bounds__(gpu::BLOCK) cast_kernel(const cast_list list)
{
    constexpr int N = CAST_PACK<To, From>;
    const int at = gpu::array_of(list.map);
    const cast_array &a = list.array[at];
    const int64_t block = blockIdx.x - list.map.first[at];
    const int64_t i = (block * gpu::BLOCK + (int)threadIdx.x) * N;
    const From *src = (const From *)a.src;
    To *dst = (To *)a.dst;
    if (a.wide && i + N <= a.n) {
        cast_pack<N>(src + i, dst + i);
        return;
    }
    for (int64_t j = i; j < i + N && j < a.n; j++)
        cast_pack<1>(src + j, dst + j);
}

template <class To, class From> void start_casts(int count, const dti_cast_args *a)
{
    constexpr int N = CAST_PACK<To, From>;
    cast_list list = {};
    list.map.count = count;
    for (int i = 0; i < count; i++, a++) {
        const bool wide = gpu::fits<N>((const From *)a->src, (To *)a->dst);
        list.array[i] = {a->src, a->dst, a->n, wide};
        list.map.first[i + 1] = list.map.first[i] + gpu::blocks(a->n, (int64_t)gpu::BLOCK * N);
    }
    if (list.map.first[count] > 0)
        GPU_LAUNCH((cast_kernel<To, From>), list.map.first[count], gpu::BLOCK, 0, dti_gpu_stream(),
                   list);
}

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

void dti_cuda_cast(int count, const dti_cast_args *list)
{
    for (int done = 0, n; done < count; done += n) {
        const dti_cast_args *a = &list[done];
        for (n = 1; n < CAST_LIST && done + n < count; n++)
            if (a[n].to != a->to || a[n].from != a->from)
                break;
        gpu::for_any(a->to, [&](auto t) {
            using To = typename decltype(t)::storage;
            gpu::for_any(a->from, [&](auto f) {
                using From = typename decltype(f)::storage;
                start_casts<To, From>(n, a);
            });
        });
    }
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
