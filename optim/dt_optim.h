/* optim/dt_optim.h - AdamW on local shards, the global norm, and learning-rate schedules. */
#pragma once

#include "nn/dt_module.h"

typedef struct dt_optim dt_optim;

/* Zeros mean the defaults in brackets. */
typedef struct dt_adamw_options {
    double beta1, beta2; /* [0.9], [0.95] */
    double eps;          /* [1e-8] */
    double weight_decay; /* on parameters of two or more file dims; 0: none */
    dt_store *store;     /* where moments and masters rest between steps; NULL: in memory */
} dt_adamw_options;

/* dt_adamw_create - first and second moments in f32, placed as the parameters; an f32 master copy
 * where a parameter is bf16 or f16. (An f64 parameter has f64 moments.) Frozen parameters are left
 * out. Call after materialize and load; the model is borrowed.
 * Source: Loshchilov and Hutter 2019, decoupled weight decay.
 * Errors: DT_ERR_ARG for options out of range, DT_ERR_STATE before materialize, DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_adamw_create(dt_module *model, const dt_adamw_options *options,
                                       dt_optim **optim_out);
void dt_optim_destroy(dt_optim **optim); /* accepts NULL inside */
/* dt_optim_step - one pass over the local shards:
 *     g = grad_scale * gradient;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *     w = w - lr*wd*w - lr * (m / (1-b1^k)) / (sqrt(v / (1-b2^k)) + eps)
 * where k counts the steps so far, this one included.
 * Gradients must be at home (dt_module_reduce_grads); a parameter without one is an error that
 * names it, and nothing has changed then. No communication.
 * What rests in a file (options.store, dt_param.store) is in memory one parameter at a time, while
 * that of the next is read. DT_ERR_IO for what happens to that file leaves the step half done. */
DT_NODISCARD dt_status dt_optim_step(dt_optim *optim, double lr, double grad_scale);
int64_t dt_optim_steps(const dt_optim *optim);
void dt_optim_set_steps(dt_optim *optim, int64_t steps);
/* State of one parameter, for checkpoints: exp_avg, exp_avg_sq, master (no storage where the
 * parameter itself is enough). Bytes that rest elsewhere: dt_storage_open. */
typedef struct dt_optim_state {
    dt_param *param;
    dt_array exp_avg, exp_avg_sq, master;
} dt_optim_state;
dt_optim_state *dt_optim_states(dt_optim *optim, int *n_out);

/* dt_global_norm_sync - L2 norm over all elements of n tensors, each element once however it is
 * placed (R counts once; P is an error). Sums in f64, in blocks whose bounds depend on the local
 * size alone.
 *   in   locals   local parts, on any mix of meshes whose ranks are members of comm; the same n
 *                 everywhere. A rank that has no part in a tensor (another pipeline stage's) gives
 *                 layout NULL. A tensor that stands once on each of several meshes is given on one
 *                 of them only.
 *        comm     all ranks that together hold the tensors
 *   out  norm_out; each_out (may be NULL): one norm a tensor
 * Collective: comm, one all-reduce of n numbers.   Blocks: yes. */
DT_NODISCARD dt_status dt_global_norm_sync(int n, const dt_local *locals, dt_comm *comm,
                                           double *norm_out, double *each_out);
/* dt_global_norm_of_order_sync - the same of any order > 0: (sum of |x|^order)^(1/order); INFINITY:
 * the largest |x|, NaN if there is one. Errors: DT_ERR_ARG for another order. */
DT_NODISCARD dt_status dt_global_norm_of_order_sync(double order, int n, const dt_local *locals,
                                                    dt_comm *comm, double *norm_out,
                                                    double *each_out);
/* min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0, NaN of a norm that is NaN. */
double dt_clip_factor(double norm, double max_norm);

/* ---- schedules ---- */

typedef enum dt_decay_kind {
    DT_DECAY_NONE,
    DT_DECAY_LINEAR,
    DT_DECAY_COSINE,
    DT_DECAY_WSD
} dt_decay_kind;

typedef struct dt_schedule {
    double lr; /* peak */
    int64_t warmup_steps, total_steps;
    dt_decay_kind decay;
    double min_ratio;    /* decay ends at min_ratio * lr and never goes below */
    int64_t decay_steps; /* WSD: the last so many steps; 0: a tenth of the total; at most what
                            warmup leaves */
} dt_schedule;

/* Learning rate of step s, counted from 0: lr * (s+1) / warmup while s < warmup; then by kind.
 * Formulas in schedule.c; cosine is lo + 0.5 (1 + cos(pi (s - warmup) / (total - warmup))) (lr -
 * lo), lo = lr * min_ratio. */
double dt_schedule_lr(const dt_schedule *schedule, int64_t step);
/* From "none", "linear", "cosine", "wsd", in any case. Errors: DT_ERR_ARG lists them. */
DT_NODISCARD dt_status dt_decay_parse(const char *text, dt_decay_kind *kind_out);
const char *dt_decay_name(dt_decay_kind kind);
