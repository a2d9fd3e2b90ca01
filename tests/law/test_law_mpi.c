/* tests/law/test_law_mpi.c - run by tools/mpirun: processes, by shared memory, by MPI or by both,
 * and threads of one process train to equal bits. */
#include "tests/harness.h"
#include "tests/law/law.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

START_TEST(mpi_and_threads_agree_bit_for_bit)
{
    law_run mpi = {0}, threads = {0};
    law_case c = {.golden = getenv("DT_TEST_CASE"), .micro_batch = 1, .steps = 2, .mpi = true};
    ck_ok(law_train(&c, &mpi));
    if (mpi.nparams == 0)
        return; /* results are rank 0's */
    c.mpi = false;
    c.ranks = atoi(getenv("DT_TEST_RANKS"));
    ck_ok(law_train(&c, &threads));
    ck_assert(memcmp(mpi.loss, threads.loss, sizeof mpi.loss) == 0);
    for (int i = 0; i < mpi.nparams; i++)
        ck_assert_msg(
            memcmp(mpi.weight[i], threads.weight[i], sizeof(double) * (size_t)mpi.count[i]) == 0,
            "%s differs", mpi.name[i]);
    law_free(&mpi);
    law_free(&threads);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("MPI and threads");
    TCase *tc = tcase_create("bits");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, mpi_and_threads_agree_bit_for_bit);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
