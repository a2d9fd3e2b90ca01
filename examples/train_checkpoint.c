/* examples/train_checkpoint.c - see examples/train_checkpoint.h. */
#include "examples/train_checkpoint.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* What signals asked for; ranks that are threads share it, and one of them sees it. */
static atomic_bool wants_save, wants_stop;

static void on_signal(int number)
{
    atomic_store(number == SIGTERM ? &wants_stop : &wants_save, true);
}

static void listen_to_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGUSR1, &action, NULL);
}

/* ---- going on ---- */

static void say(void *arg, const char *line)
{
    (void)arg;
    (void)printf("%s\n", line);
}

static bool same_schedule(const dt_schedule *a, const dt_schedule *b)
{
    return fabs(a->lr - b->lr) <= 0 && a->warmup_steps == b->warmup_steps &&
           a->total_steps == b->total_steps && a->decay == b->decay &&
           fabs(a->min_ratio - b->min_ratio) <= 0 && a->decay_steps == b->decay_steps;
}

static dt_status take(const train_config *c, train_session *s, const dt_checkpoint_state *state)
{
    const int64_t length = dt_dataset_length(s->data);
    DT_REQUIRE(c->new_data || state->position <= length, DT_ERR_STATE,
               "%s: the next batch of step %lld starts at token %lld, data.path has %lld: is it "
               "other data?",
               c->checkpoint_dir, (long long)state->step, (long long)state->position,
               (long long)length);
    s->step = c->new_step ? 0 : state->step;
    s->position = c->new_data ? 0 : state->position;
    if (c->param_dtype == DT_F16 && state->scaler.interval > 0 && !c->new_optimizer)
        s->scaler = state->scaler;
    if (dt_world_rank(s->world) != 0)
        return DT_OK;
    (void)printf("going on after step %lld of %s%s%s\n", (long long)state->step, c->checkpoint_dir,
                 c->checkpoint_exclude ? ", without its " : "",
                 c->checkpoint_exclude ? c->checkpoint_exclude : "");
    if (state->seed != c->seed)
        (void)printf("train.seed is %llu; it was %llu when this step was saved\n",
                     (unsigned long long)c->seed, (unsigned long long)state->seed);
    if (!same_schedule(&state->schedule, &c->schedule))
        (void)printf("the schedule of learning rates is another than when this step was saved\n");
    return DT_OK;
}

static dt_status resume(const train_config *c, train_session *s, dt_checkpoint *steps)
{
    dt_checkpoint_state state;
    bool found = false;
    int64_t there = 0;
    if (!c->checkpoint_resume) {
        DT_TRY(dt_checkpoint_count(steps, &there));
        DT_REQUIRE(there == 0, DT_ERR_STATE,
                   "checkpoint.resume=false, but %s has %lld steps of another run; give another "
                   "checkpoint.dir, remove them, or make it true",
                   c->checkpoint_dir, (long long)there);
        return DT_OK;
    }
    DT_TRY(dt_checkpoint_load(steps, c->checkpoint_step, s->model,
                              c->new_optimizer ? NULL : s->optim, &state, &found));
    if (found)
        DT_TRY(take(c, s, &state));
    return DT_OK;
}

dt_status train_saver_open(const train_config *c, train_session *s, train_saver *saver_out)
{
    *saver_out = (train_saver){0};
    if (!c->checkpoint_dir)
        return DT_OK;
    listen_to_signals();
    dt_checkpoint_options options = c->checkpoint;
    options.config_path = c->model_config;
    options.say = say;
    DT_TRY(dt_checkpoint_open(s->world, c->checkpoint_dir, &options, &saver_out->steps));
    DT_TRY(resume(c, s, saver_out->steps));
    return DT_OK;
}

/* ---- saving ---- */

static dt_status save(const train_config *c, train_session *s, train_saver *saver)
{
    const dt_checkpoint_state state = {.step = s->step,
                                       .position = s->position,
                                       .seed = c->seed,
                                       .scaler = s->scaler,
                                       .schedule = c->schedule,
                                       .mesh = s->whole};
    DT_TRY(dt_checkpoint_save(saver->steps, s->model, c->checkpoint_model_only ? NULL : s->optim,
                              &state));
    return DT_OK;
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

dt_status train_saver_step(const train_config *c, train_session *s, train_saver *saver,
                           bool *stop_out)
{
    bool busy = false;
    *stop_out = false;
    if (!saver->steps)
        return DT_OK;
    const double since_s = now_s();
    /* any rank's signal is every rank's */
    int64_t asked[2] = {atomic_exchange(&wants_save, false), atomic_load(&wants_stop)};
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(s->world), asked, 2, DT_REDUCE_MAX));
    const bool due = c->checkpoint_every > 0 && s->step % c->checkpoint_every == 0;
    if (due || s->step == c->steps || asked[0] || asked[1])
        DT_TRY(save(c, s, saver));
    else
        DT_TRY(dt_checkpoint_poll(saver->steps, &busy));
    *stop_out = asked[1] != 0;
    saver->spent_s = now_s() - since_s;
    return DT_OK;
}

dt_status train_saver_finish(train_saver *saver)
{
    if (saver->steps)
        DT_TRY(dt_checkpoint_wait(saver->steps));
    return DT_OK;
}

void train_saver_close(train_saver *saver)
{
    dt_checkpoint_close(&saver->steps);
}
