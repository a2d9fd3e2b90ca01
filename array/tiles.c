/* array/tiles.c - products in tiles, compiled for three kinds of machine and chosen at run time: 64
 * bytes a vector with AVX-512, 32 with AVX2 and FMA, and plain C.
 *
 * The first two multiply and add with one rounding; plain C rounds twice. By name, since the
 * compiler may not contract. */
#include "array/tiles_internal.h"

#include <math.h>
#include <string.h>

#define PLAIN(a, b, c) ((a) * (b) + (c))

#define TARGET
#define VEC_BYTES 16
#define ROWS      4
#define FMA       PLAIN
#define FMA1      PLAIN
#define REAL      float
#define NAME(f)   f##_f32_plain
#include "array/kernel_tiles.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64_plain
#include "array/kernel_tiles.inc"
#undef REAL
#undef NAME
#undef TARGET
#undef VEC_BYTES
#undef ROWS
#undef FMA
#undef FMA1

typedef struct tile_kernels {
    void (*tiles_f32)(const dti_tiles *x, int64_t m, int64_t n, int64_t k);
    void (*tiles_f64)(const dti_tiles *x, int64_t m, int64_t n, int64_t k);
    float (*dot_f32)(int64_t n, const float *x, const float *y);
    double (*dot_f64)(int64_t n, const double *x, const double *y);
} tile_kernels;

static const tile_kernels plain = {tiles_f32_plain, tiles_f64_plain, dot_f32_plain, dot_f64_plain};

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define TARGET    __attribute__((target("avx512f")))
#define VEC_BYTES 64
#define ROWS      8
#define REAL      float
#define FMA       _mm512_fmadd_ps
#define FMA1      fmaf
#define NAME(f)   f##_f32_v4
#include "array/kernel_tiles.inc"
#undef REAL
#undef FMA
#undef FMA1
#undef NAME
#define REAL    double
#define FMA     _mm512_fmadd_pd
#define FMA1    fma
#define NAME(f) f##_f64_v4
#include "array/kernel_tiles.inc"
#undef TARGET
#undef VEC_BYTES
#undef ROWS
#undef REAL
#undef FMA
#undef FMA1
#undef NAME

#define TARGET    __attribute__((target("avx2,fma")))
#define VEC_BYTES 32
#define ROWS      6
#define REAL      float
#define FMA       _mm256_fmadd_ps
#define FMA1      fmaf
#define NAME(f)   f##_f32_v3
#include "array/kernel_tiles.inc"
#undef REAL
#undef FMA
#undef FMA1
#undef NAME
#define REAL    double
#define FMA     _mm256_fmadd_pd
#define FMA1    fma
#define NAME(f) f##_f64_v3
#include "array/kernel_tiles.inc"

static const tile_kernels *kernels(void)
{
    static const tile_kernels v4 = {tiles_f32_v4, tiles_f64_v4, dot_f32_v4, dot_f64_v4};
    static const tile_kernels v3 = {tiles_f32_v3, tiles_f64_v3, dot_f32_v3, dot_f64_v3};
    if (__builtin_cpu_supports("avx512f"))
        return &v4;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &v3 : &plain;
}
#else
static const tile_kernels *kernels(void)
{
    return &plain;
}
#endif

void dti_tiles_f32(const dti_tiles *x, int64_t m, int64_t n, int64_t k)
{
    kernels()->tiles_f32(x, m, n, k);
}

void dti_tiles_f64(const dti_tiles *x, int64_t m, int64_t n, int64_t k)
{
    kernels()->tiles_f64(x, m, n, k);
}

float dti_dot_f32(int64_t n, const float *x, const float *y)
{
    return kernels()->dot_f32(n, x, y);
}

double dti_dot_f64(int64_t n, const double *x, const double *y)
{
    return kernels()->dot_f64(n, x, y);
}
