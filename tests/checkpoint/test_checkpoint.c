/* tests/checkpoint/test_checkpoint.c - folders of steps: every layout into every other, files that
 * do not depend on the mesh, damage that is named, disks that are full, saves in the background. */
#include "array/dt_half.h"
#include "checkpoint/dt_checkpoint.h"
#include "checkpoint/save_internal.h"
#include "tests/checkpoint/files.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[FILES_PATH];

static void begin(void)
{
    files_begin(folder);
}

static void end(void)
{
    files_end(folder);
}

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

/* ---- a model of three tensors ---- */

static const dt_module_kind kind = {"bare", 0, NULL};

/* grid [4, 4]; odd [7, 3]; fused [6] in files, [2, 3] to ops. */
static const char *const names[] = {"a.grid", "a.odd", "a.fused"};
enum { NPARAMS = 3 };

typedef struct layout {
    int x, y;
    const char *grid, *odd, *fused;
} layout;

static const layout layouts[] = {
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

typedef struct model {
    dt_mesh *mesh;
    dt_module *root;
    dt_param *p[NPARAMS];
    dt_optim *optim;
} model;

static dt_status make(dt_world *world, const layout *l, dt_dtype dtype, model *m)
{
    const dt_mesh_options axes = {.axes = {{"x", l->x}, {"y", l->y}}};
    const dt_shape shape[NPARAMS] = {DT_SHAPE(4, 4), DT_SHAPE(7, 3), DT_SHAPE(2, 3)};
    const dt_shape file = DT_SHAPE(6);
    const char *const text[NPARAMS] = {l->grid, l->odd, l->fused};
    dt_module *a = NULL;
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &axes, &m->mesh));
    DT_TRY(dt_module_create(&kind, &m->root));
    DT_TRY(dt_module_create(&kind, &a));
    DT_TRY(dt_module_add(m->root, "a", a));
    for (int i = 0; i < NPARAMS; i++) {
        DT_TRY(dt_module_add_param(a, names[i] + 2, shape[i], i == 2 ? &file : NULL,
                                   (dt_init){DT_INIT_ZEROS, 0}, &m->p[i]));
        m->p[i]->dtype = dtype;
    }
    DT_TRY(dt_module_finish(m->root));
    for (int i = 0; i < NPARAMS; i++)
        DT_TRY(dt_module_place(m->root, m->mesh, names[i], text[i]));
    DT_TRY(dt_module_materialize(m->root, m->mesh, 0));
    return dt_adamw_create(m->root, NULL, &m->optim);
}

static void drop(model *m)
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

/* Write or check all of them, through local parts. */
static dt_status each(model *m, int salt, bool check, bool exact)
{
    int n = 0;
    dt_optim_state *state = dt_optim_states(m->optim, &n);
    for (int i = 0; i < NPARAMS; i++) {
        const bool master = state[i].master.storage != NULL;
        dt_array *array[] = {master && exact ? &state[i].master : dt_tensor_local(m->p[i]->tensor),
                             &state[i].exp_avg, &state[i].exp_avg_sq};
        dti_block b = {.whole = m->p[i]->shape};
        b.part = dt_mesh_local(dt_tensor_layout(m->p[i]->tensor), b.offset);
        for (int which = 0; which < (exact ? 3 : 1); which++) {
            dti_run run;
            dti_runs runs = dti_runs_of(&b, 0, 99);
            while (dti_runs_next(&runs, &run))
                for (int64_t k = 0; k < run.count; k++) {
                    const float want = value(i, which, run.whole + k, salt);
                    float *at = (float *)dt_array_data(array[which]) + run.block + k;
                    if (!check)
                        *at = want;
                    TEST_THAT(*at == want, "%s, array %d, element %lld: %g, not %g", names[i],
                              which, (long long)(run.whole + k), (double)*at, (double)want);
                }
        }
    }
    return DT_OK;
}

typedef struct job {
    const layout *l;
    dt_checkpoint_options o;
    const char *dir, *fault; /* of the world; in test_chain a file that is in the way */
    int step;
    bool load;
} job;

static dt_checkpoint_state state_of(int step)
{
    return (dt_checkpoint_state){.step = step,
                                 .position = 77 + step,
                                 .seed = 5,
                                 .scaler = {2, 3, 4, 5},
                                 .schedule = {.lr = 0.1}};
}

