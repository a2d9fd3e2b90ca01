/* array/cuda/dropout.cu - dropout by the bits of array/kernels_embedding.c: those of the element's
 * index in the global tensor. Four elements share a block of random words. */
#include "array/cuda/random.h"

namespace {
using namespace gpu;

/* Local element e is element e % run of run e / run; runs are counted along dims, last first. */
template <class Index> struct dropout_data {
    dt_key key;
    uint32_t below; /* an element goes if the upper 24 bits of its word are */
    uint64_t base;  /* global index of the first element */
    divider<Index> run, size[DT_MAX_DIMS];
    uint64_t stride[DT_MAX_DIMS];
    int ndim;

    __device__ uint64_t index_of(Index e) const
    {
        Index rest = run.quotient(e);
        uint64_t index = base + run.remainder(e);
        for (int d = 0; d < ndim; d++) {
            index += size[d].remainder(rest) * stride[d];
            rest = size[d].quotient(rest);
        }
        return index;
    }
};

/* N: 1, or a multiple of 4 that divides runs, which then begin at multiples of 4. */
template <class S, int N, class Index>
__global__ void __launch_bounds__(BLOCK)
    dropout(int64_t n, dropout_data<Index> a, real<S> scale, const S *x, S *y)
{
    const int64_t i = thread_index() * N;
    if (i >= n)
        return;
    const uint64_t index = a.index_of((Index)i);
    real<S> v[N];
    uint32_t word[N < 4 ? 4 : N];
    load_real<N>(x + i, v);
#pragma unroll
    for (int j = 0; j < N; j += 4)
        random_words(a.key, (index + j) / 4, *reinterpret_cast<uint32_t(*)[4]>(word + j));
#pragma unroll
    for (int j = 0; j < N; j++)
        v[j] = word[N == 1 ? index % 4 : j] >> 8 < a.below ? real<S>(0) : v[j] * scale;
    store_real(y + i, v);
}

/* The runs of a block of a tensor; true if groups of `pack` elements, 4 or 8, stay together. */
template <class Index> bool find_runs(const dt_dropout_args *a, int pack, dropout_data<Index> *out)
{
    const int last = a->local.ndim - 1;
    int64_t run = last < 0 ? 1 : a->local.dim[last];
    uint64_t stride = last < 0 ? 1 : (uint64_t)a->global.dim[last];
    bool together = true;
    out->base = last < 0 ? 0 : (uint64_t)(a->offset[last] + (last == 0 ? a->first_sample : 0));
    for (int d = last - 1; d >= 0; d--) {
        const int64_t offset = a->offset[d] + (d == 0 ? a->first_sample : 0);
        out->base += (uint64_t)offset * stride;
        if ((uint64_t)run == stride) {
            run *= a->local.dim[d];
        } else {
            out->size[out->ndim] = divider<Index>(a->local.dim[d]);
            out->stride[out->ndim++] = stride;
            together = together && stride % 4 == 0;
        }
        stride *= (uint64_t)a->global.dim[d];
    }
    out->run = divider<Index>(run);
    return together && run % pack == 0 && out->base % 4 == 0;
}

template <class S, class Index> void drop(const dt_dropout_args *a, int64_t n, const S *x, S *y)
{
    constexpr int N = sizeof(S) == 2 ? 8 : 4;
    dropout_data<Index> d = {};
    d.key = a->key;
    d.below = (uint32_t)ceil(a->p * 0x1p24);
    const bool together = find_runs(a, N, &d);
    const real<S> scale = (real<S>)(1 / (1 - a->p));
    if (together && fits<N>(x, (const S *)y))
        GPU_LAUNCH((dropout<S, N, Index>), blocks(n, (int64_t)BLOCK * N), BLOCK, 0,
                   dti_gpu_stream(), n, d, scale, x, y);
    else
        GPU_LAUNCH((dropout<S, 1, Index>), blocks(n, BLOCK), BLOCK, 0, dti_gpu_stream(), n, d,
                   scale, x, y);
}
} // namespace

void dti_cuda_dropout(const dt_dropout_args *a, const void *x, void *y)
{
    const int64_t n = dt_shape_count(a->local);
    if (n <= 0)
        return;
    for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        for_index(
            n, [&](auto i) { drop<S, typename decltype(i)::storage>(a, n, (const S *)x, (S *)y); });
    });
}
