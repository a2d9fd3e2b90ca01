/* optim/dt_scaler.h - a dynamic loss scale, for gradients in f16, whose smallest number is 6e-8.
 *
 *     dt_scaler s = dt_scaler_start();
 *     dt_backward(t, dt_scale(t, loss, s.scale));    gradients are scale times too large
 *     dt_global_norm_sync(..., &norm);    infinite or NaN on all ranks if it is on one
 *     dt_scaler_update(&s, norm, &factor, &apply);
 *     if (apply)
 *         dt_optim_step(optim, lr, factor * dt_clip_factor(norm * factor, max_norm));
 *
 * The scale is a power of two, so that scaling and its undoing round nothing. It halves when a
 * gradient overflows (that step is skipped) and doubles after `interval` good steps. A plain
 * value: save it with the state.
 * Whether a sum overflows f16 depends on how it is split over ranks: one layout may skip a step
 * that another takes, so that layouts give equal runs in f32 and bf16 only.
 * Source: Micikevicius et al. 2018, "Mixed precision training". */
#pragma once

#include "base/dt_types.h"

typedef struct dt_scaler {
    double scale;     /* of the next step */
    int64_t interval; /* good steps before it doubles */
    int64_t good;     /* since it last changed */
    int64_t skipped;  /* steps, in all */
} dt_scaler;

/* 2^16, doubling every 2000 steps. */
dt_scaler dt_scaler_start(void);
/* dt_scaler_update - after the gradients of a step, by their norm, which is the same on all ranks.
 *   out  factor_out   1 / scale: undoes it
 *        apply_out    false: the gradients overflowed; drop them
 * Errors: DT_ERR_STATE for an overflow at scale 1: it is not the scale's fault. */
DT_NODISCARD dt_status dt_scaler_update(dt_scaler *s, double norm, double *factor_out,
                                        bool *apply_out);