static dt_status work(dt_world *world, void *arg)
{
    const job *j = arg;
    model m = {0};
    dt_checkpoint *c = NULL;
    DT_TRY(make(world, j->l, DT_F32, &m));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    dt_checkpoint_state state = state_of(j->step);
    if (j->load) {
        bool found = false;
        DT_TRY(dt_checkpoint_load(c, -1, m.root, m.optim, &state, &found));
        TEST_THAT(found && state.step == j->step && state.position == 77 + j->step &&
                      state.seed == 5 && state.scaler.skipped == 5 && state.schedule.lr == 0.1 &&
                      dt_optim_steps(m.optim) == 9,
                  "step %lld", (long long)state.step);
        DT_TRY(each(&m, j->step, true, true));
    } else {
        DT_TRY(each(&m, j->step, false, true));
        dt_optim_set_steps(m.optim, 9);
        DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &state));
        DT_TRY(dt_checkpoint_wait(c));
        DT_TRY(each(&m, j->step, true, true));
    }
    dt_checkpoint_close(&c);
    drop(&m);
    return DT_OK;
}

static void go(job j)
{
    test_ranks(j.l->x * j.l->y, work, &j);
}

static const dt_checkpoint_options tiny = {.staging_bytes = 1, .piece_bytes = 8, .keep = 2};

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
    for (int i = 0; i < DT_COUNT(layouts); i++) {
        (void)snprintf(dir, sizeof dir, "%s/%d", folder, i);
        go((job){&layouts[i], tiny, dir, NULL, 10, false});
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
        for (int k = 0; k < DT_COUNT(layouts); k++)
            go((job){&layouts[(i + k) % DT_COUNT(layouts)], tiny, dir, NULL, 10, true});
    }
    for (int f = 0; f < DT_COUNT(files); f++)
        free(first[f]);
}
END_TEST

/* However it is placed, every byte has one writer, and all write about equally much. */
static dt_status balance(dt_world *world, void *arg)
{
    const job *j = arg;
    model m = {0};
    dti_plan *p = NULL;
    const dti_plan_options o = {.file_bytes = 200, .piece_bytes = 8};
    DT_TRY(make(world, j->l, DT_F32, &m));
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
    if (j->l->grid[0] == 0 && j->l->odd[0] == 0) { /* copies: each writes of its own */
        dt_checkpoint *c = NULL;
        dt_world_reset_counts(world);
        DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
        DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &(dt_checkpoint_state){.step = 1}));
        dt_checkpoint_close(&c);
        TEST_THAT(dt_world_counts(world).bytes[DT_CALL_ALL_TO_ALL] == 0, "copies were moved");
    }
    drop(&m);
    return DT_OK;
}

START_TEST(test_balance)
{
    for (int i = 0; i < DT_COUNT(layouts); i++) {
        job j = {&layouts[i], tiny, folder, NULL, 0, false};
        test_ranks(j.l->x * j.l->y, balance, &j);
    }
}
END_TEST

/* On and on: 4 ranks, 2, 8, 3, each saving what it loaded. */
static dt_status pass_on(dt_world *world, void *arg)
{
    const job *j = arg;
    model m = {0};
    dt_checkpoint *c = NULL;
    dt_checkpoint_state state;
    bool found = false;
    DT_TRY(make(world, j->l, DT_F32, &m));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    if (j->fault)
        files_put(folder, j->fault, "", "", 0);
    DT_TRY(dt_checkpoint_load(c, -1, m.root, m.optim, &state, &found));
    DT_TRY(each(&m, 10, true, true));
    state.step++;
    DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &state));
    dt_checkpoint_close(&c);
    drop(&m);
    return DT_OK;
}

