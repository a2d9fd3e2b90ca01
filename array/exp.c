/* array/exp.c - exponentials of runs of f32 for three kinds of machine, chosen at run time:
 * AVX-512, AVX2 with FMA, and any.
 *
 * exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; exp(r) = 1 + r + r^2 p(r), p of degree
 * 4 with the least relative error of exp(r), 5e-9. The terms of p are paired, since a core waits
 * for the longest chain of them. The split of ln 2 is Cody and Waite's.
 *
 * With AVX-512 n is a number of sixteenths, 2^n is one of 16 powers, which fit a register, times a
 * whole power of 2, and as |r| <= ln 2 / 32 the terms of exp(r) up to r^3 / 6 do, 9e-9.
 *
 * The first two kinds multiply and add with one rounding; the third rounds twice where there is no
 * instruction for that, as libm's functions are called one number at a time. By name, since the
 * compiler may not contract. */
#include "array/exp_internal.h"

#include "array/dt_half.h"
#include "array/dt_kernels.h"

#include <math.h>
#include <stddef.h>

/* Results are 0 below. volatile: of a bound that gcc does not know it makes one instruction, of
 * another two. */
static const volatile float LEAST = -104;

enum { ZERO = 0x4b400000 }; /* the bits of 1.5 2^23 */

#define TARGET  __attribute__((noinline))
#define NAME(f) f##_any
#ifdef __FP_FAST_FMAF /* aarch64 */
#define FMA fmaf
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif
#include "array/kernel_exp.inc"
#undef TARGET
#undef FMA
#undef NAME

#if defined(__x86_64__) && defined(__GNUC__)
#define TARGET  __attribute__((noinline, target("avx2,fma")))
#define FMA     fmaf
#define NAME(f) f##_v3
#include "array/kernel_exp.inc"
#include "array/kernel_exp_v4.inc"

const dti_exp_kernels *dti_exp_kernels_of(int i)
{
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
    const dti_exp_kernels *const list[] = {&exps_v4, &exps_v3, &exps_any};
    const int first = v4 ? 0 : v3 ? 1 : 2;
    return i < DT_COUNT(list) - first ? list[first + i] : NULL;
}
#else
const dti_exp_kernels *dti_exp_kernels_of(int i)
{
    return i == 0 ? &exps_any : NULL;
}
#endif
