/* tests/simdev/self/fault.c - runs one wrong program: fault NAME, or fault zero_loop OMIT. What
 * ought to stop it, and how: test_faults.c. */
#include "device_test.h"
#include "faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *name, *omit;

START_TEST(fault)
{
    if (!strcmp(name, "zero_loop"))
        puts(zero_loop(atoi(omit)) ? "the results are right" : "the results are WRONG");
    else if (fault_of_nccl(name) || fault_of_streams(name) || fault_of_memory(name) ||
             (fault_of_cudnn && fault_of_cudnn(name)))
        puts("nothing stopped it");
    else
        puts("there is no such fault");
}
END_TEST

int main(int argc, char **argv)
{
    name = argc > 1 ? argv[1] : "";
    omit = argc > 2 ? argv[2] : "0";
    Suite *suite = suite_create("simdev/fault"); /* for ck_assert */
    TCase *tc = tcase_create("fault");
    tcase_add_test(tc, fault);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