START_TEST(test_chain)
{
    static const int order[] = {8, 9, 10, 11};
    go((job){&layouts[2], tiny, folder, NULL, 10, false});
    for (int i = 0; i < DT_COUNT(order); i++) {
        job j = {&layouts[order[i]], tiny, folder, NULL, 0, false};
        test_ranks(j.l->x * j.l->y, pass_on, &j);
    }
    ck_assert(files_exists(folder, "step-00000014/state.json"));
    ck_assert(files_exists(folder, "step-00000013/state.json"));
    ck_assert(!files_exists(folder, "step-00000012")); /* keep 2 */
    /* what cannot be removed does not matter, and goes the next time */
    job j = {&layouts[0], tiny, folder, "step-00000013.old", 0, false};
    test_ranks(1, pass_on, &j);
    ck_assert(files_exists(folder, "step-00000015") && files_exists(folder, "step-00000013"));
    j.fault = NULL;
    test_ranks(1, pass_on, &j);
    ck_assert(!files_exists(folder, "step-00000013.old") &&
              !files_exists(folder, "step-00000013") && !files_exists(folder, "step-00000014"));
}
END_TEST

/* ---- damage, full disks, in the background ---- */

static char *step_file(int step, const char *name, char path[FILES_PATH])
{
    (void)snprintf(path, FILES_PATH, "%.400s/step-%08d/%s", folder, step, name);
    return path;
}

static void flip(const char *path, off_t at)
{
    char byte = 0;
    const int fd = open(path, O_RDWR);
    ck_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    ck_assert(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
}

static void take_line(void *arg, const char *line)
{
    (void)snprintf(arg, 1024, "%s", line);
}

/* Any byte of any file, flipped or cut off: the file is named, and the step before is loaded. */
START_TEST(test_damage)
{
    static const char *const files[] = {"model-00001-of-00001.safetensors",
                                        "optimizer-00001-of-00001.safetensors",
                                        "model.safetensors.index.json", "state.json"};
    char path[FILES_PATH], said[1024] = "";
    dt_checkpoint_options o = tiny;
    o.say = take_line;
    o.say_arg = said;
    for (int f = 0; f < DT_COUNT(files); f++) {
        for (int part = 0; part < 4; part++) { /* 3: the end is cut off */
            struct stat info;
            go((job){&layouts[2], o, folder, NULL, 10, false});
            go((job){&layouts[2], o, folder, NULL, 20, false});
            ck_assert(stat(step_file(20, files[f], path), &info) == 0);
            if (part == 3)
                ck_assert(truncate(path, info.st_size - 1) == 0);
            else
                flip(path, part * (info.st_size - 3) / 2);
            said[0] = '\0';
            go((job){&layouts[5], o, folder, NULL, 10, true});
            ck_assert_msg(strstr(said, "step 20 is passed over") && strstr(said, files[f]),
                          "%s, part %d: %s", files[f], part, said);
        }
    }
}
END_TEST

static dt_status save_fails(dt_world *world, void *arg)
{
    job *j = arg;
    model m = {0};
    dt_checkpoint *c = NULL;
    DT_TRY(make(world, j->l, DT_F32, &m));
    DT_TRY(each(&m, 20, false, true));
    dt_optim_set_steps(m.optim, 9);
    dt_world_set_fault(world, j->fault);
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    const dt_checkpoint_state state = state_of(20);
    dt_status st = dt_checkpoint_save(c, m.root, m.optim, &state);
    if (st == DT_OK)
        st = dt_checkpoint_wait(c);
    if (st != DT_OK)
        TEST_THAT(strstr(dt_error_trace(), "No space left on device"), "%s", dt_error_trace());
    if (dt_world_rank(world) == 0)
        j->step = st == DT_OK ? 20 : 10;
    dt_checkpoint_close(&c);
    DT_TRY(each(&m, 20, true, true)); /* training may go on */
    drop(&m);
    return DT_OK;
}

/* A disk that is full from the Nth call on, on all ranks or one: an error on all ranks, and the
 * step before is there; until N is past the last call. */
START_TEST(test_full_disk)
{
    bool over = false;
    for (int n = 1; !over; n += 2) {
        for (int one = 0; one < 2; one++) {
            char fault[64];
            (void)snprintf(fault, sizeof fault, "checkpoint_full:%d%s", n, one ? "@1" : "");
            job j = {&layouts[5], tiny, folder, fault, 0, false};
            j.o.async = n % 4 == 1;
            j.o.keep = 1;
            go((job){&layouts[5], tiny, folder, NULL, 10, false});
            test_ranks(4, save_fails, &j);
            ck_assert(!files_exists(folder, "step-00000020.tmp"));
            go((job){&layouts[3], tiny, folder, NULL, j.step, true});
            over = over || (!one && j.step == 20);
            files_end(folder);
            ck_assert(mkdir(folder, 0777) == 0);
        }
        ck_assert_msg(n < 1000 && (!over || n > 20), "%d calls", n);
    }
}
END_TEST

/* What is changed after an async save has returned does not get into the file. */
static dt_status change(dt_world *world, void *arg)
{
    const job *j = arg;
    model m = {0};
    dt_checkpoint *c = NULL;
    bool busy = true;
    DT_TRY(make(world, j->l, DT_F32, &m));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    for (int step = 1; step <= 3; step++) { /* each waits for the last */
        DT_TRY(each(&m, step, false, true));
        dt_optim_set_steps(m.optim, 9);
        const dt_checkpoint_state state = state_of(step);
        DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &state));
        DT_TRY(each(&m, 500, false, true));
    }
    while (busy)
        DT_TRY(dt_checkpoint_poll(c, &busy));
    dt_checkpoint_close(&c);
    drop(&m);
    return DT_OK;
}

