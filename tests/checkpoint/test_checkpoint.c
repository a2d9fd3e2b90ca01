/* tests/checkpoint/test_checkpoint.c - folders of steps: every layout into every other, files that
 * do not depend on the mesh, saves in the background, rounding. Damage and full disks:
 * tests/checkpoint/test_damage.c. */
#include "array/dt_half.h"
#include "checkpoint/save_internal.h"
#include "tests/checkpoint/files.h"
#include "tests/checkpoint/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arithmetic ---- */

/* Every block of a small tensor against the marks that it makes. */
START_TEST(test_runs)
{
    const dt_shape whole = DT_SHAPE(3, 2, 4);
    for (int i = 0; i < 3 * 3 * 2 * 2 * 4 * 4; i++) {
        dti_block b = {.whole = whole, .part = whole};
        int rest = i;
        for (int d = 0; d < 3; d++) {
            b.offset[d] = rest % whole.dim[d];
            rest /= (int)whole.dim[d];
            const int64_t most = whole.dim[d] - b.offset[d];
            b.part.dim[d] = 1 + rest % whole.dim[d];
            rest /= (int)whole.dim[d];
            if (b.part.dim[d] > most)
                b.part.dim[d] = most;
        }
        int64_t at[24], n = 0; /* element k of the block is element at[k] of the whole */
        for (int e = 0; e < 24; e++) {
            const int64_t x[3] = {e / 8 - b.offset[0], e / 4 % 2 - b.offset[1],
                                  e % 4 - b.offset[2]};
            ck_assert_int_eq(dti_block_below(&b, e), n);
            if (x[0] >= 0 && x[0] < b.part.dim[0] && x[1] >= 0 && x[1] < b.part.dim[1] &&
                x[2] >= 0 && x[2] < b.part.dim[2])
                at[n++] = e;
        }
        ck_assert_int_eq(dti_block_below(&b, 24), n);
        for (int64_t lo = 0; lo < 24; lo += 5) {
            const int64_t hi = lo + 11;
            int64_t k = dti_block_below(&b, lo);
            dti_run run;
            dti_runs runs = dti_runs_of(&b, lo, hi);
            while (dti_runs_next(&runs, &run)) {
                ck_assert(run.block == k && run.count > 0);
                for (int64_t j = 0; j < run.count; j++)
                    ck_assert_int_eq(run.whole + j, at[k++]);
            }
            ck_assert_int_eq(k, dti_block_below(&b, hi));
        }
    }
}
END_TEST

/* Each layout saves the same bytes, though pieces of 2 elements travel in rounds of 64 bytes; and
 * each loads what any saved. */
START_TEST(test_layouts)
{
    static const char *const files[] = {
        "model-00001-of-00001.safetensors", "optimizer-00001-of-00001.safetensors",
        "model.safetensors.index.json", "optimizer.safetensors.index.json"};
    char *first[DT_COUNT(files)] = {NULL};
    size_t bytes[DT_COUNT(files)] = {0};
    char dir[FILES_PATH + 32];
    for (int i = 0; i < STEPS_LAYOUTS; i++) {
        (void)snprintf(dir, sizeof dir, "%s/%d", steps_folder, i);
        steps_go((steps_job){&steps_layouts[i], steps_tiny, dir, NULL, 10, false});
        for (int f = 0; f < DT_COUNT(files); f++) {
            size_t got = 0;
            char name[100];
            (void)snprintf(name, sizeof name, "latest/%s", files[f]);
            char *all = files_get(dir, name, &got);
            ck_assert_msg(i == 0 || (got == bytes[f] && memcmp(all, first[f], got) == 0),
                          "%s of layout %d differs", files[f], i);
            if (i > 0)
                free(all);
            else {
                first[f] = all;
                bytes[f] = got;
            }
        }
        for (int k = 0; k < STEPS_LAYOUTS; k++)
            steps_go((steps_job){&steps_layouts[(i + k) % STEPS_LAYOUTS], steps_tiny, dir, NULL, 10,
                                 true});
    }
    for (int f = 0; f < DT_COUNT(files); f++)
        free(first[f]);
}
END_TEST

/* Rows that the ranks have in another order than the mesh's, where files are cut too. */
static const steps_layout by_rows = {2, 2, "S(0)@y>x", "S(0)@y", ""};

