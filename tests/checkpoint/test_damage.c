/* tests/checkpoint/test_damage.c - folders of steps: damage that is named, disks that are full. */
#include "tests/checkpoint/files.h"
#include "tests/checkpoint/steps.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

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
    dt_checkpoint_options o = steps_tiny;
    o.say = take_line;
    o.say_arg = said;
    for (int f = 0; f < DT_COUNT(files); f++) {
        for (int part = 0; part < 4; part++) { /* 3: the end is cut off */
            struct stat info;
            steps_go((steps_job){&steps_layouts[2], o, steps_folder, NULL, 10, false});
            steps_go((steps_job){&steps_layouts[2], o, steps_folder, NULL, 20, false});
            ck_assert(stat(steps_file(20, files[f], path), &info) == 0);
            if (part == 3)
                ck_assert(truncate(path, info.st_size - 1) == 0);
            else
                flip(path, part * (info.st_size - 3) / 2);
            said[0] = '\0';
            steps_go((steps_job){&steps_layouts[5], o, steps_folder, NULL, 10, true});
            ck_assert_msg(strstr(said, "step 20 is passed over") && strstr(said, files[f]),
                          "%s, part %d: %s", files[f], part, said);
        }
    }
}
END_TEST

/* Damaged steps do not count among those that are kept, and the good one before them stays. */
static dt_status keep_good(dt_world *world, void *arg)
{
    const steps_job *j = arg;
    steps_model m = {0};
    dt_checkpoint *c = NULL;
    dt_checkpoint_state state;
    bool found = false;
    DT_TRY(steps_make(world, j->l, DT_F32, &m));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    DT_TRY(dt_checkpoint_load(c, -1, m.root, m.optim, &state, &found));
    TEST_THAT(state.step == 10, "step %lld", (long long)state.step);
    for (state.step = 40; state.step <= 50; state.step += 10) {
        DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &state));
        const char *const there = state.step == 40 ? "step-00000010" : "step-00000040";
        TEST_THAT(dt_world_rank(world) != 0 || files_exists(j->dir, there), "%s is gone", there);
    }
    dt_checkpoint_close(&c);
    steps_drop(&m);
    return DT_OK;
}

START_TEST(test_keep_good)
{
    char path[FILES_PATH];
    dt_checkpoint_options o = steps_tiny;
    o.keep = 0;
    for (int step = 10; step <= 30; step += 10)
        steps_go((steps_job){&steps_layouts[2], o, steps_folder, NULL, step, false});
    flip(steps_file(20, "state.json", path), 100);
    flip(steps_file(30, "model-00001-of-00001.safetensors", path), 40);
    test_ranks(4, keep_good,
               &(steps_job){&steps_layouts[2], steps_tiny, steps_folder, NULL, 0, true});
    ck_assert(files_exists(steps_folder, "step-00000050") &&
              files_exists(steps_folder, "step-00000040") &&
              !files_exists(steps_folder, "step-00000030") &&
              !files_exists(steps_folder, "step-00000010"));
}
END_TEST

/* A save of the model only is passed over and stays: it is not damaged. */
static dt_status keep_model(dt_world *world, void *arg)
{
    const steps_job *j = arg;
    steps_model m = {0};
    dt_checkpoint *c = NULL;
    dt_checkpoint_state state;
    bool found = false;
    DT_TRY(steps_make(world, j->l, DT_F32, &m));
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    DT_TRY(dt_checkpoint_save(c, m.root, NULL, &(dt_checkpoint_state){.step = 20}));
    DT_TRY(dt_checkpoint_load(c, -1, m.root, m.optim, &state, &found));
    TEST_THAT(state.step == 10, "step %lld", (long long)state.step);
    DT_TRY(dt_checkpoint_save(c, m.root, m.optim, &(dt_checkpoint_state){.step = 30}));
    dt_checkpoint_close(&c);
    steps_drop(&m);
    return DT_OK;
}

START_TEST(test_keep_model)
{
    steps_job j = {&steps_layouts[2], steps_tiny, steps_folder, NULL, 10, false};
    steps_go(j);
    test_ranks(4, keep_model, &j);
    ck_assert(files_exists(steps_folder, "step-00000030") &&
              files_exists(steps_folder, "step-00000020") &&
              !files_exists(steps_folder, "step-00000010"));
}
END_TEST

