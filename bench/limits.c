/* bench/limits.c - see bench/limits.h. */
#include "bench/limits.h"

#include "array/dt_kernels.h"
#include "array/dt_matmul.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 1024, COLS = 4096, DEPTH = 1024, COPY_BYTES = 128 << 20 };

double limits_now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

dt_status limits_create(dt_dtype dtype, limits *out)
{
    limits l = {.dtype = dtype};
    const size_t size = dt_dtype_size(dtype);
    l.a = calloc(ROWS * DEPTH, size);
    l.b = calloc(DEPTH * COLS, size);
    l.c = calloc(ROWS * COLS, size);
    l.from = malloc(COPY_BYTES);
    l.to = malloc(COPY_BYTES);
    *out = l;
    DT_REQUIRE(l.a && l.b && l.c && l.from && l.to, DT_ERR_NOMEM, "room for probes");
    memset(l.from, 1, COPY_BYTES);
    memset(l.to, 1, COPY_BYTES);
    return DT_OK;
}

void limits_destroy(limits *l)
{
    free(l->a);
    free(l->b);
    free(l->c);
    free(l->from);
    free(l->to);
    *l = (limits){0};
}

static void copy_range(void *arg, int64_t lo, int64_t hi)
{
    const limits *l = arg;
    memcpy(l->to + lo, l->from + lo, (size_t)(hi - lo));
}

dt_status limits_probe(limits *l)
{
    for (int i = 0; i < 3; i++) {
        double start_s = limits_now_s();
        DT_TRY(dt_matmul_run(&(dt_matmul_args){.dtype = l->dtype,
                                               .dtype_c = l->dtype,
                                               .trans_b = true,
                                               .batch = 1,
                                               .m = ROWS,
                                               .n = COLS,
                                               .k = DEPTH,
                                               .a = l->a,
                                               .b = l->b,
                                               .c = l->c,
                                               .alpha = 1}));
        const double flops_per_s = 2.0 * ROWS * COLS * DEPTH / (limits_now_s() - start_s);
        start_s = limits_now_s();
        dt_parallel_range(COPY_BYTES, 1, copy_range, l);
        const double bytes_per_s = 2.0 * COPY_BYTES / (limits_now_s() - start_s);
        l->flops_per_s = flops_per_s > l->flops_per_s ? flops_per_s : l->flops_per_s;
        l->bytes_per_s = bytes_per_s > l->bytes_per_s ? bytes_per_s : l->bytes_per_s;
    }
    return DT_OK;
}

dt_status limits_check_cores(int threads)
{
    cpu_set_t cores;
    const int known = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : threads;
    DT_REQUIRE(known >= threads, DT_ERR_STATE,
               "this process may run on %d cores only, too few for %d threads: start it unbound",
               known, threads);
    return DT_OK;
}
