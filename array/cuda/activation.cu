/* array/cuda/activation.cu - silu, gelu and swiglu: the formulas of array/kernels_activation.c. */
#include "array/cuda/expo.h"

namespace {
using namespace gpu;

template <class S> struct silu {
    using R = real<S>;
    __device__ R operator()(R x) const
    {
        return x * sigmoid<S>(x);
    }
};

template <class S> struct silu_dx {
    using R = real<S>;
    __device__ R operator()(R x, R dy) const
    {
        const R s = sigmoid<S>(x);
        return dy * s * (1 + x * (1 - s));
    }
};

/* x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) */
constexpr double GELU_SCALE = 1.5957691216057307117597842397375, GELU_CUBIC = 0.044715;

template <class S> struct gelu_tanh {
    using R = real<S>;
    __device__ R operator()(R x) const
    {
        return x * sigmoid<S>(R(GELU_SCALE) * (x + R(GELU_CUBIC) * x * x * x));
    }
};

template <class S> struct gelu_tanh_dx {
    using R = real<S>;
    __device__ R operator()(R x, R dy) const
    {
        /* Beyond 30 the sigmoid is 0 or 1 exactly; the clamp keeps inf * 0 away. */
        const R c = R(GELU_SCALE), cubic = R(GELU_CUBIC);
        const R low = x < -30 ? -30 : x, v = low > 30 ? 30 : low;
        const R s = sigmoid<S>(c * (v + cubic * v * v * v));
        return dy * (s + v * s * (1 - s) * c * (1 + 3 * cubic * v * v));
    }
};

__device__ inline float erf_of(float x)
{
    return erff(x);
}
__device__ inline double erf_of(double x)
{
    return erf(x);
}
constexpr double ROOT_HALF = 0.70710678118654752440, DENSITY = 0.39894228040143267794;

template <class S> struct gelu_erf {
    using R = real<S>;
    __device__ R operator()(R x) const
    {
        return R(0.5) * x * (1 + erf_of(x * R(ROOT_HALF)));
    }
};

template <class S> struct gelu_erf_dx {
    using R = real<S>;
    __device__ R operator()(R x, R dy) const
    {
        const R cdf = R(0.5) * (1 + erf_of(x * R(ROOT_HALF)));
        return dy * (cdf + x * R(DENSITY) * exponential<S>(R(-0.5) * x * x));
    }
};

template <class S> struct silu_times {
    using R = real<S>;
    __device__ R operator()(R gate, R up) const
    {
        return gate * sigmoid<S>(gate) * up;
    }
};

/* dgate, dup: NULL: not wanted; up may be NULL without dgate. */
template <class S, int N>
__global__ void __launch_bounds__(BLOCK)
    swiglu_backward(int64_t n, const S *gate, const S *up, const S *dy, S *dgate, S *dup)
{
    using R = real<S>;
    const int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * N;
    R x[N], u[N], g[N], s[N];
    if (i >= n)
        return;
    load_real<N>(gate + i, x);
    load_real<N>(dy + i, g);
    if (dgate)
        load_real<N>(up + i, u);
#pragma unroll
    for (int j = 0; j < N; j++) {
        s[j] = sigmoid<S>(x[j]);
        u[j] = dgate ? g[j] * u[j] * s[j] * (1 + x[j] * (1 - s[j])) : 0;
        g[j] = x[j] * s[j] * g[j];
    }
    if (dgate)
        store_real(dgate + i, u);
    if (dup)
        store_real(dup + i, g);
}

/* The functor for a kind: f(A<S>(), B<S>(), C<S>()) in the order of dt_activation. */
template <class S, template <class> class Silu, template <class> class Tanh,
          template <class> class Erf, class F>
void for_kind(dt_activation kind, F f)
{
    switch (kind) {
    case DT_ACT_SILU: f(Silu<S>()); break;
    case DT_ACT_GELU_TANH: f(Tanh<S>()); break;
    case DT_ACT_GELU_ERF: f(Erf<S>()); break;
    }
}
} // namespace

void dti_cuda_activation(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, void *y)
{
    for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        for_kind<S, silu, gelu_tanh, gelu_erf>(kind,
                                               [&](auto f) { map(n, f, (S *)y, (const S *)x); });
    });
}

void dti_cuda_activation_dx(dt_dtype dtype, dt_activation kind, int64_t n, const void *x,
                            const void *dy, void *dx)
{
    for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        for_kind<S, silu_dx, gelu_tanh_dx, gelu_erf_dx>(
            kind, [&](auto f) { map(n, f, (S *)dx, (const S *)x, (const S *)dy); });
    });
}

void dti_cuda_swiglu(dt_dtype dtype, int64_t n, const void *gate, const void *up, void *y)
{
    for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        map(n, silu_times<S>(), (S *)y, (const S *)gate, (const S *)up);
    });
}

void dti_cuda_swiglu_backward(dt_dtype dtype, int64_t n, const void *gate, const void *up,
                              const void *dy, void *dgate, void *dup)
{
    if (n <= 0)
        return;
    for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        constexpr int N = PER_16<S>;
        const S *const in[] = {(const S *)gate, dgate ? (const S *)up : nullptr, (const S *)dy};
        S *const out[] = {(S *)dgate, (S *)dup};
        if (n % N == 0 && fits<N>(in[0], in[1], in[2], (const S *)out[0], (const S *)out[1]))
            GPU_LAUNCH((swiglu_backward<S, N>), blocks(n, (int64_t)BLOCK * N), BLOCK, 0,
                       dti_gpu_stream(), n, in[0], in[1], in[2], out[0], out[1]);
        else
            GPU_LAUNCH((swiglu_backward<S, 1>), blocks(n, BLOCK), BLOCK, 0, dti_gpu_stream(), n,
                       in[0], in[1], in[2], out[0], out[1]);
    });
}
