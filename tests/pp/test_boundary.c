/* tests/pp/test_boundary.c - between every two neighbouring stages: whatever does not fit there is
 * an error on all ranks that names the stage, what it gives and what the next one takes, before
 * anything moves; so are passes that differ from rank to rank. Read first: tests/pp/mlp.h,
 * pp/rehearse.c. */
#include "tests/pp/mlp.h"

#include <stdio.h>
#include <string.h>

/* ---- what goes wrong at the end of a stage, or at the beginning of the next one ---- */

typedef enum wrong {
    FEATURES,
    ORDER,
    TYPE,
    PLACE,
    NO_SKIP,
    WIDE_SKIP,
    FEW_VALUES,
    TAKES,
    NWRONGS
} wrong;

typedef struct fault {
    wrong wrong;
    int stage;
} fault;

/* A stage's hooks know its number. */
typedef struct site {
    const fault *fault;
    int stage;
} site;

static dt_values spoil_output(dt_module *m, dt_tape *t, const dt_values *in, void *arg)
{
    const site *at = arg;
    dt_values v = *in;
    dt_tensor **y = &v.value[0];
    (void)m;
    if (at->fault->stage != at->stage || dt_tensor_is_failed(*y))
        return v;
    switch (at->fault->wrong) {
    case FEATURES: *y = dt_slice(t, *y, 2, 0, 3); break;
    case ORDER: *y = dt_rearrange(t, *y, "b s d -> s b d", NULL); break;
    case TYPE: *y = dt_cast(t, *y, DT_BF16, false); break;
    case PLACE: *y = dt_redistribute(t, *y, ""); break;
    case NO_SKIP: v.value[MLP_SKIP_A] = NULL; break;
    case WIDE_SKIP: v.value[MLP_SKIP_B] = v.value[MLP_SKIP_A]; break;
    case FEW_VALUES: v.n = 1; break;
    case TAKES:
    case NWRONGS: break;
    }
    return v;
}

static dt_values spoil_input(dt_module *m, dt_tape *t, const dt_values *in, void *arg)
{
    const site *at = arg;
    dt_values v = *in;
    (void)m;
    if (at->fault->wrong == TAKES && at->fault->stage + 1 == at->stage)
        v.value[0] = dt_slice(t, v.value[0], 2, 0, 3);
    return v;
}

static dt_status watch(mlp *n, const fault *f, site *list)
{
    for (int i = 0; i < dt_pipeline_nstages(n->pipe); i++) {
        dt_module *layers = dt_module_find(dt_pipeline_stage(n->pipe, i), "layers");
        list[i] = (site){f, dt_pipeline_stage_number(n->pipe, i)};
        DT_TRY(
            dt_module_add_transform(dt_module_child(layers, 0), spoil_input, NULL, &list[i], NULL));
        DT_TRY(dt_module_add_transform(dt_module_child(layers, dt_module_nchildren(layers) - 1),
                                       NULL, spoil_output, &list[i], NULL));
    }
    return DT_OK;
}

/* What the error says of a fault: two texts. `b`: samples of a microbatch. */
static dt_status expected(const mlp *n, const fault *f, long long b, char text[2][120])
{
    const long long d = n->d, s = f->stage;
    char gives[60] = "";
    const char *rows = "[S(0)@dp]";
    const int value = f->wrong == NO_SKIP || f->wrong == FEW_VALUES ? MLP_SKIP_A
                      : f->wrong == WIDE_SKIP                       ? MLP_SKIP_B
                                                                    : 0;
    if (f->wrong == FEATURES)
        (void)snprintf(gives, sizeof gives, "[%lld, 1, 3] %s f32", b, rows);
    else if (f->wrong == ORDER)
        (void)snprintf(gives, sizeof gives, "[1, %lld, %lld] [S(1)@dp] f32", b, d);
    else if (value)
        (void)snprintf(gives, sizeof gives, "nothing");
    else
        (void)snprintf(gives, sizeof gives, "[%lld, 1, %lld] %s %s", b, d,
                       f->wrong == PLACE ? "[R]" : rows, f->wrong == TYPE ? "bf16" : "f32");
    if (f->wrong == WIDE_SKIP)
        (void)snprintf(gives, sizeof gives, "[%lld, 1, %lld] %s f32", b, d, rows);
    (void)snprintf(text[0], 120, "stage %lld gives %s as value %d", s, gives, value);
    (void)snprintf(text[1], 120, "the next one takes [%lld, 1, %lld] %s f32", b,
                   value == MLP_SKIP_B ? d / 2 : d, rows);
    if (f->wrong == TAKES) {
        (void)snprintf(text[0], 120, "before the first microbatch, stage %lld:", s + 1);
        (void)snprintf(text[1], 120, "([%lld, 1, 3] %s)", b, rows);
    }
    return DT_OK;
}

