/* tests/simdev/self/test_faults.c - that the simulated device stops wrong programs: each runs as a
 * process of its own, which must end with the words expected of this kind of build. */
#include "device_test.h"
#include "faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ORDERS: of threads, in all three; CUDNN: where it is built in. */
enum { PLAIN = 1, ASAN = 2, TSAN = 4, ALL = 7, ORDERS = 8, CUDNN = 16 };
#if defined(__has_feature)
#define HAS(sanitizer) __has_feature(sanitizer)
#else
#define HAS(sanitizer) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || HAS(address_sanitizer)
static const int build = ASAN;
#elif defined(__SANITIZE_THREAD__) || HAS(thread_sanitizer)
static const int build = TSAN;
#else
static const int build = PLAIN;
#endif

static const char *program; /* fault */
static bool cudnn;
static const char race[] = "ThreadSanitizer: data race";

static const struct expected {
    const char *name;
    int builds;
    const char *words, *more; /* both must be printed; NULL: none */
} table[] = {
    {"exit_before_barrier", ALL | ORDERS, "barrier divergence: some threads exited", "faults.cu"},
    {"branch_around_barrier", ALL | ORDERS, "threads of a block wait at different barriers",
     "faults.cu"},
    {"shuffle_exited", ALL | ORDERS, "a warp operation names lanes that have exited", NULL},
    {"shuffle_branched", ALL | ORDERS, "meet at different warp operations", "faults.cu"},
    {"shuffle_left_out", ALL | ORDERS, "whose mask 0000ffff leaves it out", NULL},
    {"shuffle_foreign", ALL | ORDERS, "a shuffle reads lane 20, which is not in it", NULL},
    {"active_mask", ALL, "__activemask() depends on the schedule", NULL},
    {"no_barrier_left", TSAN, race, "faults.cu"},
    {"no_barrier_right", TSAN, race, "faults.cu"},
    {"no_barrier_behind", TSAN, race, "faults.cu"},
    {"no_syncwarp", TSAN, race, "faults.cu"},
    {"shuffle_for_syncwarp", TSAN, race, "faults.cu"},
    {"not_atomic", TSAN, race, "faults.cu"},
    {"write_past", PLAIN | TSAN, "(256 bytes) was written 0 bytes past its end", NULL},
    {"write_past", ASAN, "AddressSanitizer", "in write_past"},
    {"write_before", PLAIN | TSAN, "(256 bytes) was written 4 bytes before its start", NULL},
    {"write_before", ASAN, "AddressSanitizer", "in write_before"},
    {"misaligned", ALL, "kernel misaligned: an access of 16 bytes at", NULL},
    {"static_shared_past", ASAN, "index 64 out of bounds", "faults.cu"},
    {"dynamic_shared_past", PLAIN | TSAN, "past its 256 bytes of dynamic shared memory", NULL},
    {"dynamic_shared_past", ASAN, "AddressSanitizer", "in dynamic_shared_past"},
    {"host_reads", ALL, "HOST access to device memory", "of 256 bytes, at byte 12"},
    {"host_pointer", ALL, "argument 0", "is not a live device pointer"},
    {"freed_pointer", ALL, "argument 0", "is not a live device pointer"},
    {"given_block", ASAN, "use-after-poison", "in fine"},
    {"taken_block", TSAN, race, "sim_block_taken"},
    {"free_twice", ALL, "not a live allocation", NULL},
    {"copy_kind", ALL, "the source of a copy", "not inside one live device allocation"},
    {"copy_of_host_kind", ALL, "is device memory, but the kind of copy says host", NULL},
    {"copy_range", ALL, "the source of a copy", "not inside one live device allocation"},
    {"fill_range", ALL, "cudaMemsetAsync", "not inside one live device allocation"},
    {"other_device", ALL, "is memory of device 0, the stream is of device 1", NULL},
    {"no_threads", ALL, "a launch of (1,1,1) blocks of (0,1,1) threads", NULL},
    {"too_many_threads", ALL, "a launch of (1,1,1) blocks of (1025,1,1) threads", NULL},
    {"no_blocks", ALL, "a launch of (0,1,1) blocks", NULL},
    {"no_dynamic_shared", ALL, "but its launch asks for 0 bytes", NULL},
    {"dynamic_shared_limit", ALL, "49153 bytes of dynamic shared memory, of 49152", NULL},
    {"both_shared_limit", ALL, "36000 of static, of 49152 together", NULL},
    {"both_shared_at_most", ALL, "36000 of static, of 232448 together", NULL},
    {"default_stream", ALL, "work on a default stream", NULL},
    {"destroyed_stream", ALL, "is not a stream, or was destroyed", NULL},
    {"destroyed_event", ALL, "is not an event, or was destroyed", NULL},
    {"stream_of_other_device", ALL, "a stream of device 0 by a thread whose device is 1", NULL},
    {"event_of_other_device", ALL, "an event of device 0 is recorded on a stream of device 1",
     NULL},
    {"streams_share_nothing", ALL, "nothing stopped it", NULL},
    {"streams_write_one", TSAN, race, "block_row_sum"},
    {"product_range", ALL, "an operand of cublasLtMatmul", "not inside one live"},
    {"counts_differ", ALL, "ncclAllGather of 64 f32 by rank 0", "of 63 f32 by rank 1"},
    {"types_differ", ALL, "ncclAllGather of 64 f32 by rank 0", "of 64 i32 by rank 1"},
    {"kinds_differ", ALL, "ncclAllGather of 64 f32 by rank 0", "ncclAllReduce of 64 f32"},
    {"reductions_differ", ALL, "by rank 0 (reduction 0)", "by rank 1 (reduction 2)"},
    {"roots_differ", ALL, "by rank 0 (root 0)", "by rank 1 (root 1)"},
    {"send_and_receive_differ", ALL, "ncclSend of 64 f32 by rank 0 to 1", "ncclRecv of 63 f32"},
    {"absent_rank", ALL, "a wait has seen nothing happen", "ncclAllGather of 64 f32 by rank 0"},
    {"sends_meet", ALL, "a wait has seen nothing happen", "ncclSend of 64 f32 by rank 1 to 0"},
    {"gather_range", ALL, "ncclAllGather", "not inside one live device allocation"},
    {"two_streams_in_group", ALL, "one communicator on two streams in one group", NULL},
    {"destroyed_member", ALL, "a wait has seen nothing happen",
     "ncclAllGather of 64 f32 by rank 0"},
    {"stream_of_other_rank", ALL, "is of device 0, the stream of device 1", NULL},
    {"cudnn_type", ALL | CUDNN, "4 values of type 23 for attribute 902", "4 of type 3"},
    {"cudnn_count", ALL | CUDNN, "3 values of type 3 for attribute 902", "4 to 4"},
    {"cudnn_unknown", ALL | CUDNN, "attribute 904 of a descriptor of kind 17 is not simulated",
     NULL},
    {"cudnn_not_set", ALL | CUDNN, "attribute 903 of a descriptor of kind 17 is not set", NULL},
    {"cudnn_stride", ALL | CUDNN, "array 1: a stride of 7 where 8 elements", NULL},
    {"cudnn_not_finalized", ALL | CUDNN, "a descriptor of kind 17 that is not finalized", NULL},
    {"cudnn_finalized", ALL | CUDNN, "a descriptor of kind 17, which is finalized", NULL},
    {"cudnn_destroyed", ALL | CUDNN, "is no descriptor of cuDNN, or was destroyed", NULL},
    {"cudnn_misaligned", ALL | CUDNN, "array 1 at", "is not aligned to 16"},
    {"cudnn_range", ALL | CUDNN, "an array of cudnnBackendExecute", "not inside one live"},
    {"cudnn_no_workspace", ALL | CUDNN, "an array of cudnnBackendExecute", "not inside one live"},
    {"cudnn_missing", ALL | CUDNN, "the variant pack has no array 5", NULL},
    {"cudnn_number_on_device", ALL | CUDNN, "the number 6 is not on the host", NULL},
    {"cudnn_no_wait", TSAN | CUDNN, race, "cudnnBackendExecute"},
};

