/* array/cuda/product.cu - a sum of products by letters on the device, in f64: a thread an element
 * of the output, or a block where there are few and each is long. Products of matrices go to
 * array/cuda/matmul.c instead. */
#include "array/cuda/vec.h"

namespace {
enum { FACTORS = DT_PRODUCT_TERMS, LETTERS = DT_PRODUCT_LETTERS, FEW = 4096, LONG = 256 };

/* Letters of size 1 are left out. Strides of factor f are at [f]; the output's at [nfactors]. */
struct letters {
    int nfactors, nfree, nsummed;
    bool add;
    int64_t outputs, terms; /* products of the sizes */
    int64_t size[LETTERS];  /* the free ones first */
    int64_t stride[FACTORS + 1][LETTERS];
    const void *factor[FACTORS];
};

/* Add the strides of the index'th value of letters [lo, hi), the last of which is fastest. */
__device__ inline void go_to(const letters &l, int lo, int hi, int64_t index,
                             int64_t (&offset)[FACTORS + 1])
{
    for (int k = hi - 1; k >= lo; k--) {
        const int64_t at = index % l.size[k];
        index /= l.size[k];
        for (int f = 0; f <= l.nfactors; f++)
            offset[f] += at * l.stride[f][k];
    }
}

template <class S>
__device__ inline double term(const letters &l, int64_t index, const int64_t (&from)[FACTORS + 1])
{
    int64_t offset[FACTORS + 1];
    for (int f = 0; f <= FACTORS; f++)
        offset[f] = from[f];
    go_to(l, l.nfree, l.nfree + l.nsummed, index, offset);
    double product = 1;
    for (int f = 0; f < l.nfactors; f++)
        product *= (double)gpu::to_real(((const S *)l.factor[f])[offset[f]]);
    return product;
}

template <bool TOGETHER, class S>
__global__ void __launch_bounds__(gpu::BLOCK) product_kernel(letters l, S *out)
{
    const int64_t index = TOGETHER ? (int64_t)blockIdx.x : gpu::thread_index();
    const int64_t first = TOGETHER ? threadIdx.x : 0, step = TOGETHER ? gpu::BLOCK : 1;
    if (index >= l.outputs)
        return;
    int64_t offset[FACTORS + 1] = {};
    go_to(l, 0, l.nfree, index, offset);
    double total = 0;
    for (int64_t t = first; t < l.terms; t += step)
        total += term<S>(l, t, offset);
    if constexpr (TOGETHER)
        total = gpu::block_sum(total);
    if (first > 0)
        return;
    S *const at = out + offset[l.nfactors];
    if (l.add)
        total += (double)gpu::to_real(*at);
    *at = gpu::from_real<S>((gpu::real<S>)total);
}

letters from_args(const dt_product_args *a)
{
    letters l = {};
    l.nfactors = a->nfactors;
    l.add = a->add;
    l.outputs = l.terms = 1;
    for (int f = 0; f < a->nfactors; f++)
        l.factor[f] = a->factor[f];
    for (int k = 0; k < a->nletters; k++) {
        const bool is_free = k < a->nfree;
        const int at = l.nfree + l.nsummed;
        *(is_free ? &l.outputs : &l.terms) *= a->size[k];
        if (a->size[k] == 1)
            continue;
        l.size[at] = a->size[k];
        for (int f = 0; f < a->nfactors; f++)
            l.stride[f][at] = a->stride[f][k];
        l.stride[a->nfactors][at] = is_free ? a->out_stride[k] : 0;
        *(is_free ? &l.nfree : &l.nsummed) += 1;
    }
    return l;
}
} // namespace

void dti_cuda_product(const dt_product_args *a)
{
    const letters l = from_args(a);
    if (l.outputs == 0)
        return;
    gpu::for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        if (l.outputs < FEW && l.terms >= LONG)
            GPU_LAUNCH((product_kernel<true, S>), (unsigned)l.outputs, gpu::BLOCK, 0,
                       dti_gpu_stream(), l, (S *)a->out);
        else
            GPU_LAUNCH((product_kernel<false, S>), gpu::blocks(l.outputs, gpu::BLOCK), gpu::BLOCK,
                       0, dti_gpu_stream(), l, (S *)a->out);
    });
}