START_TEST(test_async)
{
    for (int i = 0; i < DT_COUNT(layouts); i++) {
        job j = {&layouts[i], tiny, folder, NULL, 3, true};
        j.o.async = true;
        j.o.staging_bytes = i % 2 ? 600 : 0;
        test_ranks(j.l->x * j.l->y, change, &j);
        go(j);
    }
}
END_TEST

/* Files in bf16 of f32 parameters, and of bf16 ones with f32 masters: what is rounded is kept. */
static dt_status rounded(dt_world *world, void *arg)
{
    const job *j = arg;
    model m = {0}, other = {0};
    dt_checkpoint *c = NULL;
    dt_checkpoint_state state = {.step = 1};
    bool found = false;
    DT_TRY(make(world, j->l, j->step ? DT_BF16 : DT_F32, &m));
    DT_TRY(each(&m, 1, false, true));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &state));
    dt_checkpoint_close(&c);
    DT_TRY(make(world, j->l, DT_BF16, &other));
    DT_TRY(dt_checkpoint_open(world, j->dir, NULL, &c));
    DT_TRY(dt_checkpoint_load(c, 1, other.root, other.optim, &state, &found));
    DT_TRY(each(&other, 1, true, true)); /* masters, and what is in use */
    for (int i = 0; i < NPARAMS; i++) {
        int n = 0;
        dt_array *use = dt_tensor_local(other.p[i]->tensor);
        const float *master = dt_array_data(&dt_optim_states(other.optim, &n)[i].master);
        for (int64_t k = 0; k < dt_array_count(use); k++)
            TEST_THAT(((uint16_t *)dt_array_data(use))[k] == dt_f32_to_bf16(master[k]),
                      "%s, element %lld", names[i], (long long)k);
    }
    TEST_FAILS(DT_ERR_IO, "step-00000007",
               dt_checkpoint_load(c, 7, other.root, other.optim, &state, &found));
    dt_checkpoint_close(&c);
    drop(&m);
    drop(&other);
    return DT_OK;
}

START_TEST(test_rounding)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (int i = 0; i < 6; i++) {
        dt_checkpoint_options o = tiny;
        o.dtype = types[i % 3];
        job j = {&layouts[7], o, folder, NULL, i / 3, false};
        test_ranks(4, rounded, &j);
        dt_safetensors *st = NULL;
        char path[FILES_PATH];
        ck_ok(dt_safetensors_open(step_file(1, "", path), &st));
        ck_assert_int_eq(dt_safetensors_get(st, 0)->dtype, o.dtype);
        ck_assert_int_eq(dt_safetensors_get(st, 0)->bytes, 6 * (i % 3 ? 2 : 4));
        dt_safetensors_close(&st);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoints");
    TCase *tc = tcase_create("checkpoint");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_runs);
    tcase_add_test(tc, test_layouts);
    tcase_add_test(tc, test_balance);
    tcase_add_test(tc, test_chain);
    tcase_add_test(tc, test_damage);
    tcase_add_test(tc, test_full_disk);
    tcase_add_test(tc, test_async);
    tcase_add_test(tc, test_rounding);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
