/* examples/train_pipeline.h - what the files of a training run share. */
#pragma once

#include "examples/train_session.h"

/* ---- train_data.c ---- */

/* A global batch: where its first token is. */
typedef struct train_place {
    const dt_dataset *data;
    int64_t position;
} train_place;

/* Samples [lo, hi) of a batch as tensors; each rank reads only its own. */
typedef struct train_micro {
    dt_tensor *ids, *targets;
    dt_tensor *positions, *documents; /* NULL: no matter */
    dt_tensor *logits_or_loss;
} train_micro;

extern const char *const train_batch_layout; /* samples over data-parallel ranks */
dt_status train_data_open(train_session *s);
/* Are positions and attention within documents? */
bool train_has_documents(const train_session *s);
dt_status train_session_read(train_session *s, train_place at, int64_t lo, int64_t hi,
                             train_micro *m);
void train_micro_release(train_micro *m);
/* Targets that count, in the whole batch: the divisor of the loss. Collective. */
dt_status train_count_valid(train_session *s, train_place at, int64_t *valid_out);
/* Of the batch after this one. */
int64_t train_next_position(const train_session *s, train_place at);
/* Where an evaluation begins. */
train_place train_eval_place(const train_session *s);

/* ---- train_session.c ---- */

/* The model, meshes and stages of a run, with every layout; no weights yet. A session with config
 * and world, else zero, to destroy whatever happens. Collective. */
dt_status train_session_lay_out(train_session *s, dt_device device);
/* All microbatches of a batch: its loss and the targets that count. Collective. */
dt_status train_passes(train_session *s, train_place at, bool no_grad, double *loss,
                       int64_t *valid);
/* r->grad_norm, and r->param_grad_norm where it is wanted. Collective. */
dt_status train_gradient_norm(train_session *s, train_result *r);

/* ---- train_watch.c ---- */

/* Says why the step's loss or gradients are not finite, by doing it once more and looking at every
 * result. Collective; always fails, on all ranks alike. */
dt_status train_find_bad(train_session *s, const train_result *r);

/* ---- train_pipeline.c ---- */

/* Samples of one microbatch: micro_batch for every data-parallel rank, or all. */
int64_t train_microbatch(const train_config *c);

/* Cut the model into stages; s->model becomes those of this rank. tp: names of its axes. */
dt_status train_pipeline_cut(train_session *s, const char *tp);
/* All microbatches; adds this rank's terms of the loss. */
dt_status train_pipeline_passes(train_session *s, train_place at, bool no_grad, double *loss);
/* Of n samples, on every rank. */
dt_status train_pipeline_logits(train_session *s, train_place at, int64_t n, float *logits);
