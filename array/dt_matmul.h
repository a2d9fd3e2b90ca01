/* array/dt_matmul.h - the one matrix product: C = alpha * op(A) * op(B) + beta * C, batched, on
 * pointers of one device.
 *
 * Row-major. op(A) is m x k: A is stored m x k, or k x m if trans_a; op(B) is k x n, C m x n.
 * Backends are chosen by file: matmul_onednn.c with oneDNN 2.x or 3.x, or matmul_plain.c alone. f64
 * always runs in matmul_plain.c. On cuda: cuda/matmul.c, cuBLASLt. */
#pragma once

#include "base/dt_types.h"

typedef struct dt_matmul_args {
    dt_dtype dtype;   /* of A and B: f32, f64, bf16, f16 */
    dt_dtype dtype_c; /* of C: the same, or f32 for bf16 and f16 */
    bool trans_a, trans_b;
    dt_device_kind device; /* where a, b and c are; 0: cpu */
    int64_t batch;         /* products; 1 for a plain one */
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    /* Elements from row to row as stored; 0: no gaps. */
    int64_t lda, ldb, ldc;
    /* Elements from product to product; 0 for A or B: all use the same. */
    int64_t stride_a, stride_b, stride_c;
    double alpha, beta; /* applied as f32 unless f64; beta = 0 does not read C */
    const void *bias;   /* [n] in C's dtype: added to every row of C before it is rounded, with
                           beta 0; NULL: none */
    /* Of one product with alpha 1, beta 0 and no bias: where the sums of op(B)'s columns [n], or of
     * op(A)'s rows [m], go in C's dtype, if the device (cuda) makes them in the same launch, which
     * *summed tells; NULL: nowhere. */
    void *sums;
    bool sums_of_a, *summed;
} dt_matmul_args;

/* dt_matmul_run - (dt_matmul is the op on tensors.) 16-bit inputs are summed in f32 and rounded
 * once. Any size may be 0: with k = 0, C becomes beta C, or the bias. The same arguments on the
 * same machine give the same bits, whatever the number of threads (dt_compute_threads_set).
 * Elements of C between n and ldc are not touched. Several threads may call it at once;
 * communication workers may not.
 * Errors: DT_ERR_ARG (dtypes, a leading dimension too short, a bias with beta), DT_ERR_NOMEM,
 * DT_ERR_DEVICE. */
DT_NODISCARD dt_status dt_matmul_run(const dt_matmul_args *args);