/* However it is placed, every byte has one writer, and all write about equally much. */
static dt_status balance(dt_world *world, void *arg)
{
    const steps_job *j = arg;
    steps_model m = {0};
    dti_plan *p = NULL;
    const dti_plan_options o = {.file_bytes = 200, .piece_bytes = 8};
    DT_TRY(steps_make(world, j->l, DT_F32, &m));
    DT_TRY(dti_plan_create(world, m.root, m.optim, &o, &p));
    const int k = dt_mesh_size(m.mesh);
    int64_t most = 0, all = 0;
    for (int w = 0; w < k; w++) {
        int64_t mine = 0;
        for (int64_t i = p->first[w]; i < p->first[w + 1]; i++)
            mine += 4 * (p->share[i].hi - p->share[i].lo);
        most = mine > most ? mine : most;
        all += mine;
    }
    TEST_THAT(all == 3 * 4 * (16 + 21 + 6), "%lld bytes are written", (long long)all);
    TEST_THAT(most <= all / k + 16, "a rank of %d writes %lld of %lld bytes", k, (long long)most,
              (long long)all);
    for (int64_t f = 0; f < p->nfiles; f++)
        TEST_THAT(p->file[f].bytes - (int64_t)p->file[f].header_bytes <= 200, "%s",
                  p->file[f].name);
    dti_plan_destroy(&p);
    if (j->l == &by_rows || (j->l->grid[0] == 0 && j->l->odd[0] == 0)) { /* each writes its own */
        dt_checkpoint *c = NULL;
        dt_world_reset_counts(world);
        DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
        DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &(dt_checkpoint_state){.step = 1}));
        dt_checkpoint_close(&c);
        TEST_THAT(dt_world_counts(world).bytes[DT_CALL_ALL_TO_ALL] == 0, "they were moved");
    }
    steps_drop(&m);
    return DT_OK;
}

START_TEST(test_balance)
{
    for (int i = 0; i <= STEPS_LAYOUTS; i++) {
        const steps_layout *l = i < STEPS_LAYOUTS ? &steps_layouts[i] : &by_rows;
        steps_job j = {l, steps_tiny, steps_folder, NULL, 0, false};
        test_ranks(j.l->x * j.l->y, balance, &j);
    }
}
END_TEST

/* On and on: 4 ranks, 2, 8, 3, each saving what it loaded. */
static dt_status pass_on(dt_world *world, void *arg)
{
    const steps_job *j = arg;
    steps_model m = {0};
    dt_checkpoint *c = NULL;
    dt_checkpoint_state state;
    bool found = false;
    DT_TRY(steps_make(world, j->l, DT_F32, &m));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    if (j->fault)
        files_put(steps_folder, j->fault, "", "", 0);
    DT_TRY(dt_checkpoint_load(c, -1, m.root, m.optim, &state, &found));
    DT_TRY(steps_each(&m, 10, true, true));
    state.step++;
    DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &state));
    dt_checkpoint_close(&c);
    steps_drop(&m);
    return DT_OK;
}

START_TEST(test_chain)
{
    static const int order[] = {8, 9, 10, 11};
    steps_go((steps_job){&steps_layouts[2], steps_tiny, steps_folder, NULL, 10, false});
    for (int i = 0; i < DT_COUNT(order); i++) {
        steps_job j = {&steps_layouts[order[i]], steps_tiny, steps_folder, NULL, 0, false};
        test_ranks(j.l->x * j.l->y, pass_on, &j);
    }
    ck_assert(files_exists(steps_folder, "step-00000014/state.json"));
    ck_assert(files_exists(steps_folder, "step-00000013/state.json"));
    ck_assert(!files_exists(steps_folder, "step-00000012")); /* keep 2 */
    /* what cannot be removed does not matter, and goes the next time */
    steps_job j = {&steps_layouts[0], steps_tiny, steps_folder, "step-00000013.old", 0, false};
    test_ranks(1, pass_on, &j);
    ck_assert(files_exists(steps_folder, "step-00000015") &&
              files_exists(steps_folder, "step-00000013"));
    j.fault = NULL;
    test_ranks(1, pass_on, &j);
    ck_assert(!files_exists(steps_folder, "step-00000013.old") &&
              !files_exists(steps_folder, "step-00000013") &&
              !files_exists(steps_folder, "step-00000014"));
}
END_TEST

/* What is changed after an async save has returned does not get into the file. */
static dt_status change(dt_world *world, void *arg)
{
    const steps_job *j = arg;
    steps_model m = {0};
    dt_checkpoint *c = NULL;
    bool busy = true;
    DT_TRY(steps_make(world, j->l, DT_F32, &m));
    dt_heap *heap = NULL; /* staging is on the host */
    DT_TRY(dt_world_heap(world, (dt_device){.kind = DT_CPU}, &heap));
    const int64_t before = dt_heap_get_stats(heap).live[DT_TAG_WORKSPACE];
    int64_t held = 0; /* kept for the next save */
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    for (int step = 1; step <= 3; step++) { /* each waits for the last */
        DT_TRY(steps_each(&m, step, false, true));
        dt_optim_set_steps(m.optim, 9);
        const dt_checkpoint_state state = steps_state(step);
        DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &state));
        DT_TRY(steps_each(&m, 500, false, true));
        const int64_t now = dt_heap_get_stats(heap).live[DT_TAG_WORKSPACE];
        TEST_THAT(step == 1 || now == held, "staging grew from %lld to %lld bytes", (long long)held,
                  (long long)now);
        held = now;
    }
    while (busy)
        DT_TRY(dt_checkpoint_poll(c, &busy));
    dt_checkpoint_close(&c);
    TEST_THAT(dt_heap_get_stats(heap).live[DT_TAG_WORKSPACE] == before, "staging was not freed");
    steps_drop(&m);
    return DT_OK;
}

