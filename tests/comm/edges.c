/* tests/comm/edges.c - see edges.h. */
#include "tests/comm/edges.h"

enum { GUARD = 16, MOST_PARTS = 300, MOST_RANKS = 4 };

static float value(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 13) % 251);
}

/* n elements of what a rank gives (-1: nothing), and 77 (99) behind them. */
static dt_status fresh(dt_world *world, int rank, int64_t n, dt_array *out)
{
    dt_heap *heap;
    DT_TRY(dt_world_heap(world, (dt_device){.kind = DT_CPU}, &heap));
    DT_TRY(dt_array_create(heap, DT_F32, DT_SHAPE(n + GUARD), DT_TAG_ACTIVATION, out));
    dt_array_fill(out, rank >= 0 ? 77 : 99);
    float *v = dt_array_data(out);
    for (int64_t i = 0; i < n && rank >= 0; i++)
        v[i] = value(rank, i);
    out->shape = DT_SHAPE(n);
    return DT_OK;
}

/* Element i of a result; p elements are one rank's piece. */
static float wanted(dt_call kind, int k, int me, int64_t p, int64_t i)
{
    float sum = 0;
    const int64_t first = kind == DT_CALL_REDUCE_SCATTER ? me * p : 0;
    switch (kind) {
    case DT_CALL_ALL_GATHER: return value((int)(i / p), i % p);
    case DT_CALL_ALL_TO_ALL: return value((int)(i / p), me * p + i % p);
    case DT_CALL_REDUCE_SCATTER:
    case DT_CALL_ALL_REDUCE:
        for (int r = 0; r < k; r++)
            sum += value(r, first + i);
        return sum;
    case DT_CALL_BROADCAST: return value(1, i);
    case DT_CALL_SEND:
    case DT_CALL_RECV:
    case DT_CALL_BARRIER:
    case DT_NCALLS: break;
    }
    return value((me + k - 1) % k, i);
}

/* DT_CALL_SEND: to the next rank, which receives. */
static dt_status call(dt_comm *comm, dt_call kind, const dt_array *in, dt_array *out)
{
    const int me = dt_comm_rank(comm), k = dt_comm_size(comm);
    const dt_part part = {.in = in, .out = out};
    dt_work *work = NULL, *sent = NULL;
    if (kind == DT_CALL_ALL_GATHER)
        DT_TRY(dt_all_gather(comm, 1, &part, "edge", &work));
    else if (kind == DT_CALL_REDUCE_SCATTER)
        DT_TRY(dt_reduce_scatter(comm, 1, &part, "edge", &work));
    else if (kind == DT_CALL_ALL_REDUCE)
        DT_TRY(dt_all_reduce(comm, 1, &part, DT_REDUCE_SUM, "edge", &work));
    else if (kind == DT_CALL_ALL_TO_ALL)
        DT_TRY(dt_all_to_all(comm, 1, &part, "edge", &work));
    else if (kind == DT_CALL_BROADCAST)
        DT_TRY(dt_broadcast(comm, 1, 1, &part, "edge", &work));
    else
        DT_TRY(dt_send(comm, (me + 1) % k, 1, &in, "edge", &sent));
    if (sent)
        DT_TRY(dt_recv(comm, (me + k - 1) % k, 1, &out, "edge", &work));
    DT_TRY(dt_work_wait(&sent));
    DT_TRY(dt_work_wait(&work));
    return DT_OK;
}

static dt_status one(dt_world *world, dt_call kind, int64_t p)
{
    const int me = dt_world_rank(world), k = dt_world_size(world);
    const int64_t nin = kind == DT_CALL_ALL_GATHER ? p : k * p;
    const int64_t nout = kind == DT_CALL_REDUCE_SCATTER ? p : k * p;
    dt_array in, out;
    DT_TRY(fresh(world, me, nin, &in));
    DT_TRY(fresh(world, -1, nout, &out));
    DT_TRY(call(dt_world_comm(world), kind, &in, &out));
    const float *x = dt_array_data(&in), *y = dt_array_data(&out);
    for (int64_t i = 0; i < nout + GUARD; i++) {
        const float want = i < nout ? wanted(kind, k, me, p, i) : 99;
        TEST_THAT(y[i] == want, "%s, pieces of %lld: element %lld is %g, not %g",
                  dt_call_name(kind), (long long)p, (long long)i, (double)y[i], (double)want);
    }
    for (int64_t i = 0; i < nin + GUARD; i++)
        TEST_THAT(x[i] == (i < nin ? value(me, i) : 77), "what was given has changed");
    dt_array_release(&in);
    dt_array_release(&out);
    return DT_OK;
}

