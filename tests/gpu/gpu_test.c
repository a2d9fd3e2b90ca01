/* tests/gpu/gpu_test.c - see tests/gpu/gpu_test.h. */
#include "tests/gpu/gpu_test.h"

#include "array/array_internal.h"
#include "base/dt_random.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 256, GUARD = 64, SEEN = 1 << 16, TEXT = 256, HEAP_BYTES = 64 << 20 };

const dt_dtype gpu_float[GPU_FLOATS] = {DT_F32, DT_BF16, DT_F16, DT_F64};

static dt_heap *heap;
static gpu_pair pairs[PAIRS];
static int npairs, shift, made;
static uint64_t drawn; /* random numbers so far */
/* Hash of what a text stands for, and of the bits that came out: zeros are free places. */
static struct {
    uint64_t text, bits;
} seen[SEEN];

/* Of the simulated device only. */
extern void sim_set_order(int order) __attribute__((weak));

void gpu_end(void)
{
    for (int i = 0; i < npairs; i++) {
        dt_array_release(&pairs[i].array);
        free(pairs[i].cpu);
    }
    npairs = 0;
}

void gpu_begin(int order)
{
    gpu_end();
    shift = 0;
    drawn = 0;
    if (sim_set_order)
        sim_set_order(order);
}

dt_heap *gpu_heap(void)
{
    return heap;
}

void gpu_shift(int elements)
{
    shift = elements;
    made = 0;
}

static void *room(dt_dtype dtype, int64_t n)
{
    void *p = malloc((size_t)(n > 0 ? n : 1) * dt_dtype_size(dtype));
    ck_assert(p != NULL);
    return p;
}

gpu_pair gpu_values(dt_dtype dtype, int64_t n, const void *host)
{
    const bool half = dtype == DT_BF16 || dtype == DT_F16;
    const int64_t guard = GUARD / (int64_t)dt_dtype_size(dtype);
    const int64_t first = guard + (shift < 0 ? made == -1 - shift : shift), all = first + n + guard;
    gpu_pair x = {.dtype = dtype, .wide = half ? DT_F32 : dtype, .n = n, .first = first};
    made++;
    ck_assert(npairs < PAIRS);
    x.cpu = room(x.wide, n);
    if (n > 0)
        dti_cast(x.wide, x.cpu, dtype, host, n);
    void *bytes = room(dtype, all);
    memset(bytes, 0xa5, (size_t)all * dt_dtype_size(dtype));
    if (n > 0)
        memcpy(dti_at(dtype, bytes, x.first), host, (size_t)n * dt_dtype_size(dtype));
    ck_ok(dt_array_create(heap, dtype, DT_SHAPE(all), DT_TAG_WORKSPACE, &x.array));
    ck_ok(dt_array_write(&x.array, bytes, all));
    free(bytes);
    x.gpu = n > 0 ? dti_at(dtype, dt_array_data(&x.array), x.first) : NULL;
    pairs[npairs++] = x;
    return x;
}

gpu_pair gpu_random(dt_dtype dtype, int64_t n, double lo, double hi)
{
    double *value = room(DT_F64, n);
    void *host = room(dtype, n);
    for (int64_t i = 0; i < n; i++)
        value[i] = lo + (hi - lo) * (double)dt_uniform((dt_key){{1, 2}}, drawn++);
    dti_cast(dtype, host, DT_F64, value, n);
    const gpu_pair x = gpu_values(dtype, n, host);
    free(host);
    free(value);
    return x;
}

gpu_pair gpu_output(dt_dtype dtype, int64_t n)
{
    void *host = room(dtype, n);
    memset(host, 0xff, (size_t)n * dt_dtype_size(dtype));
    const gpu_pair x = gpu_values(dtype, n, host);
    free(host);
    return x;
}

/* ---- comparisons ---- */

static uint64_t hash(uint64_t h, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return h;
}

/* The device's elements, to be freed; guards and equal bits for equal texts are asserted. */
static void *take(const gpu_pair *x, const char *text)
{
    const size_t size = dt_dtype_size(x->dtype), bytes = (size_t)x->n * size;
    const int64_t all = dt_array_count(&x->array);
    unsigned char *host = room(x->dtype, all);
    ck_ok(dt_array_read(&x->array, host, all));
    const size_t first = (size_t)x->first * size;
    for (size_t i = 0; i < (size_t)all * size; i++)
        if ((i < first || i >= first + bytes) && host[i] != 0xa5)
            ck_abort_msg("%s: byte %lld, of an array of %zu bytes, was changed", text,
                         (long long)i - (long long)first, bytes);
    memmove(host, host + first, bytes);

    const uint64_t key = hash(hash(1, text, strlen(text)), &x->dtype, sizeof x->dtype);
    const uint64_t bits = hash(1, host, bytes);
    size_t at = key % SEEN, tries = 0;
    while (seen[at].text != key && seen[at].text != 0 && tries++ < SEEN)
        at = (at + 1) % SEEN;
    ck_assert_msg(tries < SEEN, "more than %d texts", SEEN);
    ck_assert_msg(seen[at].text == 0 || seen[at].bits == bits,
                  "%s: other bits than the last time (another order, or a text given twice)", text);
    seen[at].text = key;
    seen[at].bits = bits;
    return host;
}

