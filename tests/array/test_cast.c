/* tests/array/test_cast.c - 16-bit floats bit by bit, and casts between all dtypes.
 *
 * References are written from the formats' definitions: value = (-1)^s * m * 2^e, round to nearest,
 * ties to even. */
#include "array/dt_array.h"
#include "array/dt_half.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>

typedef struct half_format {
    dt_dtype dtype;
    int mantissa_bits, bias;
    uint16_t (*from)(float);
    float (*to)(uint16_t);
} half_format;

static const half_format formats[] = {{DT_BF16, 7, 127, dt_f32_to_bf16, dt_bf16_to_f32},
                                      {DT_F16, 10, 15, dt_f32_to_f16, dt_f16_to_f32}};

static double decode(const half_format *f, uint16_t h)
{
    const int mantissa = h & ((1 << f->mantissa_bits) - 1);
    const int exponent = (h & 0x7fff) >> f->mantissa_bits, last = 0x7fff >> f->mantissa_bits;
    const double sign = h & 0x8000 ? -1 : 1;
    if (exponent == last)
        return mantissa == 0 ? sign * HUGE_VAL : (double)NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - f->bias - f->mantissa_bits);
    return sign * ldexp(mantissa + (1 << f->mantissa_bits), exponent - f->bias - f->mantissa_bits);
}

/* The value that x rounds to in the format. */
static double rounded(const half_format *f, double x)
{
    if (isnan(x) || isinf(x) || x == 0)
        return x;
    const int smallest = 1 - f->bias;
    const int exponent = ilogb(x) > smallest ? ilogb(x) : smallest;
    const double unit = ldexp(1, exponent - f->mantissa_bits);
    const double y = nearbyint(x / unit) * unit;
    return fabs(y) >= ldexp(1, f->bias + 1) ? copysign(HUGE_VAL, y) : y;
}

static bool same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

START_TEST(test_half_to_f32_every_value)
{
    const half_format *f = &formats[_i];
    for (int h = 0; h < 65536; h++)
        if (!same(f->to((uint16_t)h), decode(f, (uint16_t)h)))
            ck_abort_msg("%s %04x gave %a", dt_dtype_name(f->dtype), (unsigned)h,
                         (double)f->to((uint16_t)h));
}
END_TEST

/* All upper halves of a float with the lower halves around ties of both formats. */
START_TEST(test_f32_to_half)
{
    const half_format *f = &formats[_i];
    static const uint32_t low[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000,
                                   0x5001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff};
    for (uint32_t high = 0; high < 65536; high++)
        for (int i = 0; i < DT_COUNT(low); i++) {
            const float x = dt_float_from_bits(high << 16 | low[i]);
            const double got = decode(f, f->from(x));
            if (!same(got, rounded(f, (double)x)))
                ck_abort_msg("%s of %a gave %a", dt_dtype_name(f->dtype), (double)x, got);
        }
}
END_TEST

/* One element of any dtype as a long double, which holds all of them exactly, and back by our
 * rules. */
static long double get(dt_dtype dtype, const void *p, int64_t i)
{
    switch (dtype) {
    case DT_F32: return (long double)((const float *)p)[i];
    case DT_BF16: return (long double)decode(&formats[0], ((const uint16_t *)p)[i]);
    case DT_F16: return (long double)decode(&formats[1], ((const uint16_t *)p)[i]);
    case DT_F64: return (long double)((const double *)p)[i];
    case DT_I32: return (long double)((const int32_t *)p)[i];
    case DT_I64: return (long double)((const int64_t *)p)[i];
    case DT_U8: return (long double)((const uint8_t *)p)[i];
    case DT_NDTYPES: break;
    }
    return 0;
}

static long double saturated(long double x, long double lo, long double hi)
{
    if (isnan(x))
        return 0;
    return x < lo ? lo : x > hi ? hi : truncl(x);
}

static long double expected(dt_dtype to, dt_dtype from, long double x)
{
    const bool wrap = !dt_dtype_is_float(from);
    switch (to) {
    case DT_F32: return (long double)(float)x;
    case DT_BF16: return (long double)rounded(&formats[0], (double)(float)x);
    case DT_F16: return (long double)rounded(&formats[1], (double)(float)x);
    case DT_F64: return (long double)(double)x;
    case DT_I32:
        return wrap ? (long double)(int32_t)(int64_t)x : saturated(x, INT32_MIN, INT32_MAX);
    case DT_I64: return wrap ? x : saturated(x, (long double)INT64_MIN, (long double)INT64_MAX);
    case DT_U8: return wrap ? (long double)(uint8_t)(int64_t)x : saturated(x, 0, 255);
    case DT_NDTYPES: break;
    }
    return 0;
}

