/* tests/law/test_law_checkpoint.c - a step saved on any mesh is the same step on any other: the
 * same bits of parameters and optimizer state, the next losses within the law; on the same mesh the
 * same bits as if nobody had stopped. */
#include "checkpoint/dt_checkpoint.h"
#include "tests/checkpoint/files.h"
#include "tests/law/law.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BEFORE = 3, AFTER = 3 };

/* ranks = pp x dp_replicate x dp_shard x tp */
typedef struct layout {
    const char *name;
    int pp, dp, fsdp, tp;
} layout;

static const layout layouts[] = {
    {"1", 1, 1, 1, 1},         {"dp2", 1, 2, 1, 1},
    {"fsdp3", 1, 1, 3, 1},     {"tp2", 1, 1, 1, 2},
    {"pp2", 2, 1, 1, 1},       {"fsdp2 x tp2", 1, 1, 2, 2},
    {"pp2 x tp2", 2, 1, 1, 2}, {"pp2 x fsdp2 x tp2", 2, 1, 2, 2},
};
enum { NLAYOUTS = 8 };

typedef struct model {
    const char *golden;
    int64_t batch, seq_len;
} model;

static const model models[] = {{"llama_tiny", 8, 16}, {"gpt2_tiny", 6, 12}, {"llama_tied", 4, 16}};

/* What a run had at the step that was saved, and at the end. */
typedef struct outcome {
    double loss[AFTER];
    int64_t saved, ended; /* hashes of parameters and optimizer state */
} outcome;

typedef struct run {
    const layout *l;
    const model *m;
    const char *dir;
    bool load, async;
    dt_dtype dtype;
    outcome *out;
} run;

/* ---- hashes of whole tensors ---- */

static dt_status add_hash(dt_mesh *mesh, const dt_layout *l, const dt_array *local,
                          const char *name, int64_t *sum)
{
    dt_tensor *whole = NULL;
    const size_t bytes = (size_t)dt_shape_count(l->shape) * dt_dtype_size(local->dtype);
    uint8_t *host = malloc(bytes + 1);
    TEST_THAT(host, "memory for %s", name);
    DT_TRY(dt_from_array(l, local, &whole));
    DT_TRY(dt_tensor_read_sync(whole, host));
    dt_tensor_destroy(&whole);
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (const char *c = name; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ host[i]) * 1099511628211u;
    free(host);
    if (dt_mesh_rank(mesh) == 0)
        *sum += (int64_t)(hash >> 16);
    return DT_OK;
}

/* Each parameter once, whatever stage has it. */
static dt_status hash_all(train_session *s, int64_t *hash_out)
{
    int64_t sum = 0;
    int n = 0;
    dt_optim_state *state = dt_optim_states(s->optim, &n);
    for (int i = 0; i < n; i++) {
        dt_param *p = state[i].param;
        const dt_layout *l = dt_tensor_layout(p->tensor);
        char name[200];
        if (p->copy)
            continue;
        DT_TRY(add_hash(s->mesh, l, dt_tensor_local(p->tensor), p->name, &sum));
        (void)snprintf(name, sizeof name, "%s m", p->name);
        DT_TRY(add_hash(s->mesh, l, &state[i].exp_avg, name, &sum));
        (void)snprintf(name, sizeof name, "%s v", p->name);
        DT_TRY(add_hash(s->mesh, l, &state[i].exp_avg_sq, name, &sum));
    }
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(s->world), &sum, 1, DT_REDUCE_SUM));
    *hash_out = sum;
    return DT_OK;
}

/* ---- a run ---- */

static void configure(const run *r, char path[3][1024], train_config *c)
{
    *c = (train_config){
        .device = test_device_kind(),
        .model_config = law_path(r->m->golden, "config.json", path[0]),
        .model_init = r->load ? NULL : law_path(r->m->golden, "model.safetensors", path[1]),
        .data_path = law_path(r->m->golden, "tokens.bin", path[2]),
        .steps = BEFORE + AFTER,
        .seq_len = r->m->seq_len,
        .global_batch = r->m->batch,
        .micro_batch = 1,
        .seed = r->load ? 99 : 0,
        .max_norm = 1,
        .adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = LAW_SMOOTH_EPS, .weight_decay = 0.1},
        .schedule = {.lr = 1e-2, .warmup_steps = 2, .total_steps = 20, .decay = DT_DECAY_COSINE},
        .dp_replicate = r->l->dp,
        .dp_shard = r->l->fsdp,
        .tp = r->l->tp,
        .pp = r->l->pp,
        .pp_schedule = "1f1b",
        .loss_parallel = true,
        .reshard_after_forward = r->l->pp == 1,
    };
}

static dt_status steps(train_session *s, int n, double *loss)
{
    for (int i = 0; i < n; i++) {
        train_result result = {0};
        DT_TRY(train_session_step(s, &result));
        if (loss)
            loss[i] = result.loss;
    }
    return DT_OK;
}

