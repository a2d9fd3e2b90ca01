/* bench/collectives.c - our collectives next to those of MPI and to the machine's copy limit.
 *
 *     tools/mpirun -n 2 build/bench/collectives [LARGEST_MIB [REPETITIONS [PART_OF_A_NAME]]]
 *
 * and with -n 4, -n 8; 64 MiB, 15 repetitions and all lines if not said.
 *
 * Each line: microseconds of ours and of MPI, both measured in turns with the limit, the least of
 * the repetitions, a repetition being what all ranks together take. The limit of a call is the
 * least number of bytes it must move (each read once, each written once), at the rate of streaming
 * copies by all ranks at once. Of B bytes, the whole buffer, on n ranks: all-gather and reduce-
 * scatter (n + 1) B, all-reduce and all-to-all 2 n B, broadcast n B, a message 2 B. Below 4 MiB all
 * of it is in the caches and the fraction means nothing. The last column compares with what a
 * prototype led us to expect; "at the limit": as fast as copies are, but MPI is nearer to them than
 * expected. A machine that others use meanwhile gives no verdicts: a probe looks for that.
 */
#include "array/dt_half.h"
#include "comm/dt_comm.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 64, PROBE_MS = 100, SMALL_BYTES = 1 << 10 };
#define COPY_BYTES ((size_t)64 << 20)

typedef enum call {
    GATHER,
    SCATTER,
    REDUCE,
    IN_PLACE,
    ALL_TO_ALL,
    BROADCAST,
    MESSAGE,
    BARRIER
} call;

typedef struct line {
    const char *name;
    call call;
    dt_dtype dtype;
    double gate, gate_mpi; /* fraction of the limit, ratio to MPI; at the largest size; 0: none */
} line;

static const line lines[] = {{"all_gather", GATHER, DT_F32, 0.75, 2},
                             {"reduce_scatter f32", SCATTER, DT_F32, 0.45, 8},
                             {"reduce_scatter bf16", SCATTER, DT_BF16, 0.45, 8},
                             {"all_reduce f32", REDUCE, DT_F32, 0.55, 4},
                             {"all_reduce f32 in place", IN_PLACE, DT_F32, 0.55, 4},
                             {"all_reduce bf16", REDUCE, DT_BF16, 0.55, 4},
                             {"all_to_all", ALL_TO_ALL, DT_F32, 0.65, 1.3},
                             {"broadcast", BROADCAST, DT_F32, 0.75, 3},
                             {"send, recv", MESSAGE, DT_F32, 0.65, 2},
                             {"barrier", BARRIER, DT_F32, 0, 0}};

typedef struct bench {
    dt_world *world;
    int rank, size, repetitions;
    dt_array in, out; /* of the size at hand */
    MPI_Op add_bf16;
    char *copy_from, *copy_to;
} bench;

/* ---- one call ---- */

