/* tests/comm/test_nccl.c - calls of arrays on cuda when ranks fail: nobody hangs, and what is left
 * can be given back. */
#include "tests/harness.h"

#include <string.h>

static dt_status one_leaves(dt_world *world, void *arg)
{
    (void)arg;
    dt_heap *heap;
    dt_array x;
    dt_work *first, *second;
    float value;
    DT_TRY(dt_world_heap(world, test_device(world), &heap));
    DT_TRY(dt_array_create(heap, DT_F32, DT_SHAPE(1), DT_TAG_COMM, &x));
    const dt_part part = {.in = &x, .out = &x};
    dt_array_fill(&x, 1);
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &part, DT_REDUCE_SUM, "both", &first));
    DT_TRY(dt_work_wait(&first));
    DT_TRY(dt_array_read(&x, &value, 1));
    TEST_THAT(value == 2, "%g", (double)value);
    if (dt_world_rank(world) == 1) {
        dt_array_release(&x);
        return DT_ERROR(DT_ERR_IO, "the disk is full");
    }
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &part, DT_REDUCE_SUM, "alone", &first));
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &part, DT_REDUCE_SUM, "again", &second));
    DT_TRY(dt_work_wait(&first)); /* the device waits, not the host */
    TEST_FAILS(DT_ERR_COMM, "a peer failed", dt_array_read(&x, &value, 1));
    TEST_FAILS(DT_ERR_COMM, "a peer failed", dt_work_wait(&second));
    dt_array_release(&x);
    return DT_OK;
}

START_TEST(a_rank_that_leaves_ends_the_waits_of_others)
{
    const dt_status st = dt_world_run_threads(2, NULL, one_leaves, NULL);
    ck_assert_msg(st == DT_ERR_IO && strstr(dt_error_trace(), "the disk is full") != NULL, "%d: %s",
                  (int)st, dt_error_trace());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nccl");
    TCase *failures = tcase_create("failures");
    tcase_set_timeout(failures, 60);
    tcase_add_test(failures, a_rank_that_leaves_ends_the_waits_of_others);
    suite_add_tcase(suite, failures);
    return test_main(suite);
}
