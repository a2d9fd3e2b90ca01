/* tests/comm/test_mpi.c - the mpi and shm backends, run by tools/mpirun on 1, 2 or 4 ranks: the
 * cases of cases.h give the same bytes as rank threads in one process, whatever the size of
 * messages and on pretended machines; a rank that does not come is named. DT_COMM says which
 * backend the other tests run on. All ranks pass or fail together, so that none waits for another.
 *
 * `test_mpi die`: rank 1 gives up while rank 0 waits; the job must end (test_mpi_die.sh).
 * `test_mpi sum`: says what carries a sum.
 * `test_mpi killed`, `killed_message`: rank 1 is killed while rank 0 waits for it. */
#include "tests/comm/edges.h"
#include "tests/comm/lanes.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Assert on all ranks what must be true on each. */
#define ck_all(cond, ...)                                                  \
    do {                                                                   \
        int mine_ = (cond) ? 1 : 0, all_ = 0;                              \
        MPI_Allreduce(&mine_, &all_, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD); \
        if (!mine_)                                                        \
            (void)fprintf(stderr, __VA_ARGS__);                            \
        ck_assert_msg(all_ == 1, "not true on all ranks: " #cond);         \
    } while (0)

typedef struct thread_arg {
    int rank; /* whose results are wanted */
    bool large;
    case_results results;
} thread_arg;

static int rank_of_all(void)
{
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

static int size_of_all(void)
{
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
}

static dt_status cases_of_threads(dt_world *world, void *arg)
{
    thread_arg *t = arg;
    case_results own = {0};
    case_results *results = dt_world_rank(world) == t->rank ? &t->results : &own;
    const dt_status st = run_cases(world, dt_world_comm(world), t->large, results);
    free(own.bytes);
    DT_TRY(st);
    return DT_OK;
}

static dt_status cases_of_mpi(const dt_world_options *options, int channel, bool large,
                              case_results *results)
{
    dt_world *world;
    DT_TRY(dt_world_create(options, &world));
    int ranks[8];
    for (int r = 0; r < dt_world_size(world); r++)
        ranks[r] = r;
    dt_comm *comm = NULL;
    dt_status st = dt_comm_create(world, ranks, dt_world_size(world), channel, &comm);
    if (st == DT_OK)
        st = run_cases(world, comm, large, results);
    dt_comm_destroy(&comm);
    if (st == DT_OK) /* else arrays may still be alive, and the message is what matters */
        dt_world_destroy(&world);
    return st;
}

/* mpi: message sizes in elements: all at once, the 1 Ki, and odd ones. */
START_TEST(same_bytes_as_threads)
{
    static const struct {
        dt_backend backend;
        int machines;
        int64_t piece;
        int channel;
        bool large;
    } runs[] = {{DT_BACKEND_MPI, 0, 0, 0, true},    {DT_BACKEND_MPI, 0, 1024, 1, true},
                {DT_BACKEND_MPI, 0, 3, 2, false},   {DT_BACKEND_MPI, 0, 1, 0, false},
                {DT_BACKEND_SHM, 0, 0, 0, true},    {DT_BACKEND_SHM, 0, 0, 2, true},
                {DT_BACKEND_SHM, 2, 1024, 1, true}, {DT_BACKEND_SHM, 3, 0, 0, true}};
    if (runs[_i].machines > size_of_all())
        return;
    const dt_world_options options = {.backend = runs[_i].backend,
                                      .machines = runs[_i].machines,
                                      .piece = runs[_i].piece,
                                      .timeout_s = 20};
    thread_arg threads = {.rank = rank_of_all(), .large = runs[_i].large};
    dt_status st = dt_world_run_threads(size_of_all(), NULL, cases_of_threads, &threads);
    ck_all(st == DT_OK, "threads: %s", dt_error_trace());
    case_results mpi = {0};
    st = cases_of_mpi(&options, runs[_i].channel, runs[_i].large, &mpi);
    ck_all(st == DT_OK, "mpi: %s", dt_error_trace());
    ck_all(mpi.count > 1000 && mpi.count == threads.results.count, "%lld and %lld bytes\n",
           (long long)mpi.count, (long long)threads.results.count);
    ck_all(memcmp(mpi.bytes, threads.results.bytes, (size_t)mpi.count) == 0, "bytes differ\n");
    free(mpi.bytes);
    free(threads.results.bytes);
}
END_TEST

static dt_status agreement(dt_world *world)
{
    const int me = dt_world_rank(world), k = dt_world_size(world);
    DT_TRY(dt_world_agree_sync(world, DT_OK));
    const dt_status mine = me == k - 1 ? DT_ERROR(DT_ERR_IO, "no such file") : DT_OK;
    TEST_FAILS(DT_ERR_IO, "no such file", dt_world_agree_sync(world, mine));
    double x = me;
    DT_TRY(dt_all_reduce_f64_sync(dt_world_comm(world), &x, 1, DT_REDUCE_SUM));
    TEST_THAT(x == k * (k - 1) / 2, "%g", x);
    return DT_OK;
}

/* A call that all make, but not alike, is an error on all with DT_CHECK=collective. */
static dt_status disagreement(dt_world *world)
{
    const int me = dt_world_rank(world);
    if (dt_world_size(world) == 1)
        return DT_OK;
    dt_world_set_check(world, "collective");
    dt_array a;
    DT_TRY(case_floats(world, 6, 1, &a));
    const dt_part part = {.in = &a, .out = &a};
    dt_work *work;
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &part, me ? DT_REDUCE_MAX : DT_REDUCE_SUM,
                         me ? "left" : "right", &work));
    TEST_FAILS(DT_ERR_COMM, "'left'", dt_work_wait(&work));
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &part, DT_REDUCE_SUM, "alike", &work));
    DT_TRY(dt_work_wait(&work));
    TEST_THAT(case_first(&a) == (float)dt_world_size(world), "%g", (double)case_first(&a));
    dt_array_release(&a);
    return DT_OK;
}