static void ours(const bench *b, const line *l)
{
    dt_comm *comm = dt_world_comm(b->world);
    const dt_array piece = dt_array_rows(&b->in, 0, dt_array_count(&b->in) / b->size);
    dt_array mine = dt_array_rows(&b->out, 0, dt_array_count(&b->out) / b->size);
    dt_array share = dt_array_share(&piece), out = dt_array_share(&b->out);
    const dt_part whole = {.in = &b->in, .out = &out}, gather = {.in = &piece, .out = &out};
    const dt_part scatter = {.in = &b->in, .out = &mine}, same = {.in = &out, .out = &out};
    const dt_array *const from = &b->in;
    dt_array *const to = &out;
    dt_work *w = NULL;
    const bool sends = b->rank % 2 == 0, pairs = sends ? b->rank + 1 < b->size : true;
    switch (l->call) {
    case GATHER: DT_MUST(dt_all_gather(comm, 1, &gather, "", &w)); break;
    case SCATTER: DT_MUST(dt_reduce_scatter(comm, 1, &scatter, "", &w)); break;
    case REDUCE: DT_MUST(dt_all_reduce(comm, 1, &whole, DT_REDUCE_SUM, "", &w)); break;
    case IN_PLACE: DT_MUST(dt_all_reduce(comm, 1, &same, DT_REDUCE_SUM, "", &w)); break;
    case ALL_TO_ALL: DT_MUST(dt_all_to_all(comm, 1, &whole, "", &w)); break;
    case BROADCAST: DT_MUST(dt_broadcast(comm, 0, 1, &same, "", &w)); break;
    case MESSAGE:
        if (pairs && sends)
            DT_MUST(dt_send(comm, b->rank + 1, 1, &from, "", &w));
        else if (pairs)
            DT_MUST(dt_recv(comm, b->rank - 1, 1, &to, "", &w));
        break;
    case BARRIER: DT_MUST(dt_barrier(comm, "", &w)); break;
    }
    DT_MUST(dt_work_wait(&w));
    dt_array_release(&share);
    dt_array_release(&mine);
    dt_array_release(&out);
    dt_array left = piece;
    dt_array_release(&left);
}

/* MPI knows no bf16. */
static void add_bf16(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    const uint16_t *restrict x = in;
    uint16_t *restrict sum = inout;
    for (int i = 0; i < *n; i++)
        sum[i] = dt_f32_to_bf16(dt_bf16_to_f32(sum[i]) + dt_bf16_to_f32(x[i]));
}

static void theirs(const bench *b, const line *l)
{
    const int n = (int)dt_array_count(&b->in), part = n / b->size;
    const bool half = l->dtype == DT_BF16, sends = b->rank % 2 == 0;
    const MPI_Datatype type = half ? MPI_UINT16_T : MPI_FLOAT;
    const MPI_Op sum = half ? b->add_bf16 : MPI_SUM;
    const MPI_Comm all = MPI_COMM_WORLD;
    void *in = dt_array_data(&b->in), *out = dt_array_data(&b->out);
    switch (l->call) {
    case GATHER: MPI_Allgather(in, part, type, out, part, type, all); break;
    case SCATTER: MPI_Reduce_scatter_block(in, out, part, type, sum, all); break;
    case REDUCE: MPI_Allreduce(in, out, n, type, sum, all); break;
    case IN_PLACE: MPI_Allreduce(MPI_IN_PLACE, out, n, type, sum, all); break;
    case ALL_TO_ALL: MPI_Alltoall(in, part, type, out, part, type, all); break;
    case BROADCAST: MPI_Bcast(out, n, type, 0, all); break;
    case MESSAGE:
        if (sends && b->rank + 1 < b->size)
            MPI_Send(in, n, type, b->rank + 1, 0, all);
        else if (!sends)
            MPI_Recv(out, n, type, b->rank - 1, 0, all, MPI_STATUS_IGNORE);
        break;
    case BARRIER: MPI_Barrier(all); break;
    }
}

/* Past the caches, where the machine can. */
#ifdef __SSE2__
static void copy(const bench *b, const line *l)
{
    (void)l;
    const __m128i *from = (const __m128i *)(const void *)b->copy_from;
    __m128i *to = (__m128i *)(void *)b->copy_to;
    for (size_t i = 0; i < COPY_BYTES / sizeof *to; i += 4)
        for (size_t j = i; j < i + 4; j++)
            _mm_stream_si128(to + j, _mm_load_si128(from + j));
    _mm_sfence();
}
#else
static void copy(const bench *b, const line *l)
{
    (void)l;
    memcpy(b->copy_to, b->copy_from, COPY_BYTES);
}
#endif

/* ---- time ---- */

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds from the first rank's start to the last one's end, each of `calls` calls: where cores are
 * fewer than ranks, some start when others have done. */