static dt_status boundary_body(dt_world *world, void *arg)
{
    enum { MOST_STAGES = 8 };
    const mlp_plan *c = arg;
    site list[MOST_STAGES];
    fault f = {NWRONGS, -1};
    mlp n;
    double loss = 0;
    char text[2][120];
    DT_TRY(mlp_open(c, world, &n));
    DT_TRY(watch(&n, &f, list));
    const dt_pipeline_pass pass = mlp_pass(&n);
    dt_world_reset_counts(world);
    for (int i = 0; i < NWRONGS * (n.nstages - 1); i++) {
        f = (fault){(wrong)(i % NWRONGS), i / NWRONGS};
        if (!c->skips && f.wrong >= NO_SKIP && f.wrong <= FEW_VALUES)
            continue;
        DT_TRY(expected(&n, &f, pass.at_once, text));
        const dt_status st = dt_pipeline_run(n.pipe, &pass, &loss);
        const char *says = dt_error_trace();
        TEST_THAT(st != DT_OK && strstr(says, text[0]) && strstr(says, text[1]),
                  "fault %d of stage %d: status %d, '%s', not '%s', '%s'", f.wrong, f.stage, st,
                  says, text[0], text[1]);
        TEST_THAT(dt_world_counts(world).total_calls == 0, "something has moved");
    }
    f = (fault){NWRONGS, -1};
    DT_TRY(dt_pipeline_run(n.pipe, &pass, &loss));
    mlp_close(&n);
    return DT_OK;
}

static const mlp_plan plans[] = {
    {.schedule = "1f1b", .ranks = 2, .m = 4, .skips = true},
    {.schedule = "1f1b", .ranks = 3, .m = 4},
    {.schedule = "gpipe", .ranks = 4, .m = 4, .skips = true},
    {.schedule = "zb-h1", .ranks = 4, .m = 4},
    {.schedule = "interleaved", .ranks = 2, .m = 8, .skips = true},
    {.schedule = "zbv", .ranks = 2, .m = 8, .skips = true},
    {.schedule = "zbv", .ranks = 4, .m = 8},
    {.schedule = "dualpipev", .ranks = 2, .m = 4},
};

START_TEST(what_does_not_fit_is_an_error_everywhere)
{
    mlp_plan c = plans[_i];
    test_ranks_with(2 * c.ranks, &(dt_world_options){.timeout_s = 60}, boundary_body, &c);
}
END_TEST

/* ---- ranks that disagree ---- */

typedef enum field { SAMPLES, AT_ONCE, SEQ_LEN, NO_GRAD, LOSS, ASIDE, NFIELDS } field;

static dt_status no_aside(void *arg, int64_t lo, int64_t hi, dt_tensor *out[2])
{
    (void)arg;
    (void)lo;
    (void)hi;
    out[0] = out[1] = NULL;
    return DT_OK;
}

static dt_status differ_body(dt_world *world, void *arg)
{
    static const char *const says[NFIELDS] = {"microbatches is", "samples at once is",
                                              "seq_len is",      "no_grad is",
                                              "a loss is",       "tensors aside is"};
    const bool mine = dt_world_rank(world) == 1;
    mlp n;
    double loss = 0;
    DT_TRY(mlp_open(arg, world, &n));
    for (int i = 0; i < NFIELDS; i++) {
        dt_pipeline_pass pass = mlp_pass(&n);
        if (mine && i == SAMPLES)
            pass.samples += pass.at_once;
        else if (mine && i == AT_ONCE)
            pass.at_once++; /* as many: the last one is shorter */
        else if (mine && i == SEQ_LEN)
            pass.seq_len = 2;
        else if (mine && i == NO_GRAD)
            pass.tape.no_grad = true;
        else if (mine && i == LOSS)
            pass.loss = NULL;
        else if (mine && i == ASIDE)
            pass.aside = no_aside;
        TEST_FAILS(DT_ERR_ARG, says[i], dt_pipeline_run(n.pipe, &pass, &loss));
    }
    const dt_pipeline_pass pass = mlp_pass(&n);
    DT_TRY(dt_pipeline_run(n.pipe, &pass, &loss));
    mlp_close(&n);
    return DT_OK;
}

START_TEST(passes_that_differ_are_an_error_everywhere)
{
    mlp_plan c = {.schedule = "1f1b", .ranks = 3, .m = 4};
    test_ranks_with(3, &(dt_world_options){.timeout_s = 60}, differ_body, &c);
}
END_TEST

/* One rank thinks of other tensors between the stages. */
static dt_status options_body(dt_world *world, void *arg)
{
    mlp_plan c = *(const mlp_plan *)arg;
    mlp n;
    double loss = 0;
    c.skips = dt_world_rank(world) == 1;
    DT_TRY(mlp_open(&c, world, &n));
    const dt_pipeline_pass pass = mlp_pass(&n);
    TEST_FAILS(DT_ERR_ARG, "the number of skips is", dt_pipeline_run(n.pipe, &pass, &loss));
    mlp_close(&n);
    return DT_OK;
}

START_TEST(boundaries_that_differ_are_an_error_everywhere)
{
    mlp_plan c = {.schedule = "zbv", .ranks = 2, .m = 4};
    test_ranks_with(2, &(dt_world_options){.timeout_s = 60}, options_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("boundaries of pipelines");
    TCase *tc = tcase_create("boundary");
    tcase_set_timeout(tc, 60);
    test_loop(tc, what_does_not_fit_is_an_error_everywhere, DT_COUNT(plans));
    tcase_add_test(tc, passes_that_differ_are_an_error_everywhere);
    tcase_add_test(tc, boundaries_that_differ_are_an_error_everywhere);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