/* Two ranks that create different communicators at the same point: no hang inside MPI. */
static dt_status crossed_communicators(dt_world *world)
{
    const int me = dt_world_rank(world);
    if (dt_world_size(world) == 1 || me > 1)
        return DT_OK;
    dt_comm *comm;
    TEST_FAILS(DT_ERR_COMM, "creates another communicator",
               dt_comm_create(world, (int[]){0, 1}, 2, 1 + me, &comm));
    return DT_OK;
}

static dt_status in_world(double timeout_s, dt_status (*body)(dt_world *world))
{
    dt_world *world;
    const dt_world_options options = {.timeout_s = timeout_s};
    DT_TRY(dt_world_create(&options, &world));
    const char *text = getenv("DT_COMM");
    const bool shm = dt_world_size(world) > 1 && !(text && strcmp(text, "mpi") == 0);
    TEST_THAT(dt_world_backend(world) == (shm ? DT_BACKEND_SHM : DT_BACKEND_MPI), "by mpirun");
    const dt_status st = body(world);
    if (st == DT_OK)
        dt_world_destroy(&world);
    return st;
}

static dt_status order_and_overlap(dt_world *world)
{
    for (int channel = 0; channel < 4; channel++) {
        DT_TRY(lane_chain(world, &channel));
        DT_TRY(lane_destroyed_early(world, &channel));
        if (dt_world_rank(world) > 1 || dt_world_size(world) == 1)
            continue;
        DT_TRY(lane_messages_cross(world, &channel));
    }
    if (dt_world_rank(world) > 1 || dt_world_size(world) == 1)
        return DT_OK;
    DT_TRY(lane_crossed_waits(world, NULL));
    DT_TRY(lane_background(world, NULL));
    DT_TRY(lane_receive_then_sum(world, NULL));
    return DT_OK;
}

START_TEST(lanes_keep_order_and_overlap)
{
    const dt_status st = in_world(20, order_and_overlap);
    ck_all(st == DT_OK, "%s", dt_error_trace());
}
END_TEST

START_TEST(ranks_agree_and_disagree)
{
    dt_status st = in_world(20, agreement);
    ck_all(st == DT_OK, "%s", dt_error_trace());
    st = in_world(20, disagreement);
    ck_all(st == DT_OK, "%s", dt_error_trace());
    st = in_world(20, crossed_communicators);
    ck_all(st == DT_OK, "%s", dt_error_trace());
}
END_TEST

static dt_status edges(dt_world *world)
{
    if (dt_world_size(world) > 1)
        DT_TRY(edge_values(world, NULL));
    return DT_OK;
}

