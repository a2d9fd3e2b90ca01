/* tests/simdev/self/fault_nccl.c - wrong collectives, of two ranks that one thread runs; and the
 * loop of zero_loop. */
#include "device_test.h"
#include "faults.h"
#include "kernels.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#define ck_nccl(call) ck_assert_msg((call) == ncclSuccess, "%s: %s", #call, ncclGetLastError(NULL))

enum { RANKS = 2, COUNT = 64 };
typedef struct rank {
    cudaStream_t s;
    ncclComm_t comm;
    float *x, *y; /* RANKS * COUNT elements each */
} rank;
static rank r[RANKS];

static void make_comms(ncclComm_t *comms[RANKS])
{
    ncclUniqueId id;
    ck_nccl(ncclGetUniqueId(&id));
    ck_nccl(ncclGroupStart());
    for (int i = 0; i < RANKS; i++) {
        ck_cuda(cudaSetDevice(i));
        ck_nccl(ncclCommInitRank(comms[i], RANKS, id, i));
    }
    ck_nccl(ncclGroupEnd());
}

static void begin(void)
{
    ncclComm_t *comms[RANKS] = {&r[0].comm, &r[1].comm};
    make_comms(comms);
    for (int i = 0; i < RANKS; i++) {
        ck_cuda(cudaSetDevice(i));
        r[i].s = new_stream();
        r[i].x = device_array(RANKS * COUNT * sizeof(float));
        r[i].y = device_array(RANKS * COUNT * sizeof(float));
    }
}

static void wait_for_all(void)
{
    for (int i = 0; i < RANKS; i++)
        ck_cuda(cudaStreamSynchronize(r[i].s));
}

static void gather(int i, size_t count, ncclDataType_t type)
{
    ck_nccl(ncclAllGather(r[i].x, r[i].y, count, type, r[i].comm, r[i].s));
}

static void sum(int i, ncclRedOp_t op)
{
    ck_nccl(ncclAllReduce(r[i].x, r[i].y, COUNT, ncclFloat32, op, r[i].comm, r[i].s));
}

static void counts_differ(void)
{
    gather(0, COUNT, ncclFloat32);
    gather(1, COUNT - 1, ncclFloat32);
    wait_for_all();
}

static void types_differ(void)
{
    gather(0, COUNT, ncclFloat32);
    gather(1, COUNT, ncclInt32);
    wait_for_all();
}

static void kinds_differ(void)
{
    gather(0, COUNT, ncclFloat32);
    sum(1, ncclSum);
    wait_for_all();
}

static void reductions_differ(void)
{
    sum(0, ncclSum);
    sum(1, ncclMax);
    wait_for_all();
}

static void roots_differ(void)
{
    for (int i = 0; i < RANKS; i++)
        ck_nccl(ncclBroadcast(r[i].x, r[i].y, COUNT, ncclFloat32, i, r[i].comm, r[i].s));
    wait_for_all();
}

static void send_and_receive_differ(void)
{
    ck_nccl(ncclSend(r[0].x, COUNT, ncclFloat32, 1, r[0].comm, r[0].s));
    ck_nccl(ncclRecv(r[1].x, COUNT - 1, ncclFloat32, 0, r[1].comm, r[1].s));
    wait_for_all();
}

static void absent_rank(void)
{
    gather(0, COUNT, ncclFloat32);
    wait_for_all();
}

/* Each sends before it receives, which only a group may. */
static void sends_meet(void)
{
    for (int i = 0; i < RANKS; i++) {
        ck_nccl(ncclSend(r[i].x, COUNT, ncclFloat32, !i, r[i].comm, r[i].s));
        ck_nccl(ncclRecv(r[i].y, COUNT, ncclFloat32, !i, r[i].comm, r[i].s));
    }
    wait_for_all();
}

static void gather_range(void)
{
    gather(0, COUNT + 1, ncclFloat32);
}

static void two_streams_in_group(void)
{
    ck_nccl(ncclGroupStart());
    gather(0, COUNT, ncclFloat32);
    ck_cuda(cudaSetDevice(0));
    r[0].s = new_stream();
    gather(0, COUNT, ncclFloat32);
    ck_nccl(ncclGroupEnd());
}

static void destroyed_member(void)
{
    ck_nccl(ncclCommDestroy(r[1].comm));
    gather(0, COUNT, ncclFloat32);
    wait_for_all();
}

static void stream_of_other_rank(void)
{
    ck_nccl(ncclAllGather(r[0].x, r[0].y, COUNT, ncclFloat32, r[0].comm, r[1].s));
}

#define FAULTS(X)              \
    X(counts_differ)           \
    X(types_differ)            \
    X(kinds_differ)            \
    X(reductions_differ)       \
    X(roots_differ)            \
    X(send_and_receive_differ) \
    X(absent_rank)             \
    X(sends_meet)              \
    X(gather_range)            \
    X(two_streams_in_group)    \
    X(destroyed_member)        \
    X(stream_of_other_rank)