START_TEST(test_async)
{
    for (int i = 0; i < STEPS_LAYOUTS; i++) {
        steps_job j = {&steps_layouts[i], steps_tiny, steps_folder, NULL, 3, true};
        j.o.async = true;
        j.o.staging_bytes = i % 2 ? 600 : 0;
        test_ranks(j.l->x * j.l->y, change, &j);
        steps_go(j);
    }
}
END_TEST

/* Files in bf16 of f32 parameters, and of bf16 ones with f32 masters: what is rounded is kept. */
static dt_status rounded(dt_world *world, void *arg)
{
    const steps_job *j = arg;
    steps_model m = {0}, other = {0}, exact = {0};
    dt_checkpoint *c = NULL;
    dt_checkpoint_state state = {.step = 1};
    bool found = false;
    DT_TRY(steps_make(world, j->l, j->step ? DT_BF16 : DT_F32, &m));
    DT_TRY(steps_each(&m, 1, false, true));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &state));
    dt_checkpoint_close(&c);
    DT_TRY(steps_make(world, j->l, DT_BF16, &other));
    DT_TRY(dt_checkpoint_open(world, j->dir, NULL, &c));
    DT_TRY(dt_checkpoint_load(c, 1, other.root, other.optim, &state, &found));
    DT_TRY(steps_each(&other, 1, true, true)); /* masters, and what is in use */
    DT_TRY(steps_make(world, j->l, DT_F32, &exact));
    DT_TRY(dt_checkpoint_load(c, 1, exact.root, NULL, &state, &found));
    DT_TRY(steps_each(&exact, 1, true, false)); /* also without an optimizer */
    steps_drop(&exact);
    for (int i = 0; i < STEPS_PARAMS; i++) {
        int n = 0;
        dt_array *use = dt_tensor_local(other.p[i]->tensor);
        const float *master = test_look(&dt_optim_states(other.optim, &n)[i].master);
        for (int64_t k = 0; k < dt_array_count(use); k++)
            TEST_THAT(((uint16_t *)test_look(use))[k] == dt_f32_to_bf16(master[k]),
                      "%s, element %lld", steps_names[i], (long long)k);
    }
    TEST_FAILS(DT_ERR_IO, "step-00000007",
               dt_checkpoint_load(c, 7, other.root, other.optim, &state, &found));
    dt_checkpoint_close(&c);
    steps_drop(&m);
    steps_drop(&other);
    return DT_OK;
}

START_TEST(test_rounding)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (int i = 0; i < 6; i++) {
        dt_checkpoint_options o = steps_tiny;
        o.dtype = types[i % 3];
        steps_job j = {&steps_layouts[7], o, steps_folder, NULL, i / 3, false};
        test_ranks(4, rounded, &j);
        dt_safetensors *st = NULL;
        char path[FILES_PATH];
        ck_ok(dt_safetensors_open(steps_file(1, "", path), &st));
        ck_assert_int_eq(dt_safetensors_get(st, 0)->dtype, o.dtype);
        ck_assert_int_eq(dt_safetensors_get(st, 0)->bytes, 6 * (i % 3 ? 2 : 4));
        dt_safetensors_close(&st);
    }
}
END_TEST

/* State that a frozen parameter had not is missed, and not taken for zero, once it is trained. */
static dt_status thawed(dt_world *world, void *arg)
{
    const steps_job *j = arg;
    steps_model m = {0}, all = {0};
    dt_checkpoint *c = NULL;
    dt_checkpoint_state state;
    bool found = false;
    DT_TRY(steps_make(world, j->l, DT_F32, &m));
    dt_optim_destroy(&m.optim);
    m.p[1]->frozen = true;
    DT_TRY(dt_adamw_create(m.root, NULL, &m.optim));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &(dt_checkpoint_state){.step = 1}));
    DT_TRY(dt_checkpoint_load(c, 1, m.root, m.optim, &state, &found));
    DT_TRY(steps_make(world, j->l, DT_F32, &all));
    TEST_FAILS(DT_ERR_FORMAT, "no tensor 'a.odd.exp_avg'",
               dt_checkpoint_load(c, 1, all.root, all.optim, &state, &found));
    dt_checkpoint_close(&c);
    steps_drop(&m);
    steps_drop(&all);
    return DT_OK;
}

START_TEST(test_thawed)
{
    steps_job j = {&steps_layouts[2], steps_tiny, steps_folder, NULL, 0, false};
    test_ranks(4, thawed, &j);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoints");
    TCase *tc = tcase_create("checkpoint");
    tcase_add_checked_fixture(tc, steps_begin, steps_end);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_runs);
    tcase_add_test(tc, test_thawed);
    tcase_add_test(tc, test_layouts);
    tcase_add_test(tc, test_balance);
    tcase_add_test(tc, test_chain);
    tcase_add_test(tc, test_async);
    tcase_add_test(tc, test_rounding);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
