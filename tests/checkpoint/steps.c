/* tests/checkpoint/steps.c - see tests/checkpoint/steps.h. */
#include "tests/checkpoint/steps.h"

#include "checkpoint/save_internal.h"

#include <stdio.h>

char steps_folder[FILES_PATH];

void steps_begin(void)
{
    files_begin(steps_folder);
}

void steps_end(void)
{
    files_end(steps_folder);
}

char *steps_file(int step, const char *name, char path[FILES_PATH])
{
    (void)snprintf(path, FILES_PATH, "%.400s/step-%08d/%s", steps_folder, step, name);
    return path;
}

static const dt_module_kind kind = {"bare", 0, NULL};

const char *const steps_names[STEPS_PARAMS] = {"a.grid", "a.odd", "a.fused"};

const steps_layout steps_layouts[STEPS_LAYOUTS] = {
    {1, 1, "", "", ""},
    {4, 1, "", "", ""},
    {4, 1, "S(0)@x", "S(0)@x", "S(1)@x"},
    {4, 1, "S(1)@x", "S(1)@x", "S(0)@x"},
    {2, 2, "", "", ""},
    {2, 2, "S(0)@y", "S(0)@y", "S(1)@x"},
    {2, 2, "S(0)@x", "S(1)@y", "S(0)@y"},
    {2, 2, "S(0)@x>y", "S(0)@y>x", "S(1)@x, S(0)@y"},
    {2, 2, "S(0)@x, S(1)@y", "S(1)@x, S(0)@y", "S(0)@x"},
    {2, 1, "S(0)@x", "S(1)@x", ""},
    {8, 1, "S(0)@x", "S(0)@x", "S(1)@x"},
    {3, 1, "S(1)@x", "S(0)@x", "S(0)@x"},
    {2, 4, "S(1)@y, S(0)@x", "S(0)@x>y", "S(1)@x"},
};

dt_status steps_make(dt_world *world, const steps_layout *l, dt_dtype dtype, steps_model *m)
{
    const dt_mesh_options axes = {.axes = {{"x", l->x}, {"y", l->y}}};
    const dt_shape shape[STEPS_PARAMS] = {DT_SHAPE(4, 4), DT_SHAPE(7, 3), DT_SHAPE(2, 3)};
    const dt_shape file = DT_SHAPE(6);
    const char *const text[STEPS_PARAMS] = {l->grid, l->odd, l->fused};
    dt_module *a = NULL;
    DT_TRY(dt_mesh_create(world, test_device(world), &axes, &m->mesh));
    DT_TRY(dt_module_create(&kind, &m->root));
    DT_TRY(dt_module_create(&kind, &a));
    DT_TRY(dt_module_add(m->root, "a", a));
    for (int i = 0; i < STEPS_PARAMS; i++) {
        DT_TRY(dt_module_add_param(a, steps_names[i] + 2, shape[i], i == 2 ? &file : NULL,
                                   (dt_init){DT_INIT_ZEROS, 0}, &m->p[i]));
        m->p[i]->dtype = dtype;
    }
    DT_TRY(dt_module_finish(m->root));
    for (int i = 0; i < STEPS_PARAMS; i++)
        DT_TRY(dt_module_place(m->root, m->mesh, steps_names[i], text[i]));
    DT_TRY(dt_module_materialize(m->root, m->mesh, 0));
    return dt_adamw_create(m->root, NULL, &m->optim);
}

void steps_drop(steps_model *m)
{
    dt_optim_destroy(&m->optim);
    dt_module_destroy(&m->root);
    dt_mesh_destroy(&m->mesh);
}

/* Element i of the whole of parameter p's array number `which` (parameter or master, m, v). */
static float value(int p, int which, int64_t i, int salt)
{
    return (float)(i + 100 * p + 1000 * which + salt) /
           11; /* rounding twice, to f16 and bf16, shows */
}