static void print(char text[TEXT], const gpu_pair *x, const char *format, va_list args)
{
    const int n = snprintf(text, TEXT, "%s: ", dt_dtype_name(x->dtype));
    (void)vsnprintf(text + n, (size_t)(TEXT - n), format, args);
}

static double last_place(dt_dtype dtype, double x)
{
    const int bits = dtype == DT_BF16 ? 7 : 10, smallest = dtype == DT_BF16 ? -126 : -14;
    int exponent = 0;
    (void)frexp(x, &exponent);
    exponent = x != 0 && exponent - 1 > smallest ? exponent - 1 : smallest;
    return ldexp(1, exponent - bits);
}

static double limit_of(const gpu_pair *x, double want, double largest, double partial)
{
    switch ((int)x->dtype) {
    case DT_F64: return 1e-12 * largest;
    case DT_F32: return 1e-5 * largest;
    case DT_BF16:
    case DT_F16:
        return 1e-5 * largest + 0.501 * last_place(x->dtype, want) +
               (partial > 0 ? 2 * last_place(x->dtype, partial) : 0);
    default: return 0;
    }
}

static double *as_f64(dt_dtype dtype, const void *from, int64_t n)
{
    double *to = room(DT_F64, n);
    dti_cast(DT_F64, to, dtype, from, n);
    return to;
}

/* Equal, also as infinities and NaN, or as close as `limit`. */
static bool near(double a, double b, double limit)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= limit;
}

static double largest_of(const double *x, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) > largest)
            largest = fabs(x[i]);
    return largest;
}

void gpu_same(const gpu_pair *x, double partial, const char *format, ...)
{
    char text[TEXT];
    va_list args;
    va_start(args, format);
    print(text, x, format, args);
    va_end(args);
    void *host = take(x, text);
    double *got = as_f64(x->dtype, host, x->n), *want = as_f64(x->wide, x->cpu, x->n);
    const double largest = largest_of(want, x->n);
    for (int64_t i = 0; i < x->n; i++) {
        const double limit = limit_of(x, want[i], largest, partial);
        if (!near(got[i], want[i], limit))
            ck_abort_msg("%s: element %lld of %lld is %.9g, on the cpu %.9g: %g apart, limit %g",
                         text, (long long)i, (long long)x->n, got[i], want[i],
                         fabs(got[i] - want[i]), limit);
    }
    free(got);
    free(want);
    free(host);
}

void gpu_bits(const gpu_pair *x, const void *want, const char *format, ...)
{
    char text[TEXT];
    va_list args;
    va_start(args, format);
    print(text, x, format, args);
    va_end(args);
    unsigned char *host = take(x, text);
    const size_t size = dt_dtype_size(x->dtype);
    double *got = as_f64(x->dtype, host, x->n), *expected = as_f64(x->dtype, want, x->n);
    for (int64_t i = 0; i < x->n; i++) {
        const size_t at = (size_t)i * size;
        if (memcmp(host + at, (const char *)want + at, size) != 0 &&
            !(isnan(got[i]) && isnan(expected[i])))
            ck_abort_msg("%s: element %lld of %lld is %.17g, should be %.17g, bit for bit", text,
                         (long long)i, (long long)x->n, got[i], expected[i]);
    }
    free(got);
    free(expected);
    free(host);
}

int gpu_main(Suite *suite)
{
    if (dt_heap_create((dt_device){DT_CUDA, 0}, &(dt_heap_options){.reserve_bytes = HEAP_BYTES},
                       &heap) != DT_OK) {
        const bool none = dt_device_count(DT_CUDA) == 0;
        printf("%s: %s", none ? "SKIPPED gpu" : "no heap", dt_error_trace());
        srunner_free(srunner_create(suite));
        return none ? 77 : 1;
    }
    const int failed = test_main(suite);
    gpu_end();
    dt_heap_destroy(&heap);
    return failed;
}