/* Run `fault NAME OMIT` with one more variable of the environment; gives what it prints. */
static void run_fault(const char *name, const char *omit, const char *variable, const char *value,
                      char *text, size_t size)
{
    int out[2];
    ck_assert(pipe(out) == 0);
    pid_t child = fork();
    ck_assert(child >= 0);
    if (child == 0) {
        (void)dup2(out[1], 1);
        (void)dup2(out[1], 2);
        (void)setenv("SIMDEV_TIMEOUT", "1", 1);
        (void)setenv(variable, value, 1);
        (void)execl(program, "fault", name, omit, NULL);
        _exit(1);
    }
    close(out[1]);
    size_t used = 0;
    for (ssize_t n; used + 1 < size && (n = read(out[0], text + used, size - used - 1)) > 0;)
        used += (size_t)n;
    text[used] = 0;
    close(out[0]);
    (void)waitpid(child, NULL, 0);
}

START_TEST(stopped)
{
    static char text[1 << 16];
    const struct expected *e = &table[_i];
    if (e->builds & CUDNN && !cudnn)
        return;
    for (int order = 0; (e->builds & build) && order < (e->builds & ORDERS ? 3 : 1); order++) {
        char value[2] = {(char)('0' + order), 0};
        run_fault(e->name, NULL, "SIMDEV_ORDER", value, text, sizeof text);
        ck_assert_msg(strstr(text, e->words) && (!e->more || strstr(text, e->more)),
                      "%s, order %d: expected \"%s\" and \"%s\":\n%s", e->name, order, e->words,
                      e->more ? e->more : "", text);
    }
}
END_TEST

