/* array/kernels_product.c - sums of products in letters, in plain loops: one counter over the free
 * letters, inside of it one over the summed letters. */
#include "array/kernels_math_internal.h"

/* The next values of letters [lo, hi), the last changing fastest; offset[nfactors] is the output's.
 * False when they have all had their turn: then they are 0 again. */
static bool step(const dt_product_args *a, int lo, int hi, int64_t *index, int64_t *offset)
{
    for (int l = hi - 1; l >= lo; l--) {
        const bool wrap = ++index[l] == a->size[l];
        const int64_t by = wrap ? 1 - a->size[l] : 1;
        for (int f = 0; f < a->nfactors; f++)
            offset[f] += by * a->stride[f][l];
        offset[a->nfactors] += by * a->out_stride[l];
        if (!wrap)
            return true;
        index[l] = 0;
    }
    return false;
}

#define REAL    float
#define NAME(f) f##_f32
#include "array/kernel_product.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64
#include "array/kernel_product.inc"

static bool any_empty(const dt_product_args *a, int lo, int hi)
{
    bool empty = false;
    for (int l = lo; l < hi; l++)
        empty |= a->size[l] == 0;
    return empty;
}

void dti_product(const dt_product_args *a)
{
    if (any_empty(a, 0, a->nfree))
        return;
    if (a->dtype == DT_F32)
        product_f32(a, any_empty(a, a->nfree, a->nletters));
    else
        product_f64(a, any_empty(a, a->nfree, a->nletters));
}