/* A part of a file that no checksum is told for, under a checksum of the whole that is right. */
START_TEST(test_gaps)
{
    char path[FILES_PATH], folder[FILES_PATH], sum[17];
    steps_go((steps_job){&steps_layouts[2], steps_tiny, steps_folder, NULL, 10, false});
    ck_ok(dt_checkpoint_verify(steps_file(10, "", folder)));
    json_t *root = json_load_file(steps_file(10, "state.json", path), 0, NULL);
    json_t *file = json_object_get(json_object_get(root, "files"), "model.safetensors.index.json");
    ck_assert(json_array_clear(json_object_get(file, "xxh3")) == 0);
    ck_assert(json_object_del(root, "checksum") == 0);
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    (void)snprintf(sum, sizeof sum, "%016llx", (unsigned long long)XXH3_64bits(text, strlen(text)));
    ck_assert(json_object_set_new(root, "checksum", json_string(sum)) == 0 &&
              json_dump_file(root, path, 0) == 0);
    free(text);
    json_decref(root);
    ck_ok(test_expect(dt_checkpoint_verify(folder), DT_ERR_FORMAT, "checksums of 0 bytes", "gap"));
}
END_TEST

/* What `latest` names, then what is older, then what is newer, each newest first. */
START_TEST(test_order)
{
    static const int order[] = {20, 10, 40, 30};
    char path[FILES_PATH];
    dt_checkpoint_options o = steps_tiny;
    o.keep = 0;
    for (int step = 10; step <= 40; step += 10)
        steps_go((steps_job){&steps_layouts[2], o, steps_folder, NULL, step, false});
    (void)snprintf(path, sizeof path, "%.400s/latest", steps_folder);
    ck_assert(unlink(path) == 0 && symlink("step-00000020", path) == 0);
    for (int i = 0; i < DT_COUNT(order); i++) {
        steps_go((steps_job){&steps_layouts[2], o, steps_folder, NULL, order[i], true});
        flip(steps_file(order[i], "state.json", path), 100);
    }
}
END_TEST

/* Files of this process may have so many bytes, as under a quota; 0: any number. */
static void limit_files(rlim_t bytes)
{
    struct rlimit l;
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert(getrlimit(RLIMIT_FSIZE, &l) == 0);
    l.rlim_cur = bytes ? bytes : l.rlim_max;
    ck_assert(setrlimit(RLIMIT_FSIZE, &l) == 0);
}

/* A fault, or without one a limit. */
static dt_status save_fails(dt_world *world, void *arg)
{
    steps_job *j = arg;
    steps_model m = {0};
    dt_checkpoint *c = NULL;
    DT_TRY(steps_make(world, j->l, DT_F32, &m));
    DT_TRY(steps_each(&m, 20, false, true));
    dt_optim_set_steps(m.optim, 9);
    if (j->fault)
        dt_world_set_fault(world, j->fault);
    DT_TRY(dt_checkpoint_open(world, j->dir, &j->o, &c));
    const dt_checkpoint_state state = steps_state(20);
    if (!j->fault)
        limit_files(100);
    dt_status st = dt_checkpoint_save(c, m.root, m.optim, &state);
    if (st == DT_OK)
        st = dt_checkpoint_wait(c);
    limit_files(0);
    if (st != DT_OK)
        TEST_THAT(strstr(dt_error_trace(), j->fault ? "No space left on device" : "File too large"),
                  "%s", dt_error_trace());
    if (dt_world_rank(world) == 0)
        j->step = st == DT_OK ? 20 : 10;
    dt_checkpoint_close(&c);
    DT_TRY(steps_each(&m, 20, true, true)); /* training may go on */
    steps_drop(&m);
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
            steps_job j = {&steps_layouts[5], steps_tiny, steps_folder, fault, 0, false};
            j.o.async = n % 4 == 1;
            j.o.keep = 1;
            steps_go((steps_job){&steps_layouts[5], steps_tiny, steps_folder, NULL, 10, false});
            test_ranks(4, save_fails, &j);
            ck_assert(!files_exists(steps_folder, "step-00000020.tmp"));
            steps_go((steps_job){&steps_layouts[3], steps_tiny, steps_folder, NULL, j.step, true});
            over = over || (!one && j.step == 20);
            files_end(steps_folder);
            ck_assert(mkdir(steps_folder, 0777) == 0);
        }
        ck_assert_msg(n < 1000 && (!over || n > 20), "%d calls", n);
    }
}
END_TEST

START_TEST(test_quota)
{
    for (int async = 0; async < 2; async++) {
        steps_job j = {&steps_layouts[5], steps_tiny, steps_folder, NULL, 0, false};
        j.o.async = async != 0;
        steps_go((steps_job){&steps_layouts[5], steps_tiny, steps_folder, NULL, 10, false});
        test_ranks(4, save_fails, &j);
        ck_assert(j.step == 10 && !files_exists(steps_folder, "step-00000020.tmp"));
        steps_go((steps_job){&steps_layouts[3], steps_tiny, steps_folder, NULL, 10, true});
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoints: damage");
    TCase *tc = tcase_create("damage");
    tcase_add_checked_fixture(tc, steps_begin, steps_end);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_damage);
    tcase_add_test(tc, test_keep_good);
    tcase_add_test(tc, test_keep_model);
    tcase_add_test(tc, test_gaps);
    tcase_add_test(tc, test_order);
    tcase_add_test(tc, test_full_disk);
    tcase_add_test(tc, test_quota);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