enum { EDGES = 40, COUNT = 70001 }; /* enough for threads, and not a multiple of anything */

/* Edge values first, then values of all magnitudes. */
static void fill_source(dt_dtype dtype, void *p)
{
    static const double edge[EDGES] = {0.0,
                                       -0.0,
                                       1,
                                       -1,
                                       0.5,
                                       1.5,
                                       2.5,
                                       -0.99,
                                       254.9,
                                       255.0,
                                       255.9,
                                       256,
                                       300,
                                       -3,
                                       65504,
                                       65519,
                                       65520,
                                       1e38,
                                       3.4e38,
                                       3.5e38,
                                       -3.5e38,
                                       1e-8,
                                       6e-8,
                                       3e-8,
                                       1e-40,
                                       1e-45,
                                       1e300,
                                       -1e300,
                                       2147483647.0,
                                       2147483648.0,
                                       -2147483648.0,
                                       -2147483649.0,
                                       4294967296.0,
                                       9.2e18,
                                       9.3e18,
                                       -9.3e18,
                                       16777217.0,
                                       HUGE_VAL,
                                       -HUGE_VAL,
                                       (double)NAN};
    for (int64_t i = 0; i < COUNT; i++) {
        const double random = ldexp(sin((double)i * 1.7), (int)(i * 7 % 150) - 75);
        const double x = i < EDGES ? edge[i] : random;
        const int64_t bits = (int64_t)((uint64_t)i * 0x9e3779b97f4a7c15u) >> (i % 60);
        switch (dtype) {
        case DT_F32: ((float *)p)[i] = (float)x; break;
        case DT_BF16: ((uint16_t *)p)[i] = dt_f32_to_bf16((float)x); break;
        case DT_F16: ((uint16_t *)p)[i] = dt_f32_to_f16((float)x); break;
        case DT_F64: ((double *)p)[i] = x; break;
        case DT_I32: ((int32_t *)p)[i] = (int32_t)bits; break;
        case DT_I64: ((int64_t *)p)[i] = bits; break;
        case DT_U8: ((uint8_t *)p)[i] = (uint8_t)bits; break;
        case DT_NDTYPES: break;
        }
    }
}

START_TEST(test_cast_pairs)
{
    const dt_dtype from = (dt_dtype)(_i / DT_NDTYPES), to = (dt_dtype)(_i % DT_NDTYPES);
    dt_heap *heap = NULL;
    ck_ok(dt_heap_create((dt_device){DT_CPU, 0}, NULL, &heap));
    dt_array src = {0}, dst = {0};
    ck_ok(dt_array_create(heap, from, DT_SHAPE(COUNT), DT_TAG_WORKSPACE, &src));
    ck_ok(dt_array_create(heap, to, DT_SHAPE(COUNT), DT_TAG_WORKSPACE, &dst));
    fill_source(from, dt_array_data(&src));
    dt_array_cast(&dst, &src);
    for (int64_t i = 0; i < COUNT; i++) {
        const long double x = get(from, dt_array_data(&src), i),
                          got = get(to, dt_array_data(&dst), i);
        const long double want = from == to ? x : expected(to, from, x);
        if (isnan(want) ? !isnan(got) : got != want)
            ck_abort_msg("%s to %s: %Lg gave %Lg, want %Lg", dt_dtype_name(from), dt_dtype_name(to),
                         x, got, want);
    }
    dt_array_release(&src);
    dt_array_release(&dst);
    dt_heap_destroy(&heap);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cast");
    TCase *tc = tcase_create("cast");
    tcase_set_timeout(tc, 100);
    suite_add_tcase(suite, tc);
    tcase_add_loop_test(tc, test_half_to_f32_every_value, 0, DT_COUNT(formats));
    tcase_add_loop_test(tc, test_f32_to_half, 0, DT_COUNT(formats));
    tcase_add_loop_test(tc, test_cast_pairs, 0, DT_NDTYPES * DT_NDTYPES);
    return test_main(suite);
}
