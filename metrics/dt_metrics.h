/* metrics/dt_metrics.h - what a training program tells its user: the step line, JSON lines, model
 * FLOPs utilisation with its formula, exact memory, the loss curve as SVG and in the terminal.
 *
 * Nothing here communicates but dt_peak_flops_sync; give values that are already global. Read next:
 * examples/train.c. */
#pragma once

#include "nn/dt_module.h"

/* ---- one step ---- */

typedef struct dt_metrics {
    int64_t step, steps; /* the first step is 1; how many there will be */
    double loss;
    double grad_norm; /* before clipping */
    double lr;
    int64_t tokens; /* seen since training began, this step included */
    double tokens_per_s;
    double mfu;                /* below 1; 0: not known, left out of the line */
    double hfu;                /* the same of all products that ran, recomputed ones too */
    int64_t memory_peak_bytes; /* of the rank that needed most */
    int64_t comm_bytes;        /* payload of one rank in this step */
    bool evaluated;            /* eval_loss was computed after this step */
    double eval_loss;
    double left_s; /* time left; < 0: not known, left out of the line */
} dt_metrics;

typedef struct dt_param_metrics {
    const char *name;
    double grad_norm, norm; /* gradient before clipping, weight after the update */
} dt_param_metrics;

/* "step 12/100  loss 3.1234  norm 0.52  lr 1.0e-03  12.3k tok/s  mfu 4.1%  mem 120 MB  comm 3.2 MB
 * eta 0:42", without an mfu that is not below 100%: then the peak is too low. Where it is longer
 * than `columns` (0: any length) it goes without comm, then mem, lr, mfu, norm, and is cut at last.
 * Returns buf. */
enum { DT_METRICS_LINE = 256 };
const char *dt_metrics_line(const dt_metrics *m, int columns, char *buf, size_t size_bytes);

/* Seconds left when `done` of `total` steps took elapsed_s; -1 when done is 0. */
double dt_metrics_left(int64_t done, int64_t total, double elapsed_s);

/* "0:42", "1:02:03", "2d 03:04"; "999 B", "3.2 MB" (of 1000), "12.3k". Return buf. */
enum { DT_METRICS_TEXT = 32 };
const char *dt_metrics_time(double seconds, char buf[DT_METRICS_TEXT]);
const char *dt_metrics_bytes(int64_t bytes, char buf[DT_METRICS_TEXT]);
const char *dt_metrics_count(double count, char buf[DT_METRICS_TEXT]);

/* ---- JSON lines ---- */

/* A file with one object a step: step, loss, grad_norm, lr, tokens, tokens_per_s, mfu and hfu (0 ..
 * 1), memory_peak_bytes, comm_bytes; after an evaluation eval_loss; with parameters also params:
 * {name: {grad_norm, norm}}. 17 digits, so that numbers read back to the same bits; what is not
 * finite is null. One rank writes. */
typedef struct dt_metrics_log dt_metrics_log;

/* append: keep what is there (a resumed run). Errors: DT_ERR_IO. */
DT_NODISCARD dt_status dt_metrics_log_open(const char *path, bool append, dt_metrics_log **log_out);
/* Written and flushed as one line. Errors: DT_ERR_IO, DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_metrics_log_step(dt_metrics_log *log, const dt_metrics *m, int nparams,
                                           const dt_param_metrics *params);
void dt_metrics_log_close(dt_metrics_log **log); /* accepts NULL inside */

/* ---- model FLOPs utilisation ---- */

typedef struct dt_flops {
    int64_t matmul_params; /* dt_flops_matmul_params of the whole model */
    int64_t layers, heads, head_dim, seq_len;
} dt_flops;

/* Elements of the parameters that multiply activations: two or more file dims, embeddings only if
 * tied to the head. */
int64_t dt_flops_matmul_params(dt_module *model);
/* Forward and backward: 6 matmul_params + 6 layers heads head_dim 2 seq_len. Attention is counted
 * in full, not halved for the causal mask; recomputation is not counted.
 * Source: PaLM (Chowdhery et al. 2022), appendix B. */
double dt_flops_per_token(const dt_flops *flops);
/* Flops per token * tokens per second / peak FLOP/s of all ranks; 0 where peak is 0. */
double dt_flops_mfu(const dt_flops *flops, double tokens_per_s, double peak_flops);
/* "mfu = tokens/s x FLOP/token / peak, 6.9 MFLOP/token, peak 160.0 GFLOP/s". Returns buf. */
enum { DT_FLOPS_TEXT = 128 };
const char *dt_flops_print(const dt_flops *flops, double peak_flops, char *buf, size_t size_bytes);

/* dt_peak_flops_sync - FLOP/s of all ranks of comm together.
 *   in   per_rank   of one rank, as its maker says; 0: measured, all ranks at the same time, so
 *                   that ranks which share cores measure what they really get: the best of 8 spells
 *                   of 25 ms of f32 products
 * Collective: comm, two scalar all-reduces.   Blocks: yes, about 0.2 s when measuring. */
DT_NODISCARD dt_status dt_peak_flops_sync(dt_comm *comm, double per_rank, double *peak_out);

/* ---- spikes ---- */

/* The last values of a series; all-zero is a good start. */
enum { DT_SPIKE_WINDOW = 128, DT_SPIKE_LEAST = 16 };
typedef struct dt_spike {
    int64_t n;
    double value[DT_SPIKE_WINDOW];
} dt_spike;

/* How many standard deviations `value` is above the mean of the last DT_SPIKE_WINDOW before it; it
 * then is one of them. 0 while there are fewer than DT_SPIKE_LEAST. */
double dt_spike_score(dt_spike *spike, double value);

/* ---- TensorBoard ---- */

/* An event file of TensorBoard: scalars by tag and step. One rank writes. */
typedef struct dt_events dt_events;

/* A new file in a folder, which is made if it is not there. Errors: DT_ERR_IO. */
DT_NODISCARD dt_status dt_events_open(const char *folder, dt_events **events_out);
/* n values of a step, written and flushed. Tags of at most 200 bytes. Errors: DT_ERR_IO. */
DT_NODISCARD dt_status dt_events_scalars(dt_events *events, int64_t step, int n,
                                         const char *const *tags, const double *values);
void dt_events_close(dt_events **events); /* accepts NULL inside */

/* ---- memory ---- */

/* A line a tag that was used, and the total: live and peak bytes of a heap, exact. */
void dt_memory_print(const dt_heap *heap, void (*print)(void *arg, const char *line), void *arg);

/* ---- curves ---- */

typedef struct dt_curve {
    const char *title, *x_label, *y_label;
    int64_t n;
    const double *x, *y; /* x ascending; points that are not finite (or past 1e300) are left out */
} dt_curve;

/* A plot with axes, ticks and labels; one polyline; no scripts. Errors: DT_ERR_IO. */
DT_NODISCARD dt_status dt_curve_svg(const dt_curve *curve, const char *path);
/* The same in about 12 lines of text, 72 columns. */
void dt_curve_print(const dt_curve *curve, void (*print)(void *arg, const char *line), void *arg);
