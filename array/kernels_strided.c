/* array/kernels_strided.c - a contiguous copy of a strided view: permutations of dims and repeats.
 *
 * Dims that stay neighbours are merged first, so that [B, S, H, D] -> [B, H, S, D] copies runs of D
 * elements. */
#include "array/kernels_math_internal.h"

#include <string.h>

/* Drop dims of size 1 and merge those that are one run in src; at least one dim is left. */
static void merge_dims(dt_strided_args *a)
{
    int n = 0;
    for (int d = 0; d < a->ndim; d++) {
        if (a->size[d] == 1)
            continue;
        if (n > 0 && a->stride[n - 1] == a->stride[d] * a->size[d]) {
            a->size[n - 1] *= a->size[d];
            a->stride[n - 1] = a->stride[d];
            continue;
        }
        a->size[n] = a->size[d];
        a->stride[n++] = a->stride[d];
    }
    if (n == 0) {
        a->size[0] = 1;
        a->stride[0] = 1;
        n = 1;
    }
    a->ndim = n;
}

/* n elements `stride` bytes apart; memcpy of a constant size is one move. */
static void copy_apart(int64_t elem_bytes, int64_t n, int64_t stride, const char *restrict src,
                       char *restrict dst)
{
    switch (elem_bytes) {
    case 1:
        for (int64_t i = 0; i < n; i++)
            dst[i] = src[i * stride];
        break;
    case 2:
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + 2 * i, src + i * stride, 2);
        break;
    case 4:
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + 4 * i, src + i * stride, 4);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + 8 * i, src + i * stride, 8);
        break;
    }
}

/* Runs [lo, hi): the last dim is the run, the others are counted. */
static void copy_runs(void *arg, int64_t lo, int64_t hi)
{
    const dt_strided_args *a = arg;
    const int last = a->ndim - 1;
    const int64_t n = a->size[last], bytes = n * a->elem_bytes,
                  step = a->stride[last] * a->elem_bytes;
    int64_t index[DT_STRIDED_DIMS], from = 0, rest = lo;
    for (int d = last - 1; d >= 0; d--) {
        index[d] = rest % a->size[d];
        rest /= a->size[d];
        from += index[d] * a->stride[d];
    }
    char *dst = (char *)a->dst + lo * bytes;
    for (int64_t r = lo; r < hi; r++, dst += bytes) {
        const char *src = (const char *)a->src + from * a->elem_bytes;
        if (step == a->elem_bytes)
            memcpy(dst, src, (size_t)bytes);
        else
            copy_apart(a->elem_bytes, n, step, src, dst);
        for (int d = last - 1; d >= 0; d--) {
            from += a->stride[d];
            if (++index[d] < a->size[d])
                break;
            from -= index[d] * a->stride[d];
            index[d] = 0;
        }
    }
}

/* One long run is cut into shorter ones, for the threads. */
static void copy_within(void *arg, int64_t lo, int64_t hi)
{
    dt_strided_args part = *(const dt_strided_args *)arg;
    part.size[0] = hi - lo;
    part.src = (const char *)part.src + lo * part.stride[0] * part.elem_bytes;
    part.dst = (char *)part.dst + lo * part.elem_bytes;
    copy_runs(&part, 0, 1);
}

void dti_strided(const dt_strided_args *args)
{
    dt_strided_args a = *args;
    int64_t runs = 1;
    merge_dims(&a);
    for (int d = 0; d < a.ndim - 1; d++)
        runs *= a.size[d];
    if (a.size[a.ndim - 1] == 0)
        return;
    if (a.ndim == 1)
        dt_parallel_range(a.size[0], 1, copy_within, &a);
    else
        dt_parallel_range(runs, a.size[a.ndim - 1], copy_runs, &a);
}
