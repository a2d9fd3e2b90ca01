/* examples/train_report.h - what examples/train.c tells: the step line, log.json, the loss
 * curve, the trace. Rank 0 writes; all functions but _close are collective. */
#pragma once

#include "examples/train_watch.h"

typedef struct train_report {
    bool writes;
    dt_metrics_log *json;
    dt_flops flops;
    double peak_flops;
    int64_t first; /* steps finished before this run */
    double started_s, window_s; /* window: since the last line, evaluations left out */
    int64_t window_tokens, tokens;
    double hardware; /* FLOPs that run for one that the model needs; 0: not counted yet */
    train_watch watch;
    double *loss, *step; /* the curve */
    int64_t points;
    int64_t first_event;      /* of the step, in the trace */
    double *grad_norm, *norm; /* one a parameter, with log.params */
} train_report;

/* Every place that the run will write to, tried before any work is done and left as it was.
 * Errors: DT_ERR_IO; DT_ERR_ARG where it would overwrite what the run reads. */
dt_status train_report_check(const train_config *c, dt_world *world);
dt_status train_report_open(const train_config *c, train_session *s, train_report *r);
/* After a step; eval_loss NULL: no evaluation followed it. */
dt_status train_report_step(const train_config *c, train_session *s, const train_result *result,
                            const double *eval_loss, train_report *r);
/* The curve, the trace, the timeline. */
dt_status train_report_finish(const train_config *c, train_session *s, train_report *r);
void train_report_close(train_report *r);
/* Before the program ends, on the rank that writes. Errors: DT_ERR_IO for output that is lost. */
dt_status train_report_flush(void);

/* train_timeline.c: before a step, the place of its first event in the world's trace; and, with
 * log.timeline, the picture of the step that began there. Collective. */
int64_t train_timeline_begin(const train_config *c, train_session *s);
dt_status train_timeline_draw(const train_config *c, train_session *s, int64_t first_event);

/* Leave the time since then, in seconds of train_report_now, out of tokens per second. */
void train_report_skip(train_report *r, double since_s);
double train_report_now(void);