/* Parts of one byte each, which a slip holds at 16. */
static dt_status many_parts(dt_world *world, int n, bool sums)
{
    const int me = dt_world_rank(world), k = dt_world_size(world), pieces = sums ? 1 : k;
    dt_heap *heap;
    dt_array give, take, in[MOST_PARTS], out[MOST_PARTS];
    dt_part part[MOST_PARTS];
    unsigned char bytes[MOST_PARTS * MOST_RANKS];
    DT_TRY(dt_world_heap(world, (dt_device){.kind = DT_CPU}, &heap));
    DT_TRY(dt_array_create(heap, DT_U8, DT_SHAPE(n), DT_TAG_ACTIVATION, &give));
    DT_TRY(dt_array_create(heap, DT_U8, DT_SHAPE(n * pieces), DT_TAG_ACTIVATION, &take));
    for (int i = 0; i < n; i++) {
        bytes[i] = (unsigned char)value(me, i);
        in[i] = (dt_array){give.storage, i, DT_SHAPE(1), DT_U8};
        out[i] = (dt_array){take.storage, i * pieces, DT_SHAPE(pieces), DT_U8};
        part[i] = (dt_part){.in = &in[i], .out = &out[i]};
    }
    DT_TRY(dt_array_write(&give, bytes, n));
    dt_work *work;
    if (sums)
        DT_TRY(dt_all_reduce(dt_world_comm(world), n, part, DT_REDUCE_MAX, "many parts", &work));
    else
        DT_TRY(dt_all_gather(dt_world_comm(world), n, part, "many parts", &work));
    DT_TRY(dt_work_wait(&work));
    DT_TRY(dt_array_read(&take, bytes, n * pieces));
    for (int i = 0; i < n * pieces; i++) {
        float want = value(i % pieces, i / pieces);
        for (int r = 1; r < k && sums; r++)
            want = value(r, i) > want ? value(r, i) : want;
        TEST_THAT((float)bytes[i] == want, "%d parts: byte %d is %d, not %g", n, i, bytes[i],
                  (double)want);
    }
    dt_array_release(&give);
    dt_array_release(&take);
    return DT_OK;
}

dt_status edge_values(dt_world *world, void *unused)
{
    (void)unused;
    const int k = dt_world_size(world);
    static const dt_call kinds[] = {DT_CALL_ALL_GATHER, DT_CALL_REDUCE_SCATTER, DT_CALL_ALL_REDUCE,
                                    DT_CALL_ALL_TO_ALL, DT_CALL_BROADCAST,      DT_CALL_SEND};
    const int64_t pieces[] = {1024 / k - 5, 1024 / k, 1024 / k + 1, 1301, (1 << 21) / k + 3};
    for (int i = 0; i < DT_COUNT(kinds) * DT_COUNT(pieces); i++)
        DT_TRY(one(world, kinds[i % DT_COUNT(kinds)], pieces[i / DT_COUNT(kinds)]));
    for (int n = MOST_PARTS / 3; n <= MOST_PARTS; n += MOST_PARTS / 3) {
        DT_TRY(many_parts(world, n, false));
        DT_TRY(many_parts(world, n, true));
    }
    return DT_OK;
}

/* ---- calls that do not fit ---- */

/* Rank 0's call and that of all others. Of messages, ranks 0 and 1 alone. */
static const struct {
    dt_call kind[2];
    int64_t count[2];
    int n[2], root[2];
    dt_dtype dtype[2];
} misfits[EDGE_MISFITS] = {
    {{DT_CALL_ALL_REDUCE, DT_CALL_ALL_REDUCE}, {4, 6}, {1, 1}, {0, 0}, {DT_F32, DT_F32}},
    {{DT_CALL_ALL_REDUCE, DT_CALL_ALL_REDUCE}, {4, 4}, {1, 1}, {0, 0}, {DT_F32, DT_I32}},
    {{DT_CALL_BROADCAST, DT_CALL_BROADCAST}, {4, 4}, {1, 1}, {0, 1}, {DT_F32, DT_F32}},
    {{DT_CALL_ALL_REDUCE, DT_CALL_BROADCAST}, {4, 4}, {1, 1}, {0, 0}, {DT_F32, DT_F32}},
    {{DT_CALL_SEND, DT_CALL_RECV}, {3, 4}, {1, 1}, {1, 0}, {DT_F32, DT_F32}},
    {{DT_CALL_SEND, DT_CALL_RECV}, {100000, 100001}, {1, 1}, {1, 0}, {DT_F32, DT_F32}},
    {{DT_CALL_SEND, DT_CALL_RECV}, {4, 4}, {2, 1}, {1, 0}, {DT_F32, DT_F32}},
    {{DT_CALL_SEND, DT_CALL_RECV}, {4, 4}, {1, 2}, {1, 0}, {DT_F32, DT_F32}},
};

dt_status edge_misfit(dt_world *world, int which)
{
    const int me = dt_world_rank(world), s = me > 0;
    const dt_call kind = misfits[which].kind[s];
    const int n = misfits[which].n[s], root = misfits[which].root[s];
    dt_comm *comm = dt_world_comm(world);
    dt_array a[2];
    const dt_array *const from[] = {&a[0], &a[1]};
    dt_array *const to[] = {&a[0], &a[1]};
    const dt_part part[] = {{.in = &a[0], .out = &a[0]}, {.in = &a[1], .out = &a[1]}};
    dt_work *work = NULL;
    if (misfits[which].kind[0] == DT_CALL_SEND && me > 1)
        return DT_OK;
    for (int i = 0; i < n; i++)
        DT_TRY(
            case_array(world, misfits[which].dtype[s], me, i, 0, misfits[which].count[s], &a[i]));
    if (kind == DT_CALL_ALL_REDUCE)
        DT_TRY(dt_all_reduce(comm, n, part, DT_REDUCE_SUM, "misfit", &work));
    else if (kind == DT_CALL_BROADCAST)
        DT_TRY(dt_broadcast(comm, root, n, part, "misfit", &work));
    else if (kind == DT_CALL_SEND)
        DT_TRY(dt_send(comm, root, n, from, "misfit", &work));
    else
        DT_TRY(dt_recv(comm, root, n, to, "misfit", &work));
    TEST_FAILS(DT_ERR_COMM, "'misfit'", dt_work_wait(&work));
    for (int i = 0; i < n; i++)
        dt_array_release(&a[i]);
    return DT_OK;
}
