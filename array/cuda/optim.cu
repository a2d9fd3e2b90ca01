/* array/cuda/optim.cu - AdamW and sums of powers over lists of tensors on the device: one launch a
 * list (of at most LIST tensors). The arithmetic of AdamW is that of array/kernel_optim.inc. */
#include "array/cuda/lists.h"

#include <math.h>

namespace {
/* Tensors of one launch: kernels take 32764 bytes of arguments. Short lists have short ones. */
enum { LIST = 384, SHORT_LIST = 24 };

/* ---- AdamW ---- */

template <class R> struct adamw_constants {
    R beta1, rest1, beta2, rest2, correction1, correction2, eps, lr, grad_scale;
};

template <class R> adamw_constants<R> constants_of(const dt_adamw_args *a)
{
    return {(R)a->beta1,       (R)(1 - a->beta1), (R)a->beta2, (R)(1 - a->beta2), (R)a->correction1,
            (R)a->correction2, (R)a->eps,         (R)a->lr,    (R)a->grad_scale};
}

template <class R> struct adamw_tensor {
    const void *g;
    R *w, *m, *v;
    void *rounded;
    int64_t n;
    double shrink; /* holds an R */
    int16_t grad_dtype, rounded_dtype;
    int32_t wide; /* packs of ADAMW_PACK everywhere */
};

template <class R, int MOST> struct adamw_list {
    gpu::block_map<MOST> map;
    adamw_constants<R> c;
    adamw_tensor<R> tensor[MOST];
};

template <class R> constexpr int ADAMW_PACK = gpu::PER_16<R>;
enum { ADAMW_PACKS = 2 }; /* a thread */
template <class R> constexpr int64_t ADAMW_EACH = gpu::BLOCK *ADAMW_PACKS *ADAMW_PACK<R>;

/* Elements of any dtype that has math type R. */
template <int N, class R>
__device__ inline void load_as(int dtype, const void *p, int64_t i, R (&x)[N])
{
    if constexpr (std::is_same_v<R, double>)
        gpu::load_real<N>((const double *)p + i, x);
    else if (dtype == DT_F32)
        gpu::load_real<N>((const float *)p + i, x);
    else if (dtype == DT_BF16)
        gpu::load_real<N>((const gpu::bf16 *)p + i, x);
    else
        gpu::load_real<N>((const gpu::f16 *)p + i, x);
}

template <int N, class R>
__device__ inline void store_rounded(int dtype, void *p, int64_t i, const R (&x)[N])
{
    if constexpr (std::is_same_v<R, float>) {
        if (dtype == DT_BF16)
            gpu::store_real<N>((gpu::bf16 *)p + i, x);
        else
            gpu::store_real<N>((gpu::f16 *)p + i, x);
    }
}

__device__ inline float root(float x)
{
    return sqrtf(x);
}
__device__ inline double root(double x)
{
    return sqrt(x);
}

template <int N, class R>
__device__ inline void adamw_pack(const adamw_constants<R> &c, const adamw_tensor<R> &t, int64_t i)
{
    R g[N], w[N], m[N], v[N];
    load_as<N>(t.grad_dtype, t.g, i, g);
    gpu::load_real<N>(t.w + i, w);
    gpu::load_real<N>(t.m + i, m);
    gpu::load_real<N>(t.v + i, v);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const R grad = c.grad_scale * g[j];
        m[j] = c.beta1 * m[j] + c.rest1 * grad;
        v[j] = c.beta2 * v[j] + c.rest2 * grad * grad;
        const R step = (m[j] / c.correction1) / (root(v[j] / c.correction2) + c.eps);
        w[j] = w[j] - (R)t.shrink * w[j] - c.lr * step;
    }
    gpu::store_real<N>(t.w + i, w);
    gpu::store_real<N>(t.m + i, m);
    gpu::store_real<N>(t.v + i, v);
    if (t.rounded)
        store_rounded<N>(t.rounded_dtype, t.rounded, i, w);
}

