/* optim/schedule.c - the learning rate of a step. Read first: optim/dt_optim.h.
 *
 *     lr
 *      |    ________________________
 *      |   /                        \        WSD: warmup, stable, decay
 *      |  /                          \_
 *      | /                             lo
 *      +----------------------------------- s
 *       0  warmup     total - decay   total
 *
 * With p running from 0, at the first step of decay, to 1, at step `total`, which is never trained:
 *     linear, wsd   lo + (1 - p) (lr - lo)
 *     cosine        lo + 0.5 (1 + cos(pi p)) (lr - lo)
 * linear and cosine decay from the end of warmup on, WSD over the last decay_steps.
 *
 * torchtitan's factors are the same (its "virtual last step" is `total`). It differs in that its
 * decay length is a ratio for all kinds, that it also has a square-root form, and that a warmup
 * longer than the run is shortened, where ours keeps its slope and the run ends within it. */
#include "optim/dt_optim.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static const char *const decay_name[] = {
    [DT_DECAY_NONE] = "none",
    [DT_DECAY_LINEAR] = "linear",
    [DT_DECAY_COSINE] = "cosine",
    [DT_DECAY_WSD] = "wsd",
};

dt_status dt_decay_parse(const char *text, dt_decay_kind *kind_out)
{
    for (int k = 0; k < DT_COUNT(decay_name); k++) {
        if (strcasecmp(text, decay_name[k]) == 0) {
            *kind_out = (dt_decay_kind)k;
            return DT_OK;
        }
    }
    return DT_ERROR(DT_ERR_ARG, "decay '%s': must be none, linear, cosine or wsd", text);
}

const char *dt_decay_name(dt_decay_kind kind)
{
    return decay_name[kind];
}

/* Steps of decay, at the end of the run. */
static int64_t decay_length(const dt_schedule *s)
{
    const int64_t left = s->total_steps > s->warmup_steps ? s->total_steps - s->warmup_steps : 0;
    if (s->decay != DT_DECAY_WSD)
        return left;
    const int64_t tenth = s->total_steps / 10 > 0 ? s->total_steps / 10 : 1;
    const int64_t wanted = s->decay_steps > 0 ? s->decay_steps : tenth;
    return wanted < left ? wanted : left;
}

double dt_schedule_lr(const dt_schedule *s, int64_t step)
{
    if (step < s->warmup_steps)
        return s->lr * (double)(step + 1) / (double)s->warmup_steps;
    const int64_t length = decay_length(s), done = step - (s->total_steps - length);
    if (s->decay == DT_DECAY_NONE || done < 0)
        return s->lr;
    const double p = done < length ? (double)done / (double)length : 1.0;
    const double lo = s->lr * s->min_ratio;
    if (s->decay == DT_DECAY_COSINE)
        return lo + 0.5 * (1 + cos(M_PI * p)) * (s->lr - lo);
    return lo + (1 - p) * (s->lr - lo);
}
