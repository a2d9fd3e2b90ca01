/* tests/simdev/self/test_nccl.c - collectives between threads, each with a device of its own. */
#include "device_test.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, COUNT = 37 };

/* Of all ranks: made by one before they start. */
typedef struct shared {
    ncclUniqueId id;
    int one_device;
    ncclDataType_t type;
    ncclRedOp_t op;
} shared;

#define NCCL_THAT(call) TEST_THAT((call) == ncclSuccess, "%s", ncclGetLastError(NULL))
#define CUDA_THAT(call) TEST_THAT((call) == cudaSuccess, "%s", #call)

typedef struct member {
    int rank, size;
    cudaStream_t stream;
    ncclComm_t comm;
} member;

static dt_status begin(dt_world *world, const shared *s, member *m)
{
    m->rank = dt_world_rank(world);
    m->size = dt_world_size(world);
    CUDA_THAT(cudaSetDevice(s->one_device ? 0 : m->rank));
    CUDA_THAT(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    NCCL_THAT(ncclCommInitRank(&m->comm, m->size, s->id, m->rank));
    return DT_OK;
}

static dt_status end(member *m)
{
    CUDA_THAT(cudaStreamSynchronize(m->stream));
    NCCL_THAT(ncclCommDestroy(m->comm));
    CUDA_THAT(cudaStreamDestroy(m->stream));
    return DT_OK;
}

static void run(int ranks, dt_rank_body body, shared *s)
{
    ck_assert(ncclGetUniqueId(&s->id) == ncclSuccess);
    test_ranks(ranks, body, s);
}

/* The value of element i of a rank, small enough for sums and products in every type. */
static int element(int rank, int i)
{
    return (i * 5 + rank * 3) % 4 + 1;
}

static int combined(ncclRedOp_t op, int ranks, int i)
{
    int all = element(0, i);
    for (int r = 1; r < ranks; r++) {
        int v = element(r, i);
        all = op == ncclProd  ? all * v
              : op == ncclMax ? (v > all ? v : all)
              : op == ncclMin ? (v < all ? v : all)
                              : all + v;
    }
    return all;
}

/* ---- every type and reduction ---- */

static size_t bytes_of(ncclDataType_t type)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return bytes[type];
}

