/* tests/simdev/blas_internal.h - cuBLASLt's descriptors as the simulator fills them. */
#pragma once

#include "sim_internal.h"

#include <cublasLt.h>

struct SimLayout {
    cudaDataType type;
    int order, batch;
    uint64_t rows, cols;
    int64_t ld, stride; /* elements */
};

struct SimMatmul {
    int compute, scale, trans_a, trans_b, epilogue;
    int bias_type, aux_type; /* -1: that of D */
    void *bias, *aux;
    int64_t aux_ld, aux_stride, bias_stride;
};

static_assert(sizeof(SimLayout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");
static_assert(sizeof(SimMatmul) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");

/* A product with its operands; beta 0: c is not read. */
struct SimProduct {
    SimMatmul op;
    SimLayout layout_a, layout_b, layout_c, layout_d;
    double alpha, beta;
    const char *a, *b, *c;
    char *d;
};

/* Bits of cublasLtEpilogue_t. */
enum {
    SIM_BIAS = 4,
    SIM_BGRAD = 16,
    SIM_GELU = 32,
    SIM_DGELU = 64,
    SIM_AUX = 128,
    SIM_BGRAD_A = 256,
    SIM_BGRAD_B = 512
};

size_t sim_blas_bytes(int type); /* of one element; 0: not simulated */
double sim_blas_get(const void *p, size_t i, int type);
void sim_blas_put(void *p, size_t i, int type, float value); /* rounded once */
uint64_t sim_blas_k(const SimProduct &p);
size_t sim_blas_span(const SimLayout &l); /* bytes from the first element to the last */
void sim_blas_run(const SimProduct &p);