START_TEST(values_at_edges)
{
    const dt_status st = in_world(20, edges);
    ck_all(st == DT_OK, "%s", dt_error_trace());
}
END_TEST

static int misfit; /* which one the next world makes */

/* MPI alone sees other sizes at most, and messages that nobody took stay in it. */
static dt_status misfits(dt_world *world)
{
    if (dt_world_backend(world) == DT_BACKEND_SHM)
        DT_TRY(edge_misfit(world, misfit));
    return DT_OK;
}

START_TEST(calls_that_do_not_fit)
{
    misfit = _i;
    const dt_status st = in_world(20, misfits);
    ck_all(st == DT_OK, "%s", dt_error_trace());
    MPI_Barrier(MPI_COMM_WORLD);
}
END_TEST

/* Rank 1 makes no call until the others have given up. */
static dt_status absence(dt_world *world)
{
    dt_status st = DT_OK;
    if (dt_world_rank(world) != 1) {
        dt_work *work;
        DT_TRY(dt_barrier(dt_world_comm(world), "lonely", &work));
        const dt_status waited = dt_work_wait(&work); /* COMM: of one who gave up before me */
        const dt_status want = waited == DT_ERR_COMM ? DT_ERR_COMM : DT_ERR_TIMEOUT;
        st = test_expect(waited, want, "for rank 1 to arrive", "dt_work_wait");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return st;
}

START_TEST(absent_rank_is_named)
{
    if (size_of_all() == 1)
        return;
    const dt_status st = in_world(0.2, absence);
    ck_all(st == DT_OK, "%s", dt_error_trace());
}
END_TEST

static int die(void)
{
    dt_world *world;
    DT_MUST(dt_world_create(NULL, &world));
    if (dt_world_rank(world) == 1)
        DT_MUST(DT_ERROR(DT_ERR_IO, "disk is full"));
    dt_work *work;
    DT_MUST(dt_barrier(dt_world_comm(world), "for ever", &work));
    DT_MUST(dt_work_wait(&work));
    return 0;
}

static int sum(void)
{
    dt_world *world;
    DT_MUST(dt_world_create(NULL, &world));
    int64_t n = 1;
    DT_MUST(dt_all_reduce_i64_sync(dt_world_comm(world), &n, 1, DT_REDUCE_SUM));
    if (dt_world_rank(world) == 0)
        (void)printf("%lld ranks by %s\n", (long long)n,
                     dt_world_backend(world) == DT_BACKEND_MPI ? "mpi" : "shm");
    dt_world_destroy(&world);
    return 0;
}

static int lose(bool message)
{
    dt_world *world;
    DT_MUST(dt_world_create(NULL, &world));
    dt_array x;
    DT_MUST(case_floats(world, 3, 1, &x));
    dt_array *const room = &x;
    dt_work *work;
    DT_MUST(dt_barrier(dt_world_comm(world), "before", &work));
    DT_MUST(dt_work_wait(&work));
    if (dt_world_rank(world) == 1)
        (void)raise(SIGKILL);
    if (message)
        DT_MUST(dt_recv(dt_world_comm(world), 1, 1, &room, "last words", &work));
    else
        DT_MUST(dt_barrier(dt_world_comm(world), "after", &work));
    DT_MUST(dt_work_wait(&work));
    return 0;
}

static Suite *make_suite(void)
{
    Suite *suite = suite_create("comm mpi");
    TCase *tc = tcase_create("mpi");
    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, same_bytes_as_threads, 0, 8);
    tcase_add_test(tc, lanes_keep_order_and_overlap);
    tcase_add_test(tc, ranks_agree_and_disagree);
    tcase_add_test(tc, absent_rank_is_named); /* last: its messages are never taken */
    TCase *at_edges = tcase_create("edges");
    tcase_set_timeout(at_edges, 100);
    tcase_add_test(at_edges, values_at_edges);
    tcase_add_loop_test(at_edges, calls_that_do_not_fit, 0, EDGE_MISFITS);
    suite_add_tcase(suite, at_edges);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "die") == 0)
        return die();
    if (argc > 1 && strcmp(argv[1], "sum") == 0)
        return sum();
    if (argc > 1 && strncmp(argv[1], "killed", 6) == 0)
        return lose(strcmp(argv[1], "killed") != 0);
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    const int status = test_main(make_suite());
    MPI_Finalize();
    return status;
}