/* Under the thread sanitizer any one run shows it. Without, results are wrong in one of the orders
 * of streams, and never if no wait is missing. */
START_TEST(waits)
{
    static char text[1 << 16];
    static const char *const schedules[] = {"random", "random", "random", "random",
                                            "newest", "demand", "eager"};
    static const char *const seeds[] = {"1", "2", "3", "4", "1", "1", "1"};
    char omit[2] = {(char)('0' + _i), 0};
    int wrong = 0, races = 0, runs = build == PLAIN ? 7 : 1;
    for (int i = 0; i < runs; i++) {
        ck_assert(setenv("SIMDEV_SEED", seeds[i], 1) == 0);
        run_fault("zero_loop", omit, "SIMDEV_SCHED", schedules[i], text, sizeof text);
        races += strstr(text, race) != NULL;
        wrong += strstr(text, "results are WRONG") != NULL;
        ck_assert_msg(strstr(text, race) || strstr(text, "the results are"), "%s", text);
        if (_i == 0)
            ck_assert_msg(strstr(text, "results are right"), "%s %s:\n%s", schedules[i], seeds[i],
                          text);
    }
    if (build == TSAN && _i > 0)
        ck_assert_msg(races == 1, "without wait %d: no race was reported", _i);
    if (build == PLAIN && _i > 0)
        ck_assert_msg(wrong > 0, "without wait %d: %d runs are right", _i, runs);
}
END_TEST

/* ---- wrong in some order of threads, or of blocks ---- */

static bool differs(const char *kernel, int blocks, int elements)
{
    int first[128], back[128];
    bool any = false;
    cudaStream_t s = new_stream();
    int *out = device_array(128 * sizeof *out);
    for (int order = 0; order < 3; order++) {
        sim_set_order(order);
        ck_cuda(cudaMemsetAsync(out, 0, sizeof back, s));
        k_fault(kernel, blocks, out, s);
        to_host(order ? back : first, out, sizeof back, s);
        any = any || (order && memcmp(first, back, (size_t)elements * sizeof *back) != 0);
    }
    sim_set_order(0);
    ck_cuda(cudaFree(out));
    ck_cuda(cudaStreamDestroy(s));
    return any;
}

START_TEST(orders)
{
    if (build == TSAN)
        return; /* it would stop this process */
    ck_assert(differs("no_barrier_left", 1, 64));
    ck_assert(differs("no_barrier_right", 1, 64));
    ck_assert(differs("no_syncwarp", 1, 64));
    ck_assert(differs("blocks_write_one", 9, 1));
    ck_assert(!differs("fine", 1, 64));
}
END_TEST

int main(int argc, char **argv)
{
    program = argc > 1 ? argv[1] : "./fault";
    cudnn = argc > 2;
    Suite *suite = suite_create("simdev/faults");
    TCase *tc = tcase_create("faults");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, stopped, 0, (int)(sizeof table / sizeof *table));
    tcase_add_loop_test(tc, waits, 0, 6);
    tcase_add_test(tc, orders);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
