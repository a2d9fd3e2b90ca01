/* tests/pp/test_rehearsal.c - both halves of backward are rehearsed: what fails in the second one,
 * where the weights' gradients are, is an error on all ranks before anything moves; gradients that
 * are there stay. Forward and the first half: tests/pp/test_failure.c. */
#include "tests/pp/pipe.h"

#include <stdio.h>
#include <string.h>

typedef struct place {
    const int *trouble; /* the stage where it goes wrong */
    int stage;
} place;

static dt_status in_second_half(dt_tape *t, void *arg, dt_walk walk)
{
    (void)t;
    (void)arg;
    DT_REQUIRE(walk != DT_WALK_WEIGHT, DT_ERR_PLACEMENT, "these gradients do not add");
    return DT_OK;
}

static dt_values mark(dt_module *m, dt_tape *t, const dt_values *in, void *arg)
{
    const place *w = arg;
    (void)m;
    if (*w->trouble == w->stage)
        (void)dt_tape_mark_end(t, in_second_half, NULL, 1, in->value);
    return *in;
}

static dt_tensor *another_loss(void *arg, dt_tape *t, dt_tensor *y, dt_tensor *targets)
{
    const dt_cross_entropy_options o = {.valid = 1};
    (void)arg;
    return dt_cross_entropy(t, y, targets, &o);
}

static dt_status second_half_body(dt_world *world, void *arg)
{
    enum { MOST_STAGES = 4 };
    pipe p;
    place list[MOST_STAGES];
    int stage = 0;
    double loss = 0, none = 0;
    char where[60];
    DT_TRY(pipe_open(arg, world, &p));
    DT_TRY(pipe_run(&p, &loss));
    for (int i = 0; i < dt_pipeline_nstages(p.pipe); i++) {
        list[i] = (place){&stage, dt_pipeline_stage_number(p.pipe, i)};
        DT_TRY(dt_module_add_transform(dt_model_layer(dt_pipeline_stage(p.pipe, i), 0), NULL, mark,
                                       &list[i], NULL));
    }
    p.loss = another_loss; /* a pass of another kind */
    dt_world_reset_counts(world);
    for (; stage < p.plan->layers; stage++) {
        (void)snprintf(where, sizeof where, "before the first microbatch, stage %d:", stage);
        const dt_status st = pipe_run(&p, &none);
        const char *says = dt_error_trace();
        TEST_THAT(st == DT_ERR_PLACEMENT && strstr(says, where) && strstr(says, "do not add"),
                  "status %d: %s", st, says);
        TEST_THAT(dt_world_counts(world).total_calls == 0, "something has moved");
    }
    DT_TRY(pipe_check(&p, loss)); /* the first pass's gradients */
    pipe_close(&p);
    return DT_OK;
}

START_TEST(gradients_of_weights_are_rehearsed)
{
    static const pipe_plan with[] = {{.schedule = "zb-h1", .layers = 2},
                                     {.schedule = "zbv", .layers = 4},
                                     {.schedule = "zbv", .layers = 4, .dp = 2, .zero = 2},
                                     {.schedule = "zb-h1", .layers = 2, .dp = 2, .zero = 3}};
    pipe_plan c = with[_i]; /* one layer a stage */
    c.ranks = 2;
    c.m = 4;
    test_ranks_with(c.dp ? 4 : 2, &(dt_world_options){.timeout_s = 60}, second_half_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rehearsal of pipelines");
    TCase *tc = tcase_create("rehearsal");
    tcase_set_timeout(tc, 60);
    test_loop(tc, gradients_of_weights_are_rehearsed, 4);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
