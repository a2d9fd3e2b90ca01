/* tests/simdev/blas_run.cc - products as cuBLASLt computes them: sums in f32 (f64 of f64), one
 * rounding at the end, after the epilogue. In a fixed order: equal calls give equal bits. */
#include "blas_internal.h"

#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef __has_attribute
#if defined(__x86_64__) && __has_attribute(target_clones) && !defined(__clang__)
#define CLONES __attribute__((target_clones("default", "avx2,fma", "arch=x86-64-v4")))
#endif
#endif
#ifndef CLONES
#define CLONES
#endif

size_t sim_blas_bytes(int type)
{
    switch (type) {
    case CUDA_R_32F: return 4;
    case CUDA_R_64F: return 8;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    default: return 0;
    }
}

static double get(const void *p, size_t i, int type)
{
    switch (type) {
    case CUDA_R_32F: return static_cast<const float *>(p)[i];
    case CUDA_R_64F: return static_cast<const double *>(p)[i];
    case CUDA_R_16F: return __half2float(static_cast<const __half *>(p)[i]);
    default: return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    }
}

/* Value is f32 or f64, so that each type is rounded once. */
template <class Value> static void put(void *p, size_t i, int type, Value value)
{
    switch (type) {
    case CUDA_R_32F: static_cast<float *>(p)[i] = static_cast<float>(value); break;
    case CUDA_R_64F: static_cast<double *>(p)[i] = value; break;
    case CUDA_R_16F: static_cast<__half *>(p)[i] = __float2half(static_cast<float>(value)); break;
    default: static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16(static_cast<float>(value));
    }
}

double sim_blas_get(const void *p, size_t i, int type)
{
    return get(p, i, type);
}

void sim_blas_put(void *p, size_t i, int type, float value)
{
    put(p, i, type, value);
}

static size_t place(const SimLayout &l, uint64_t row, uint64_t col)
{
    return l.order == CUBLASLT_ORDER_ROW ? row * l.ld + col : col * l.ld + row;
}

size_t sim_blas_span(const SimLayout &l)
{
    size_t products = static_cast<size_t>(l.batch - 1) * static_cast<size_t>(l.stride);
    return sim_blas_bytes(l.type) * (products + place(l, l.rows - 1, l.cols - 1) + 1);
}

uint64_t sim_blas_k(const SimProduct &p)
{
    return p.op.trans_a ? p.layout_a.rows : p.layout_a.cols;
}

/* ---- the sums ---- */

enum { TILE_M = 4, TILE_N = 16 };

/* One tile: a [k][TILE_M], b [k][TILE_N]. */
template <class Value>
static inline __attribute__((always_inline)) void tile(size_t k, const Value *a, const Value *b,
                                                       Value (*sum)[TILE_N])
{
    Value acc[TILE_M][TILE_N] = {};
    for (size_t q = 0; q < k; q++)
        for (int i = 0; i < TILE_M; i++)
            for (int j = 0; j < TILE_N; j++)
                acc[i][j] += a[q * TILE_M + i] * b[q * TILE_N + j];
    for (int i = 0; i < TILE_M; i++)
        for (int j = 0; j < TILE_N; j++)
            sum[i][j] = acc[i][j];
}
CLONES static void tile_of(size_t k, const float *a, const float *b, float (*sum)[TILE_N])
{
    tile(k, a, b, sum);
}
CLONES static void tile_of(size_t k, const double *a, const double *b, double (*sum)[TILE_N])
{
    tile(k, a, b, sum);
}

/* An operand as panels of `width` rows (A) or columns (B), [panel][k][width], zeros at the end. */
template <class Value>
static std::vector<Value> panels(const char *p, const SimLayout &l, bool k_is_row, size_t n,
                                 size_t k, size_t width)
{
    std::vector<Value> out((n + width - 1) / width * width * k);
    for (size_t i = 0; i < n; i++) {
        Value *to = &out[i / width * width * k + i % width];
        for (size_t q = 0; q < k; q++)
            to[q * width] =
                static_cast<Value>(get(p, k_is_row ? place(l, q, i) : place(l, i, q), l.type));
    }
    return out;
}

/* ---- epilogues; bias and aux go by rows of D, whose order is columns there ---- */