dt_status steps_each(steps_model *m, int salt, bool check, bool exact)
{
    int n = 0;
    dt_optim_state *state = dt_optim_states(m->optim, &n);
    for (int i = 0; i < STEPS_PARAMS; i++) {
        const bool master = state[i].master.storage != NULL;
        dt_array *array[] = {master && exact ? &state[i].master : dt_tensor_local(m->p[i]->tensor),
                             &state[i].exp_avg, &state[i].exp_avg_sq};
        dti_block b = {.whole = m->p[i]->shape};
        b.part = dt_mesh_local(dt_tensor_layout(m->p[i]->tensor), b.offset);
        for (int which = 0; which < (exact ? 3 : 1); which++) {
            dti_run run;
            dti_runs runs = dti_runs_of(&b, 0, 99);
            float *at = (float *)(uintptr_t)test_look(array[which]);
            while (dti_runs_next(&runs, &run))
                for (int64_t k = run.block; k < run.block + run.count; k++) {
                    const int64_t whole = run.whole + k - run.block;
                    const float want = value(i, which, whole, salt);
                    if (!check)
                        at[k] = want;
                    TEST_THAT(at[k] == want, "%s, array %d, element %lld: %g, not %g",
                              steps_names[i], which, (long long)whole, (double)at[k], (double)want);
                }
            if (!check)
                DT_TRY(dt_array_write(array[which], at, dt_array_count(array[which])));
        }
    }
    return DT_OK;
}

dt_checkpoint_state steps_state(int step)
{
    return (dt_checkpoint_state){.step = step,
                                 .position = 77 + step,
                                 .seed = 5,
                                 .scaler = {2, 3, 4, 5},
                                 .schedule = {.lr = 0.1,
                                              .warmup_steps = 6,
                                              .total_steps = 70,
                                              .decay = DT_DECAY_WSD,
                                              .min_ratio = 0.25,
                                              .decay_steps = 8}};
}

static bool same(const dt_checkpoint_state *a, const dt_checkpoint_state *b)
{
    const dt_schedule *s = &a->schedule, *t = &b->schedule;
    const dt_scaler *l = &a->scaler, *m = &b->scaler;
    return a->step == b->step && a->position == b->position && a->seed == b->seed &&
           l->scale == m->scale && l->interval == m->interval && l->good == m->good &&
           l->skipped == m->skipped && s->lr == t->lr && s->warmup_steps == t->warmup_steps &&
           s->total_steps == t->total_steps && s->decay == t->decay &&
           s->min_ratio == t->min_ratio && s->decay_steps == t->decay_steps;
}

static dt_status work(dt_world *world, void *arg)
{
    const steps_job *j = arg;
    steps_model m = {0};
    dt_checkpoint *c = NULL;
    DT_TRY(steps_make(world, j->l, DT_F32, &m));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    const dt_checkpoint_state written = steps_state(j->step);
    dt_checkpoint_state state = j->load ? (dt_checkpoint_state){0} : written;
    if (j->load) {
        bool found = false;
        DT_TRY(dt_checkpoint_load(c, -1, m.root, m.optim, &state, &found));
        TEST_THAT(found && same(&state, &written) && dt_optim_steps(m.optim) == 9, "step %lld",
                  (long long)state.step);
        DT_TRY(steps_each(&m, j->step, true, true));
    } else {
        DT_TRY(steps_each(&m, j->step, false, true));
        dt_optim_set_steps(m.optim, 9);
        DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &state));
        DT_TRY(dt_checkpoint_wait(c));
        DT_TRY(steps_each(&m, j->step, true, true));
    }
    dt_checkpoint_close(&c);
    steps_drop(&m);
    return DT_OK;
}

void steps_go(steps_job j)
{
    test_ranks(j.l->x * j.l->y, work, &j);
}

const dt_checkpoint_options steps_tiny = {.staging_bytes = 1, .piece_bytes = 8, .keep = 2};