template <class R, int MOST>
__global__ void __launch_bounds__(gpu::BLOCK) adamw_kernel(const adamw_list<R, MOST> list)
{
    constexpr int N = ADAMW_PACK<R>;
    const int at = gpu::array_of(list.map);
    const adamw_tensor<R> &t = list.tensor[at];
    const int64_t first = (int64_t)(blockIdx.x - list.map.first[at]) * ADAMW_EACH<R>;
    for (int p = 0; p < ADAMW_PACKS; p++) {
        const int64_t i = first + (p * gpu::BLOCK + (int)threadIdx.x) * N;
        if (t.wide && i + N <= t.n) {
            adamw_pack<N>(list.c, t, i);
            continue;
        }
        for (int64_t j = i; j < i + N && j < t.n; j++)
            adamw_pack<1>(list.c, t, j);
    }
}

template <class R> bool all_packs(const dt_adamw_args *a)
{
    constexpr int N = ADAMW_PACK<R>;
    const uintptr_t g = (uintptr_t)a->g % (N * dt_dtype_size(a->grad_dtype));
    const uintptr_t rounded =
        a->rounded ? (uintptr_t)a->rounded % (N * dt_dtype_size(a->rounded_dtype)) : 0;
    return g == 0 && rounded == 0 && gpu::fits<N>((R *)a->w, (R *)a->m, (R *)a->v);
}

template <class R, int MOST> void start_adamw(int count, const dt_adamw_args *a)
{
    adamw_list<R, MOST> list = {};
    list.map.count = count;
    list.c = constants_of<R>(a);
    for (int i = 0; i < count; i++, a++) {
        list.tensor[i] = {a->g,
                          (R *)a->w,
                          (R *)a->m,
                          (R *)a->v,
                          a->rounded,
                          a->n,
                          (R)(a->lr * a->decay),
                          (int16_t)a->grad_dtype,
                          (int16_t)a->rounded_dtype,
                          all_packs<R>(a)};
        list.map.first[i + 1] = list.map.first[i] + gpu::blocks(a->n, ADAMW_EACH<R>);
    }
    if (list.map.first[count] > 0)
        GPU_LAUNCH((adamw_kernel<R, MOST>), list.map.first[count], gpu::BLOCK, 0, dti_gpu_stream(),
                   list);
}

template <class R> void start_adamw_of(int count, const dt_adamw_args *a)
{
    if (count <= SHORT_LIST)
        start_adamw<R, SHORT_LIST>(count, a);
    else
        start_adamw<R, LIST>(count, a);
}

/* May they share a launch? Decay is a tensor's own. */
bool alike(const dt_adamw_args *a, const dt_adamw_args *b)
{
    return a->dtype == b->dtype && a->lr == b->lr && a->beta1 == b->beta1 && a->beta2 == b->beta2 &&
           a->eps == b->eps && a->grad_scale == b->grad_scale && a->correction1 == b->correction1 &&
           a->correction2 == b->correction2;
}

/* ---- sums of powers ---- */

enum power_kind { SQUARES, SIZES, LARGEST, POWERS };
enum { POWER_PACKS = 8 }; /* a thread */

struct power_tensor {
    const void *x;
    int64_t n;
    double *sum;
    int32_t dtype, wide;
};

template <int MOST> struct power_list {
    gpu::block_map<MOST> map;
    power_tensor tensor[MOST];
};

template <power_kind KIND> __device__ inline double with(double a, double b)
{
    if constexpr (KIND == LARGEST)
        return gpu::max_op()(a, b);
    else
        return a + b;
}
template <power_kind KIND> struct with_op {
    __device__ double operator()(double a, double b) const
    {
        return with<KIND>(a, b);
    }
};

template <power_kind KIND> __device__ inline double power_of(double x, double power)
{
    if constexpr (KIND == SQUARES)
        return x * x;
    else if constexpr (KIND == POWERS)
        return pow(fabs(x), power);
    else
        return fabs(x);
}

template <class S> constexpr int64_t POWER_EACH = gpu::BLOCK *POWER_PACKS *gpu::PER_16<S>;

/* The same order whether the address allows packs or not. */
template <power_kind KIND, class S>
__device__ inline double thread_power(const S *x, int64_t n, bool wide, double power)
{
    constexpr int N = gpu::PER_16<S>;
    double sum = 0;
    for (int p = 0; p < POWER_PACKS; p++) {
        const int64_t i = (p * gpu::BLOCK + (int)threadIdx.x) * N;
        const gpu::pack<S, N> pack =
            wide && i + N <= n ? gpu::load<N>(x + i) : gpu::load_some<N>(x + i, n - i);
#pragma unroll
        for (int j = 0; j < N; j++)
            sum = with<KIND>(sum, power_of<KIND>((double)gpu::to_real(pack.at[j]), power));
    }
    return sum;
}