static dt_status save(train_session *s, const run *r)
{
    dt_checkpoint *c = NULL;
    /* small pieces, little memory: everything is cut, moved and staged many times */
    const dt_checkpoint_options o = {.dtype = r->dtype,
                                     .async = r->async,
                                     .staging_bytes = 20000,
                                     .piece_bytes = 64,
                                     .file_bytes = 50000};
    const dt_checkpoint_state state = {.step = s->step, .position = s->position};
    dt_heap *heap = NULL; /* staging is on the host */
    DT_TRY(dt_world_heap(s->world, (dt_device){.kind = DT_CPU}, &heap));
    const int64_t before = dt_heap_get_stats(heap).live[DT_TAG_WORKSPACE];
    DT_TRY(dt_checkpoint_open(s->world, r->dir, &o, &c));
    dt_heap_reset_peaks(heap);
    DT_TRY(dt_checkpoint_save(c, s->model, s->optim, &state));
    const int64_t more = dt_heap_get_stats(heap).peak[DT_TAG_WORKSPACE] - before;
    TEST_THAT(more > 0 && more <= o.staging_bytes, "%lld bytes for staging, of %lld",
              (long long)more, (long long)o.staging_bytes);
    if (!r->async) {
        DT_TRY(dt_checkpoint_wait(c));
        dt_checkpoint_close(&c);
        return DT_OK;
    }
    DT_TRY(steps(s, 1, &r->out->loss[0])); /* training goes on over the save */
    DT_TRY(dt_checkpoint_wait(c));
    dt_checkpoint_close(&c);
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    const run *r = arg;
    outcome mine = {{0}, 0, 0}, *out = dt_world_rank(world) == 0 ? r->out : &mine;
    run here = *r;
    here.out = out;
    char path[3][1024];
    train_config config;
    train_session s = {0};
    configure(r, path, &config);
    DT_TRY(train_session_create(&config, world, &s));
    if (r->load) {
        dt_checkpoint *c = NULL;
        dt_checkpoint_state state = {0};
        bool found = false;
        DT_TRY(dt_checkpoint_open(world, r->dir, NULL, &c));
        DT_TRY(dt_checkpoint_load(c, -1, s.model, s.optim, &state, &found));
        TEST_THAT(found && state.step == BEFORE, "step %lld", (long long)state.step);
        dt_checkpoint_close(&c);
        s.step = state.step;
        s.position = state.position;
        DT_TRY(hash_all(&s, &out->saved));
        DT_TRY(steps(&s, AFTER, out->loss));
    } else {
        DT_TRY(steps(&s, BEFORE, NULL));
        DT_TRY(hash_all(&s, &out->saved));
        if (r->dir)
            DT_TRY(save(&s, &here));
        const int done = (int)s.step - BEFORE;
        DT_TRY(steps(&s, AFTER - done, out->loss + done));
    }
    DT_TRY(hash_all(&s, &out->ended));
    train_session_destroy(&s);
    return DT_OK;
}

static void go(run r)
{
    test_ranks(r.l->pp * r.l->dp * r.l->fsdp * r.l->tp, body, &r);
}

static void compare(const run *from, const run *to, const outcome *one)
{
    const char *a = from->l->name, *b = to->l->name;
    ck_assert_msg(from->out->saved == to->out->saved, "%s on %s is not what %s saved",
                  from->m->golden, b, a);
    for (int i = 0; i < AFTER; i++)
        ck_assert_msg(fabs(to->out->loss[i] - one->loss[i]) <= LAW_LOSS_LIMIT,
                      "%s from %s on %s: loss %d after it is %.9g, of one run %.9g",
                      from->m->golden, a, b, i, to->out->loss[i], one->loss[i]);
    if (from->l != to->l)
        return;
    for (int i = 0; i < AFTER; i++)
        ck_assert_msg(fabs(to->out->loss[i] - from->out->loss[i]) <= 0,
                      "%s on %s: loss %d is %.17g, without a stop %.17g", from->m->golden, a, i,
                      to->out->loss[i], from->out->loss[i]);
    ck_assert_msg(from->out->ended == to->out->ended, "%s on %s differs from a run without a stop",
                  from->m->golden, a);
}

/* One save on layout `from`; loads on the layouts `offset` further. */
static void check(const model *m, int from, int noffsets, const int *offset, dt_dtype dtype,
                  bool async)
{
    char dir[FILES_PATH];
    outcome one, saved, loaded;
    files_begin(dir);
    run r = {.l = &layouts[0], .m = m, .out = &one};
    go(r);
    run save_it = {
        .l = &layouts[from], .m = m, .dir = dir, .dtype = dtype, .async = async, .out = &saved};
    go(save_it);
    for (int i = 0; i < noffsets; i++) {
        run load_it = {.l = &layouts[(from + offset[i]) % NLAYOUTS],
                       .m = m,
                       .dir = dir,
                       .load = true,
                       .out = &loaded};
        go(load_it);
        compare(&save_it, &load_it, &one);
    }
    files_end(dir);
}

static bool full(void)
{
    const char *text = getenv("DT_FULL");
    return text && strcmp(text, "1") == 0;
}

START_TEST(any_mesh_to_any_mesh)
{
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7}, some[] = {0, 3};
    check(&models[0], _i, full() ? DT_COUNT(all) : DT_COUNT(some), full() ? all : some, DT_F32,
          false);
}
END_TEST

/* Tied parameters, fused ones, sizes that nothing divides; files in bf16, whose rounding is kept */
START_TEST(any_mesh_of_other_models)
{
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7}, some[] = {5};
    const int which = full() ? 1 + _i / NLAYOUTS : 1 + _i % 2;
    check(&models[which], _i % NLAYOUTS, full() ? DT_COUNT(all) : DT_COUNT(some),
          full() ? all : some, DT_BF16, false);
}
END_TEST

START_TEST(training_goes_on_over_a_save)
{
    static const int same[] = {0};
    check(&models[0], _i, 1, same, DT_F32, true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoints on meshes");
    TCase *tc = tcase_create("checkpoint");
    tcase_set_timeout(tc, 600);
    test_some(tc, any_mesh_to_any_mesh, NLAYOUTS);
    test_some(tc, any_mesh_of_other_models, full() ? 2 * NLAYOUTS : NLAYOUTS);
    tcase_add_loop_test(tc, training_goes_on_over_a_save, full() ? 0 : NLAYOUTS - 1, NLAYOUTS);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
