/* metrics/flops.c - model FLOPs utilisation: what the model's mathematics needs, over what the
 * devices could do. */
#include "array/dt_kernels.h"
#include "array/dt_matmul.h"
#include "metrics/dt_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Elements of look-up tables below m that are nothing else. */
static int64_t table_elements(dt_module *m)
{
    int64_t count = 0;
    dt_param *weight = dt_module_param(m, "weight");
    if (weight && weight->users == 1 && strcmp(dt_module_kind_name(m), "embedding") == 0)
        count += dt_shape_count(weight->shape);
    for (int i = 0; i < dt_module_nchildren(m); i++)
        count += table_elements(dt_module_child(m, i));
    return count;
}

int64_t dt_flops_matmul_params(dt_module *model)
{
    int n = 0;
    int64_t count = 0;
    dt_param *const *p = dt_module_params(model, &n);
    for (int i = 0; i < n; i++)
        count += p[i]->file_shape.ndim >= 2 ? dt_shape_count(p[i]->shape) : 0;
    return count - table_elements(model);
}

double dt_flops_per_token(const dt_flops *f)
{
    const double attention = (double)f->layers * (double)f->heads * (double)f->head_dim * 2 *
                             (double)f->seq_len; /* q k and p v */
    return 6 * (double)f->matmul_params + 6 * attention;
}

double dt_flops_mfu(const dt_flops *flops, double tokens_per_s, double peak_flops)
{
    return peak_flops > 0 ? dt_flops_per_token(flops) * tokens_per_s / peak_flops : 0;
}

const char *dt_flops_print(const dt_flops *f, double peak_flops, char *buf, size_t size_bytes)
{
    static const char *const prefix[] = {"", "k", "M", "G", "T", "P", "E"};
    double count[2] = {dt_flops_per_token(f), peak_flops};
    int power[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        for (; count[i] >= 999.95 && power[i] + 1 < DT_COUNT(prefix); power[i]++)
            count[i] /= 1000;
    }
    (void)snprintf(buf, size_bytes,
                   "mfu = tokens/s x FLOP/token / peak, %.1f %sFLOP/token, peak %.1f %sFLOP/s",
                   count[0], prefix[power[0]], count[1], prefix[power[1]]);
    return buf;
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* FLOP/s of the best of WINDOWS spells, after one product that does not count. A spell is long
 * enough that ranks which share a core have all had their turns; the best one is that with the
 * least going on besides. */
static dt_status measure(double *flops_out)
{
    enum { SIZE = 512, WINDOWS = 8 };
    const double window_s = 0.025;
    float *abc = malloc(sizeof *abc * SIZE * SIZE * 3);
    DT_REQUIRE(abc, DT_ERR_NOMEM, "measuring the peak");
    for (int i = 0; i < SIZE * SIZE * 2; i++)
        abc[i] = (float)(i % 7) - 3;
    const dt_matmul_args args = {.dtype = DT_F32,
                                 .dtype_c = DT_F32,
                                 .batch = 1,
                                 .m = SIZE,
                                 .n = SIZE,
                                 .k = SIZE,
                                 .a = abc,
                                 .b = abc + SIZE * SIZE,
                                 .c = abc + SIZE * SIZE * 2,
                                 .alpha = 1};
    dt_status st = dt_matmul_run(&args);
    double best = 0; /* products a second */
    for (int window = 0; window < WINDOWS; window++) {
        const double start = now();
        double took_s = 0, runs = 0;
        for (; st == DT_OK && took_s < window_s; runs++) {
            st = dt_matmul_run(&args);
            took_s = now() - start;
        }
        best = took_s > 0 && runs / took_s > best ? runs / took_s : best;
    }
    free(abc);
    *flops_out = 2.0 * SIZE * SIZE * SIZE * best;
    return st;
}

dt_status dt_peak_flops_sync(dt_comm *comm, double per_rank, double *peak_out)
{
    if (per_rank > 0) {
        *peak_out = per_rank * dt_comm_size(comm);
        return DT_OK;
    }
    double start = 0, peak = 0;
    DT_TRY(dt_all_reduce_f64_sync(comm, &start, 1, DT_REDUCE_SUM)); /* all start together */
    DT_TRY(measure(&peak));
    DT_TRY(dt_all_reduce_f64_sync(comm, &peak, 1, DT_REDUCE_SUM));
    *peak_out = peak;
    return DT_OK;
}
