/* tests/gpu/test_strided.c - permutations of dims, repeats, and blocks of arrays. */
#include "tests/gpu/gpu_test.h"

#include "array/array_internal.h"
#include "array/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

/* Of each size of elements one dtype. */
static const dt_dtype by_size[] = {DT_U8, DT_BF16, DT_F32, DT_F64};

/* Sizes of the source, and which of its dims each dim of the result is; -1: a repeat. */
typedef struct permutation {
    int ndim;
    int64_t size[5];
    int nout, dim[5];
    int64_t repeat;
} permutation;

static const permutation permutations[] = {
    {4, {2, 5, 3, 16}, 4, {0, 2, 1, 3}, 0}, /* b s h d -> b h s d */
    {4, {2, 5, 3, 6}, 4, {0, 2, 1, 3}, 0},  /* rows of few bytes */
    {4, {2, 5, 3, 8}, 4, {0, 2, 3, 1}, 0},  /* b s h d -> b h d s */
    {2, {37, 65, 1}, 2, {1, 0}, 0},         /* tiles */
    {2, {130, 8}, 2, {1, 0}, 0},            /* a sliver */
    {2, {300, 3}, 2, {1, 0}, 0},            /* too narrow for tiles */
    {3, {33, 4, 70}, 3, {2, 1, 0}, 0},      /* tiles with a dim between */
    {3, {40, 50, 2}, 3, {1, 0, 2}, 0},      /* tiles of pairs */
    {3, {4, 6, 10}, 3, {0, 1, 2}, 0},       /* all there is, in order */
    {2, {7, 24}, 3, {-1, 0, 1}, 3},         /* repeats: the whole, */
    {2, {7, 24}, 3, {0, -1, 1}, 4},         /* rows, */
    {2, {7, 24}, 3, {0, 1, -1}, 5},         /* elements */
    {1, {1}, 1, {0}, 0},
    {2, {0, 5}, 2, {1, 0}, 0},
    {0, {1}, 0, {0}, 0},
};

static void check_permutation(const permutation *p, int number, dt_dtype dtype)
{
    dt_strided_args a = {.elem_bytes = (int64_t)dt_dtype_size(dtype), .ndim = p->nout};
    int64_t stride[5], count = 1, out_count = 1;
    for (int d = p->ndim - 1; d >= 0; d--) {
        stride[d] = count;
        count *= p->size[d];
    }
    for (int d = 0; d < p->nout; d++) {
        a.size[d] = p->dim[d] < 0 ? p->repeat : p->size[p->dim[d]];
        a.stride[d] = p->dim[d] < 0 ? 0 : stride[p->dim[d]];
        out_count *= a.size[d];
    }
    const gpu_pair x = gpu_random(dtype, count, 0, 256), y = gpu_output(dtype, out_count);
    void *stored = malloc(8 * (size_t)(count + 1)), *want = malloc(8 * (size_t)(out_count + 1));
    ck_assert(stored && want);
    dti_cast(dtype, stored, x.wide, x.cpu, count);
    a.src = stored;
    a.dst = want;
    dt_math_kernels_of(DT_CPU)->strided(&a);
    a.src = x.gpu;
    a.dst = y.gpu;
    dt_math_kernels_of(DT_CUDA)->strided(&a);
    gpu_bits(&y, want, "permutation %d", number);
    free(stored);
    free(want);
}

START_TEST(test_permutations)
{
    for (int d = 0; d < DT_COUNT(by_size); d++)
        for (int p = 0; p < DT_COUNT(permutations); p++)
            for (int shift = 0; shift < 3; shift++) {
                gpu_begin(_i);
                gpu_shift(shift);
                check_permutation(&permutations[p], p, by_size[d]);
                gpu_end();
            }
}
END_TEST

typedef struct block {
    int ndim;
    int64_t dst[4], src[4], dst_at[4], src_at[4], extent[4];
} block;

static const block blocks[] = {
    {1, {1000}, {900}, {3}, {5}, {700}},
    {2, {40, 64}, {50, 96}, {8, 16}, {0, 32}, {32, 48}},
    {2, {40, 64}, {50, 64}, {8, 0}, {20, 0}, {30, 64}}, /* whole rows */
    {3, {4, 9, 7}, {5, 9, 8}, {1, 0, 1}, {0, 0, 3}, {3, 9, 5}},
    {4, {3, 4, 5, 8}, {3, 4, 6, 8}, {0, 1, 2, 0}, {1, 0, 3, 4}, {2, 3, 3, 4}},
    {2, {5, 5}, {5, 5}, {0, 0}, {0, 0}, {5, 0}},
    {2, {6, 9}, {6, 11}, {0, 0}, {0, 0}, {6, 8}}, /* even runs in rows of odd lengths */
};

static void check_block(const block *b, int number, dt_dtype dtype)
{
    dti_strided_block host = {.elem_bytes = (int64_t)dt_dtype_size(dtype), .ndim = b->ndim};
    int64_t ndst = 1, nsrc = 1, dst_first = 0, src_first = 0;
    for (int d = b->ndim - 1; d >= 0; d--) {
        host.extent[d] = b->extent[d];
        host.dst_stride[d] = ndst;
        host.src_stride[d] = nsrc;
        dst_first += b->dst_at[d] * ndst;
        src_first += b->src_at[d] * nsrc;
        ndst *= b->dst[d];
        nsrc *= b->src[d];
    }
    const gpu_pair x = gpu_random(dtype, nsrc, 0, 256), y = gpu_random(dtype, ndst, 0, 256);
    void *stored = malloc(8 * (size_t)nsrc), *want = malloc(8 * (size_t)ndst);
    ck_assert(stored && want);
    dti_cast(dtype, stored, x.wide, x.cpu, nsrc);
    dti_cast(dtype, want, y.wide, y.cpu, ndst);
    dti_strided_block device = host;
    host.src = dti_at(dtype, stored, src_first);
    host.dst = dti_at(dtype, want, dst_first);
    device.src = dti_at(dtype, x.gpu, src_first);
    device.dst = dti_at(dtype, y.gpu, dst_first);
    if (b->extent[b->ndim - 1] > 0)
        dti_copy_block(&host);
    dti_cuda_array_kernels()->copy_block(&device);
    gpu_bits(&y, want, "block %d", number);
    free(stored);
    free(want);
}

START_TEST(test_blocks)
{
    for (int d = 0; d < DT_COUNT(by_size); d++)
        for (int b = 0; b < DT_COUNT(blocks); b++)
            for (int shift = 0; shift < 3; shift++) {
                gpu_begin(_i);
                gpu_shift(shift);
                check_block(&blocks[b], b, by_size[d]);
                gpu_end();
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu: strided copies");
    TCase *tc = tcase_create("strided");
    tcase_add_loop_test(tc, test_permutations, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_blocks, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