static double time_once(const bench *b, const line *l, int calls,
                        void (*run)(const bench *, const line *))
{
    double zero = 0;
    DT_MUST(dt_all_reduce_f64_sync(dt_world_comm(b->world), &zero, 1, DT_REDUCE_SUM));
    double span[2] = {-now_s(), 0};
    for (int i = 0; i < calls; i++)
        run(b, l);
    span[1] = now_s();
    DT_MUST(dt_all_reduce_f64_sync(dt_world_comm(b->world), span, 2, DT_REDUCE_MAX));
    return (span[0] + span[1]) / calls;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double bytes_moved(const line *l, double whole, int n)
{
    switch (l->call) {
    case GATHER:
    case SCATTER: return (n + 1) * whole;
    case REDUCE:
    case IN_PLACE:
    case ALL_TO_ALL: return 2 * n * whole;
    case BROADCAST: return n * whole;
    case MESSAGE: return (n - n % 2) * whole;
    case BARRIER: break;
    }
    return 0;
}

/* Share of a core that somebody else took from the ranks that have one each. */
static double probe(const bench *b)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct timespec cpu0, cpu1;
    double lost = 0;
    DT_MUST(dt_all_reduce_f64_sync(dt_world_comm(b->world), &lost, 1, DT_REDUCE_MAX));
    if (b->rank < cores) {
        const double start = now_s();
        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu0);
        while (now_s() - start < PROBE_MS * 1e-3)
            continue;
        const double wall = now_s() - start;
        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu1);
        lost = 1 - ((double)(cpu1.tv_sec - cpu0.tv_sec) +
                    1e-9 * (double)(cpu1.tv_nsec - cpu0.tv_nsec)) /
                       wall;
    }
    DT_MUST(dt_all_reduce_f64_sync(dt_world_comm(b->world), &lost, 1, DT_REDUCE_MAX));
    return lost;
}

/* ---- the table ---- */

static void prepare(bench *b, const line *l, size_t bytes)
{
    dt_heap *heap;
    const int64_t n = (int64_t)(bytes / dt_dtype_size(l->dtype));
    DT_MUST(dt_world_heap(b->world, (dt_device){.kind = DT_CPU}, &heap));
    DT_MUST(dt_array_create(heap, l->dtype, DT_SHAPE(n), DT_TAG_ACTIVATION, &b->in));
    DT_MUST(dt_array_create(heap, l->dtype, DT_SHAPE(n), DT_TAG_ACTIVATION, &b->out));
    dt_array_zero(&b->in); /* sums stay finite however often they are repeated */
    dt_array_zero(&b->out);
}

static void print_line(const bench *b, const line *l, size_t bytes, const double seconds[3],
                       bool judge)
{
    const double rate = (double)b->size * 2 * (double)COPY_BYTES / seconds[2];
    const double fraction = bytes_moved(l, (double)bytes, b->size) / rate / seconds[0];
    const double ratio = seconds[1] / seconds[0];
    const bool small = bytes == SMALL_BYTES && b->size == 2;
    const char *verdict = "below";
    if (small ? ratio >= 1.5 : fraction >= l->gate && ratio >= l->gate_mpi)
        verdict = "reached";
    else if (!small && fraction >= 1)
        verdict = "at the limit";
    if (b->rank > 0)
        return;
    (void)printf("%-24s %9.1f %11.2f %11.2f %9.2f", l->name, (double)bytes / 1024, 1e6 * seconds[0],
                 1e6 * seconds[1], ratio);
    if (bytes >= (size_t)4 << 20)
        (void)printf(" %9.2f", fraction);
    else
        (void)printf(" %9s", "");
    (void)printf(" %s\n", judge ? verdict : "");
    (void)fflush(stdout);
}