bool fault_of_nccl(const char *name)
{
#define X(fault)                 \
    if (!strcmp(name, #fault)) { \
        begin();                 \
        fault();                 \
        return true;             \
    }
    FAULTS(X)
#undef X
    return false;
}

/* ---- the loop ---- */

enum { LAYERS = 6, N = 96, SHARD = N / RANKS };
typedef struct loop {
    cudaStream_t compute, gather, reduce;
    cudaEvent_t gathered[2], used[2], grads_ready, reduced;
    ncclComm_t gather_comm, reduce_comm;
    float *shard[LAYERS], *grad_shard[LAYERS]; /* [SHARD] */
    float *full[2], *x, *grad;                 /* [N] */
    float *host;                               /* pinned, [N] */
} loop;

static cudaEvent_t new_event(void)
{
    cudaEvent_t e;
    ck_cuda(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

static void begin_loop(loop *l, int i)
{
    float shard[SHARD];
    l->compute = new_stream();
    l->gather = new_stream();
    l->reduce = new_stream();
    for (int b = 0; b < 2; b++) {
        l->gathered[b] = new_event();
        l->used[b] = new_event();
        l->full[b] = device_array(N * sizeof(float));
    }
    l->grads_ready = new_event();
    l->reduced = new_event();
    l->x = device_array(N * sizeof(float));
    l->grad = device_array(N * sizeof(float));
    ck_cuda(cudaHostAlloc((void **)&l->host, N * sizeof(float), cudaHostAllocDefault));
    memset(l->host, 0, N * sizeof(float));
    ck_cuda(cudaMemsetAsync(l->x, 0, N * sizeof(float), l->compute));
    for (int layer = 0; layer < LAYERS; layer++) {
        l->shard[layer] = device_array(SHARD * sizeof(float));
        l->grad_shard[layer] = device_array(SHARD * sizeof(float));
        for (int j = 0; j < SHARD; j++)
            shard[j] = (float)(layer + 1) + value_at(i * SHARD + j);
        to_device(l->shard[layer], shard, sizeof shard, l->gather);
    }
}

/* x += the layer's parameters; gradients: the parameters times the rank + 1. */
static void run_layer(loop *l, int i, int layer, int omit)
{
    int b = layer % 2;
    if (layer >= 2 && omit != 1) /* the buffer is still read by the layer before the last */
        ck_cuda(cudaStreamWaitEvent(l->gather, l->used[b], 0));
    ck_nccl(
        ncclAllGather(l->shard[layer], l->full[b], SHARD, ncclFloat32, l->gather_comm, l->gather));
    ck_cuda(cudaEventRecord(l->gathered[b], l->gather));
    if (omit != 2) /* the parameters must have come */
        ck_cuda(cudaStreamWaitEvent(l->compute, l->gathered[b], 0));
    ck_cuda(cudaSetDevice(i));
    k_axpy(l->x, l->full[b], 1, N, l->compute);
    if (layer >= 1 && omit != 3) /* the last layer's gradients are still read */
        ck_cuda(cudaStreamWaitEvent(l->compute, l->reduced, 0));
    ck_cuda(cudaMemsetAsync(l->grad, 0, N * sizeof(float), l->compute));
    k_axpy(l->grad, l->full[b], (float)(i + 1), N, l->compute);
    ck_cuda(cudaEventRecord(l->used[b], l->compute));
    ck_cuda(cudaEventRecord(l->grads_ready, l->compute));
    if (omit != 4) /* the gradients must be written */
        ck_cuda(cudaStreamWaitEvent(l->reduce, l->grads_ready, 0));
    ck_nccl(ncclReduceScatter(l->grad, l->grad_shard[layer], SHARD, ncclFloat32, ncclSum,
                              l->reduce_comm, l->reduce));
    ck_cuda(cudaEventRecord(l->reduced, l->reduce));
}

static bool is_right(loop *l, int i)
{
    float shard[SHARD];
    bool right = true;
    for (int j = 0; j < N; j++)
        right = right && l->host[j] == LAYERS * value_at(j) + LAYERS * (LAYERS + 1) / 2;
    for (int layer = 0; layer < LAYERS; layer++) {
        to_host(shard, l->grad_shard[layer], sizeof shard, l->reduce);
        for (int j = 0; j < SHARD; j++)
            right = right && shard[j] == 3 * ((float)(layer + 1) + value_at(i * SHARD + j));
    }
    return right;
}

bool zero_loop(int omit)
{
    static loop l[RANKS];
    bool right = true;
    ncclComm_t *gathers[RANKS] = {&l[0].gather_comm, &l[1].gather_comm};
    ncclComm_t *reduces[RANKS] = {&l[0].reduce_comm, &l[1].reduce_comm};
    make_comms(gathers);
    make_comms(reduces);
    for (int i = 0; i < RANKS; i++) {
        ck_cuda(cudaSetDevice(i));
        begin_loop(&l[i], i);
    }
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < RANKS; i++)
            run_layer(&l[i], i, layer, omit);
    for (int i = 0; i < RANKS; i++)
        ck_cuda(cudaMemcpyAsync(l[i].host, l[i].x, N * sizeof(float), cudaMemcpyDeviceToHost,
                                l[i].compute));
    for (int i = 0; i < RANKS && omit != 5; i++) /* the host reads what has come */
        ck_cuda(cudaStreamSynchronize(l[i].compute));
    for (int i = 0; i < RANKS; i++) {
        ck_cuda(cudaSetDevice(i));
        right = is_right(&l[i], i) && right;
    }
    return right;
}