template <power_kind KIND, class S>
__device__ inline double block_power(const power_tensor &t, int64_t block, double power)
{
    const int64_t first = block * POWER_EACH<S>;
    return thread_power<KIND>((const S *)t.x + first, t.n - first, t.wide, power);
}

template <power_kind KIND, int MOST>
__global__ void __launch_bounds__(gpu::BLOCK)
    power_kernel(const power_list<MOST> list, double power, double *part)
{
    const int at = gpu::array_of(list.map);
    const power_tensor &t = list.tensor[at];
    const int64_t block = blockIdx.x - list.map.first[at];
    double sum = 0;
    switch (t.dtype) {
    case DT_F32: sum = block_power<KIND, float>(t, block, power); break;
    case DT_BF16: sum = block_power<KIND, gpu::bf16>(t, block, power); break;
    case DT_F16: sum = block_power<KIND, gpu::f16>(t, block, power); break;
    default: sum = block_power<KIND, double>(t, block, power); break;
    }
    sum = gpu::block_reduce(sum, with_op<KIND>());
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

/* A block a tensor adds up what the blocks of the other kernel made. */
template <power_kind KIND, int MOST>
__global__ void __launch_bounds__(gpu::BLOCK)
    power_total_kernel(const power_list<MOST> list, const double *part)
{
    const uint32_t hi = list.map.first[blockIdx.x + 1];
    double sum = 0;
    for (uint32_t b = list.map.first[blockIdx.x] + threadIdx.x; b < hi; b += gpu::BLOCK)
        sum = with<KIND>(sum, part[b]);
    sum = gpu::block_reduce(sum, with_op<KIND>());
    if (threadIdx.x == 0)
        *list.tensor[blockIdx.x].sum = sum;
}

template <int MOST> void fill_list(int count, const dt_power_args *a, power_list<MOST> *list)
{
    list->map.count = count;
    for (int i = 0; i < count; i++, a++) {
        list->tensor[i] = {a->x, a->n, a->sum, (int)a->dtype, (uintptr_t)a->x % 16 == 0};
        const int64_t each = gpu::BLOCK * POWER_PACKS * (16 / (int64_t)dt_dtype_size(a->dtype));
        list->map.first[i + 1] = list->map.first[i] + gpu::blocks(a->n, each);
    }
}

template <power_kind KIND, int MOST>
void start_powers(int count, const dt_power_args *a, double power)
{
    power_list<MOST> list = {};
    fill_list(count, a, &list);
    const uint32_t nblocks = list.map.first[count];
    double *part = (double *)dti_gpu_scratch((size_t)nblocks * sizeof *part);
    if (nblocks > 0 && part)
        GPU_LAUNCH((power_kernel<KIND, MOST>), nblocks, gpu::BLOCK, 0, dti_gpu_stream(), list,
                   power, part);
    GPU_LAUNCH((power_total_kernel<KIND, MOST>), (unsigned)count, gpu::BLOCK, 0, dti_gpu_stream(),
               list, (const double *)part);
}

template <power_kind KIND> void powers(int count, const dt_power_args *list, double power)
{
    for (int done = 0; done < count; done += LIST) {
        const int n = count - done < LIST ? count - done : LIST;
        if (n <= SHORT_LIST)
            start_powers<KIND, SHORT_LIST>(n, list + done, power);
        else
            start_powers<KIND, LIST>(n, list + done, power);
    }
}
} // namespace

void dti_cuda_adamw(int count, const dt_adamw_args *list)
{
    for (int done = 0; done < count;) {
        const dt_adamw_args *a = &list[done];
        int n = 1;
        while (n < LIST && done + n < count && alike(a, a + n))
            n++;
        if (a->dtype == DT_F64)
            start_adamw_of<double>(n, a);
        else
            start_adamw_of<float>(n, a);
        done += n;
    }
}

void dti_cuda_power_sum(int count, const dt_power_args *list, double power)
{
    if (power == 2)
        powers<SQUARES>(count, list, power);
    else if (power == 1)
        powers<SIZES>(count, list, power);
    else if (isinf(power))
        powers<LARGEST>(count, list, power);
    else
        powers<POWERS>(count, list, power);
}