static const double gelu_a = 0.7978845608028654 /* sqrt(2 / pi) */, gelu_b = 0.044715;

static double gelu(double x)
{
    return 0.5 * x * (1 + std::tanh(gelu_a * (x + gelu_b * x * x * x)));
}

static double dgelu(double x)
{
    double t = std::tanh(gelu_a * (x + gelu_b * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_a * (1 + 3 * gelu_b * x * x);
}

template <class Value>
static Value finish(const SimProduct &p, int z, size_t i, size_t j, Value sum)
{
    const SimMatmul &op = p.op;
    const SimLayout &d = p.layout_d;
    Value v = static_cast<Value>(p.alpha) * sum;
    size_t aux_at = z * op.aux_stride + j * op.aux_ld + i;
    int aux_type = op.aux_type < 0 ? d.type : op.aux_type;
    if (p.beta != 0)
        v += static_cast<Value>(
            p.beta * get(p.c, z * p.layout_c.stride + place(p.layout_c, i, j), p.layout_c.type));
    if (op.epilogue & SIM_BIAS)
        v += static_cast<Value>(get(op.bias, z * op.bias_stride + i, d.type));
    if (op.epilogue & SIM_DGELU)
        return static_cast<Value>(v * dgelu(get(op.aux, aux_at, aux_type)));
    if (op.epilogue & SIM_AUX)
        put(op.aux, aux_at, aux_type, v);
    return op.epilogue & SIM_GELU ? static_cast<Value>(gelu(v)) : v;
}

/* Sums of op(A)'s rows, of op(B)'s columns, or of D's rows, into the bias. */
template <class Value>
static void bias_gradient(const SimProduct &p, const std::vector<Value> &a,
                          const std::vector<Value> &b, const std::vector<double> &d_rows)
{
    size_t m = p.layout_d.rows, n = p.layout_d.cols, k = sim_blas_k(p);
    bool of_b = p.op.epilogue & SIM_BGRAD_B, of_d = p.op.epilogue & SIM_BGRAD;
    size_t width = of_b ? TILE_N : TILE_M, count = of_b ? n : m;
    for (size_t i = 0; i < count; i++) {
        double sum = of_d ? d_rows[i] : 0;
        for (size_t q = 0; q < k && !of_d; q++)
            sum += (of_b ? b : a)[i / width * width * k + q * width + i % width];
        put(p.op.bias, i, p.layout_d.type, static_cast<Value>(sum));
    }
}

template <class Value> static void run(const SimProduct &p, int z)
{
    size_t m = p.layout_d.rows, n = p.layout_d.cols, k = sim_blas_k(p);
    const SimLayout &la = p.layout_a, &lb = p.layout_b, &ld = p.layout_d;
    const char *a = p.a + z * la.stride * sim_blas_bytes(la.type);
    const char *b = p.b + z * lb.stride * sim_blas_bytes(lb.type);
    std::vector<Value> pa = panels<Value>(a, la, p.op.trans_a, m, k, TILE_M);
    std::vector<Value> pb = panels<Value>(b, lb, !p.op.trans_b, n, k, TILE_N);
    std::vector<double> d_rows(m);
    Value sum[TILE_M][TILE_N];
    for (size_t i0 = 0; i0 < m; i0 += TILE_M) {
        for (size_t j0 = 0; j0 < n; j0 += TILE_N) {
            tile_of(k, &pa[i0 * k], &pb[j0 * k], sum);
            for (size_t i = i0; i < m && i < i0 + TILE_M; i++) {
                for (size_t j = j0; j < n && j < j0 + TILE_N; j++) {
                    Value v = finish(p, z, i, j, sum[i - i0][j - j0]);
                    d_rows[i] += v;
                    put(p.d, z * ld.stride + place(ld, i, j), ld.type, v);
                }
            }
        }
    }
    if (p.op.epilogue & (SIM_BGRAD | SIM_BGRAD_A | SIM_BGRAD_B))
        bias_gradient(p, pa, pb, d_rows);
}

void sim_blas_run(const SimProduct &p)
{
    for (int z = 0; z < p.layout_d.batch; z++) {
        if (p.layout_d.type == CUDA_R_64F)
            run<double>(p, z);
        else
            run<float>(p, z);
    }
}
