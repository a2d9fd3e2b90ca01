/* examples/train_checkpoint.h - when a training run saves, and where it goes on. All functions but
 * _close are collective. */
#pragma once

#include "checkpoint/dt_checkpoint.h"
#include "examples/train_session.h"

typedef struct train_saver {
    dt_checkpoint *steps; /* NULL: without checkpoint.dir nothing is saved */
    double spent_s;       /* of the last train_saver_step, in saving */
} train_saver;

/* Open checkpoint.dir and go on from its newest good step, if there is one. From here on SIGTERM
 * and SIGUSR1 ask for a save.
 * Errors: DT_ERR_STATE for steps in it that are not to be used (checkpoint.resume=false). */
dt_status train_saver_open(const train_config *c, train_session *s, train_saver *saver_out);
/* After a step: save if it is due, or the last, or a signal asked. *stop_out: SIGTERM did. */
dt_status train_saver_step(const train_config *c, train_session *s, train_saver *saver,
                           bool *stop_out);
/* Finish what is in flight. */
dt_status train_saver_finish(train_saver *saver);
void train_saver_close(train_saver *saver);