static void put(void *p, int i, ncclDataType_t type, double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    switch ((int)type) {
    case ncclInt8: ((int8_t *)p)[i] = (int8_t)v; break;
    case ncclUint8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case ncclInt32: ((int32_t *)p)[i] = (int32_t)v; break;
    case ncclUint32: ((uint32_t *)p)[i] = (uint32_t)v; break;
    case ncclInt64: ((int64_t *)p)[i] = (int64_t)v; break;
    case ncclUint64: ((uint64_t *)p)[i] = (uint64_t)v; break;
    case ncclFloat32: ((float *)p)[i] = f; break;
    case ncclFloat64: ((double *)p)[i] = v; break;
    case ncclBfloat16: ((uint16_t *)p)[i] = (uint16_t)(bits >> 16); break;
    default: /* f16 of a small number with few bits */
        ((uint16_t *)p)[i] = (uint16_t)(((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff));
    }
}

static dt_status reduce_body(dt_world *world, void *arg)
{
    const shared *s = arg;
    member m;
    DT_TRY(begin(world, s, &m));
    size_t bytes = bytes_of(s->type), all = (size_t)m.size * COUNT;
    char *host = calloc(all, bytes), *want = calloc(all, bytes);
    char *x = device_array(all * bytes), *y = device_array(all * bytes);
    double divisor = s->op == ncclAvg ? m.size : 1;
    for (int i = 0; i < m.size * COUNT; i++) {
        put(host, i, s->type, element(m.rank, i));
        put(want, i, s->type, combined(s->op, m.size, i) / divisor);
    }
    to_device(x, host, all * bytes, m.stream);
    NCCL_THAT(ncclAllReduce(x, y, all, s->type, s->op, m.comm, m.stream));
    to_host(host, y, all * bytes, m.stream);
    TEST_THAT(!memcmp(host, want, all * bytes), "all-reduce, type %d, op %d", s->type, s->op);
    char *part = x + (size_t)m.rank * COUNT * bytes; /* in place */
    NCCL_THAT(ncclReduceScatter(x, part, COUNT, s->type, s->op, m.comm, m.stream));
    to_host(host, part, COUNT * bytes, m.stream);
    TEST_THAT(!memcmp(host, want + (size_t)m.rank * COUNT * bytes, COUNT * bytes),
              "reduce-scatter, type %d, op %d", s->type, s->op);
    CUDA_THAT(cudaFree(x));
    CUDA_THAT(cudaFree(y));
    free(host);
    free(want);
    return end(&m);
}

START_TEST(reductions)
{
    static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
    shared s = {.type = (ncclDataType_t)_i};
    bool is_float = _i >= ncclFloat16;
    for (int i = 0; i < 4 + is_float; i++) {
        s.op = ops[i];
        run(i % RANKS + 1 == 3 ? 2 : i % RANKS + 1, reduce_body, &s); /* averages of 1, 2, 4 */
    }
}
END_TEST

/* ---- gathers, broadcasts, groups ---- */

static dt_status gather_body(dt_world *world, void *arg)
{
    member m;
    DT_TRY(begin(world, arg, &m));
    int host[RANKS * COUNT];
    int *x = device_array(sizeof host), *y = device_array(sizeof host);
    for (int i = 0; i < COUNT; i++)
        host[i] = 1000 * m.rank + i;
    to_device(y + m.rank * COUNT, host, COUNT * sizeof(int), m.stream);
    to_device(x, host, COUNT * sizeof(int), m.stream);
    for (int in_place = 0; in_place < 2; in_place++) {
        const int *from = in_place ? y + m.rank * COUNT : x;
        NCCL_THAT(ncclAllGather(from, y, COUNT, ncclInt32, m.comm, m.stream));
        to_host(host, y, (size_t)m.size * COUNT * sizeof(int), m.stream);
        for (int i = 0; i < m.size * COUNT; i++)
            TEST_THAT(host[i] == 1000 * (i / COUNT) + i % COUNT, "%d: %d", i, host[i]);
    }
    for (int root = 0; root < m.size; root++) {
        NCCL_THAT(ncclBroadcast(x, y, COUNT, ncclInt32, root, m.comm, m.stream));
        to_host(host, y, COUNT * sizeof(int), m.stream);
        for (int i = 0; i < COUNT; i++)
            TEST_THAT(host[i] == 1000 * root + i, "%d: %d", i, host[i]);
    }
    NCCL_THAT(ncclAllGather(x, y, 0, ncclInt32, m.comm, m.stream)); /* nothing, also in a group */
    CUDA_THAT(cudaFree(x));
    CUDA_THAT(cudaFree(y));
    return end(&m);
}

/* To the next, to oneself, and an all-gather of the next one's: all in one group, two rounds. */
static dt_status group_body(dt_world *world, void *arg)
{
    member m;
    DT_TRY(begin(world, arg, &m));
    int host[RANKS + 2] = {10 + m.rank, 20 + m.rank};
    int *x = device_array(sizeof host), *y = device_array(sizeof host);
    int next = (m.rank + 1) % m.size, last = (m.rank + m.size - 1) % m.size;
    to_device(x, host, sizeof host, m.stream);
    for (int round = 0; round < 2; round++) {
        NCCL_THAT(ncclGroupStart());
        NCCL_THAT(ncclRecv(y, 1, ncclInt32, last, m.comm, m.stream));
        NCCL_THAT(ncclAllGather(x + 1, y + 2, 1, ncclInt32, m.comm, m.stream));
        NCCL_THAT(ncclSend(x, 1, ncclInt32, next, m.comm, m.stream));
        NCCL_THAT(ncclSend(x + 1, 1, ncclInt32, m.rank, m.comm, m.stream));
        NCCL_THAT(ncclRecv(y + 1, 1, ncclInt32, m.rank, m.comm, m.stream));
        NCCL_THAT(ncclGroupEnd());
    }
    to_host(host, y, sizeof host, m.stream);
    TEST_THAT(host[0] == 10 + last && host[1] == 20 + m.rank, "%d, %d", host[0], host[1]);
    for (int r = 0; r < m.size; r++)
        TEST_THAT(host[2 + r] == 20 + r, "%d: %d", r, host[2 + r]);
    CUDA_THAT(cudaFree(x));
    CUDA_THAT(cudaFree(y));
    return end(&m);
}

/* Two communicators of the same ranks on two streams, joined by events, driven by whoever waits. */
static dt_status overlap_body(dt_world *world, void *arg)
{
    enum { TURNS = 5 };
    member m;
    DT_TRY(begin(world, arg, &m));
    ncclComm_t other;
    cudaStream_t stream[2] = {m.stream, new_stream()};
    cudaEvent_t event;
    NCCL_THAT(ncclCommSplit(m.comm, 0, m.rank, &other, NULL));
    CUDA_THAT(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    float *x = device_array(COUNT * sizeof(float)), host[COUNT], want = 1;
    for (int i = 0; i < COUNT; i++)
        host[i] = 1;
    to_device(x, host, sizeof host, stream[1]);
    for (int t = 0; t < TURNS; t++) {
        CUDA_THAT(cudaEventRecord(event, stream[(t + 1) % 2]));
        CUDA_THAT(cudaStreamWaitEvent(stream[t % 2], event, 0));
        NCCL_THAT(ncclAllReduce(x, x, COUNT, ncclFloat32, ncclSum, t % 2 ? other : m.comm,
                                stream[t % 2]));
        want *= (float)m.size;
    }
    CUDA_THAT(cudaEventRecord(event, stream[(TURNS - 1) % 2]));
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
    to_host(host, x, sizeof host, stream[(TURNS - 1) % 2]);
    TEST_THAT(host[COUNT - 1] == want, "%g", (double)host[COUNT - 1]);
    CUDA_THAT(cudaEventDestroy(event));
    CUDA_THAT(cudaFree(x));
    NCCL_THAT(ncclCommDestroy(other));
    CUDA_THAT(cudaStreamDestroy(stream[1]));
    return end(&m);
}

static dt_status split_body(dt_world *world, void *arg)
{
    member m;
    DT_TRY(begin(world, arg, &m));
    ncclComm_t part;
    int rank = -1, count = -1, device = -1;
    /* Even ranks in reverse; rank 1 alone; rank 3 nowhere. */
    int color = m.rank % 2 == 0 ? 7 : m.rank == 1 ? 8 : NCCL_SPLIT_NOCOLOR;
    NCCL_THAT(ncclCommSplit(m.comm, color, -m.rank, &part, NULL));
    TEST_THAT(!part == (m.rank == 3), "rank %d", m.rank);
    if (part) {
        NCCL_THAT(ncclCommUserRank(part, &rank));
        NCCL_THAT(ncclCommCount(part, &count));
        NCCL_THAT(ncclCommCuDevice(part, &device));
        TEST_THAT(count == (m.rank == 1 ? 1 : 2) && rank == (m.rank == 0 ? 1 : 0) &&
                      device == m.rank,
                  "rank %d: %d of %d, device %d", m.rank, rank, count, device);
        NCCL_THAT(ncclCommDestroy(part));
    }
    return end(&m);
}

static dt_status one_device_body(dt_world *world, void *arg)
{
    const shared *s = arg;
    ncclComm_t comm;
    ncclResult_t state;
    CUDA_THAT(cudaSetDevice(0));
    ncclResult_t result =
        ncclCommInitRank(&comm, dt_world_size(world), s->id, dt_world_rank(world));
    TEST_THAT(result == ncclInvalidUsage, "%d", result);
    TEST_THAT(strstr(ncclGetLastError(comm), "both on device 0"), "%s", ncclGetLastError(comm));
    NCCL_THAT(ncclCommGetAsyncError(comm, &state));
    TEST_THAT(state == ncclInvalidUsage, "%d", state);
    NCCL_THAT(ncclCommAbort(comm));
    return DT_OK;
}

/* Rank 1 never comes: the others see that it is in progress, and give up. */
static dt_status absent_body(dt_world *world, void *arg)
{
    const shared *s = arg;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    ncclResult_t state;
    int rank = dt_world_rank(world);
    CUDA_THAT(cudaSetDevice(rank));
    if (rank == 1)
        return DT_OK;
    config.blocking = 0;
    state = ncclCommInitRankConfig(&comm, dt_world_size(world), s->id, rank, &config);
    TEST_THAT(state == ncclInProgress, "%d", state);
    NCCL_THAT(ncclCommGetAsyncError(comm, &state));
    TEST_THAT(state == ncclInProgress, "%d", state);
    NCCL_THAT(ncclCommAbort(comm));
    return DT_OK;
}

/* Rank 0 waits for a call that rank 1 does not make; both abort, and go on. */
static dt_status abort_body(dt_world *world, void *arg)
{
    member m;
    DT_TRY(begin(world, arg, &m));
    float *x = device_array(COUNT * sizeof(float));
    cudaEvent_t event;
    CUDA_THAT(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    if (m.rank == 0) {
        NCCL_THAT(ncclAllReduce(x, x, COUNT, ncclFloat32, ncclSum, m.comm, m.stream));
        CUDA_THAT(cudaEventRecord(event, m.stream));
        for (int i = 0; i < 20; i++)
            TEST_THAT(cudaEventQuery(event) == cudaErrorNotReady, "%d", i);
    }
    NCCL_THAT(ncclCommAbort(m.comm));
    CUDA_THAT(cudaStreamSynchronize(m.stream));
    CUDA_THAT(cudaEventDestroy(event));
    CUDA_THAT(cudaFree(x));
    CUDA_THAT(cudaStreamDestroy(m.stream));
    return DT_OK;
}

#define NCCL_TESTS(X) \
    X(gather, 1)      \
    X(gather, 3)      \
    X(group, 1)       \
    X(group, 4)       \
    X(overlap, 4)     \
    X(split, 4)       \
    X(one_device, 3)  \
    X(absent, 3)      \
    X(abort, 2)

static const struct {
    dt_rank_body body;
    int ranks;
} bodies[] = {
#define X(name, ranks) {name##_body, ranks},
    NCCL_TESTS(X)
#undef X
};

START_TEST(bodies_run)
{
    shared s = {.one_device = 0};
    run(bodies[_i].ranks, bodies[_i].body, &s);
    ck_assert_uint_eq(sim_live_allocations(), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simdev/nccl");
    TCase *tc = tcase_create("nccl");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, reductions, 0, 10);
    tcase_add_loop_test(tc, bodies_run, 0, (int)(sizeof bodies / sizeof *bodies));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