static void measure(bench *b, const line *l, size_t bytes, bool judge)
{
    static void (*const run[3])(const bench *, const line *) = {ours, theirs, copy};
    prepare(b, l, bytes);
    const int calls = bytes <= 64 << 10 ? 200 : bytes <= 1 << 20 ? 20 : 1;
    double seconds[3] = {1e9, 1e9, 1e9};
    for (int i = 0; i < 2; i++) /* first touch */
        (void)time_once(b, l, 1, run[i]);
    for (int r = 0; r < b->repetitions; r++)
        for (int i = 0; i < 3; i++)
            if (i < 2 || bytes >= (size_t)4 << 20)
                seconds[i] = least(seconds[i], time_once(b, l, i < 2 ? calls : 1, run[i]));
    print_line(b, l, bytes, seconds, judge);
    dt_array_release(&b->in);
    dt_array_release(&b->out);
}

static void measure_sizes(bench *b, const line *l, size_t largest, bool quiet)
{
    for (size_t bytes = SMALL_BYTES; bytes <= largest; bytes *= 16) {
        const bool gated = bytes == (size_t)64 << 20 || (bytes == SMALL_BYTES && b->size == 2);
        measure(b, l, bytes, quiet && gated);
        if (l->call == BARRIER)
            break;
    }
}

/* Every rank needs a core of its own where there are as many. */
static bool check_affinity(const bench *b)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    (void)sched_getaffinity(0, sizeof set, &set);
    unsigned long long mask = 0, masks[MAX_RANKS];
    for (size_t c = 0; c < 64; c++)
        mask |= CPU_ISSET(c, &set) ? 1ULL << c : 0;
    MPI_Allgather(&mask, 1, MPI_UNSIGNED_LONG_LONG, masks, 1, MPI_UNSIGNED_LONG_LONG,
                  MPI_COMM_WORLD);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN), wanted = b->size < cores ? b->size : cores;
    bool wide = true;
    for (int r = 0; r < b->size; r++) {
        wide = wide && __builtin_popcountll(masks[r]) >= wanted;
        if (b->rank == 0)
            (void)printf("%s%llx", r ? " " : "cores of ranks (bit masks): ", masks[r]);
    }
    if (b->rank == 0)
        (void)printf("\n%s", wide ? "" : "too few: start it with tools/mpirun\n");
    return wide;
}

int main(int argc, char **argv)
{
    bench b = {.repetitions = argc > 2 ? atoi(argv[2]) : 15};
    const size_t largest = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) << 20;
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    DT_MUST(dt_world_create(NULL, &b.world));
    b.rank = dt_world_rank(b.world);
    b.size = dt_world_size(b.world);
    MPI_Op_create(add_bf16, 1, &b.add_bf16);
    b.copy_from = aligned_alloc(64, 2 * COPY_BYTES);
    if (b.size < 2 || b.size > MAX_RANKS || !b.copy_from || !check_affinity(&b))
        MPI_Abort(MPI_COMM_WORLD, 2);
    memset(b.copy_from, 1, COPY_BYTES * 2);
    b.copy_to = b.copy_from + COPY_BYTES;
    const double lost = probe(&b);
    if (b.rank == 0)
        (void)printf(
            "%d ranks on %ld cores, backend %d; others take %.1f %% of a core%s\n%-24s %9s "
            "%11s %11s %9s %9s\n",
            b.size, sysconf(_SC_NPROCESSORS_ONLN), (int)dt_world_backend(b.world), 100 * lost,
            lost > 0.03 ? ": NOISY, no verdicts" : "", "", "KiB", "ours us", "MPI us", "MPI/ours",
            "of limit");
    for (int i = 0; i < DT_COUNT(lines); i++)
        if (argc <= 3 || strstr(lines[i].name, argv[3]))
            measure_sizes(&b, &lines[i], largest, lost <= 0.03);
    const double lost_at_end = probe(&b);
    if (b.rank == 0)
        (void)printf("at the end others take %.1f %% of a core\n", 100 * lost_at_end);
    free(b.copy_from);
    MPI_Op_free(&b.add_bf16);
    dt_world_destroy(&b.world);
    MPI_Finalize();
    return 0;
}
