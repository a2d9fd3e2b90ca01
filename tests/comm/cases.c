/* tests/comm/cases.c - see cases.h. */
#include "tests/comm/cases.h"

#include "array/dt_half.h"
#include "base/dt_random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 8, MAX_PARTS = 3 };

typedef struct a_case {
    dt_world *world;
    dt_comm *comm;
    dt_dtype dtype;
    int n;         /* parts */
    bool uneven;   /* cuts: with zeros, given by counts */
    int64_t scale; /* of sizes */
    case_results *results;
} a_case;

double case_value(dt_dtype dtype, int rank, int part, int64_t i)
{
    const dt_key key = dt_key_make(17, (uint64_t)rank, (uint64_t)part);
    const double u = (double)dt_uniform(key, (uint64_t)i);
    return dt_dtype_is_float(dtype) ? (8 * u - 4) / 3 : (double)(int)(u * 50); /* / 3: sums round */
}

static double load(dt_dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case DT_F32: return (double)((const float *)data)[i];
    case DT_F64: return ((const double *)data)[i];
    case DT_BF16: return (double)dt_bf16_to_f32(((const uint16_t *)data)[i]);
    case DT_F16: return (double)dt_f16_to_f32(((const uint16_t *)data)[i]);
    case DT_I32: return ((const int32_t *)data)[i];
    case DT_I64: return (double)((const int64_t *)data)[i];
    case DT_U8: return ((const uint8_t *)data)[i];
    case DT_NDTYPES: break;
    }
    return 0;
}

static void store(dt_dtype dtype, void *data, int64_t i, double v)
{
    switch (dtype) {
    case DT_F32: ((float *)data)[i] = (float)v; break;
    case DT_F64: ((double *)data)[i] = v; break;
    case DT_BF16: ((uint16_t *)data)[i] = dt_f32_to_bf16((float)v); break;
    case DT_F16: ((uint16_t *)data)[i] = dt_f32_to_f16((float)v); break;
    case DT_I32: ((int32_t *)data)[i] = (int32_t)v; break;
    case DT_I64: ((int64_t *)data)[i] = (int64_t)v; break;
    case DT_U8: ((uint8_t *)data)[i] = (uint8_t)v; break;
    case DT_NDTYPES: break;
    }
}

/* The element as stored: rounded to dtype. */
static double stored_value(dt_dtype dtype, int rank, int part, int64_t i)
{
    double room = 0;
    store(dtype, &room, 0, case_value(dtype, rank, part, i));
    return load(dtype, &room, 0);
}

dt_status case_array(dt_world *world, dt_dtype dtype, int rank, int part, int64_t first,
                     int64_t count, dt_array *array_out)
{
    dt_heap *heap;
    DT_TRY(dt_world_heap(world, test_device(world), &heap));
    DT_TRY(dt_array_create(heap, dtype, DT_SHAPE(count), DT_TAG_ACTIVATION, array_out));
    char *host = malloc((size_t)(count + 1) * dt_dtype_size(dtype));
    for (int64_t i = 0; host && i < count; i++)
        store(dtype, host, i, rank < 0 ? 99 : case_value(dtype, rank, part, first + i));
    const dt_status st = host ? dt_array_write(array_out, host, count) : DT_ERR_NOMEM;
    free(host);
    return st;
}

dt_status case_floats(dt_world *world, int64_t count, float value, dt_array *array_out)
{
    dt_heap *heap;
    DT_TRY(dt_world_heap(world, test_device(world), &heap));
    DT_TRY(dt_array_create(heap, DT_F32, DT_SHAPE(count), DT_TAG_ACTIVATION, array_out));
    dt_array_fill(array_out, (double)value);
    return DT_OK;
}

dt_status case_link(dt_world *world, dt_comm *comm)
{
    dt_heap *heap;
    DT_TRY(dt_world_heap(world, test_device(world), &heap));
    return dt_comm_link(comm, heap);
}

float case_first(const dt_array *a)
{
    return ((const float *)test_look(a))[0];
}

/* Sum, max or min over ranks in rank order: in f32, f64 for f64, as they are for integers. */
static double combined(const a_case *c, dt_reduce op, int part, int64_t i)
{
    double acc = stored_value(c->dtype, 0, part, i);
    for (int r = 1; r < dt_comm_size(c->comm); r++) {
        const double x = stored_value(c->dtype, r, part, i);
        const double sum = c->dtype == DT_F64 || !dt_dtype_is_float(c->dtype)
                               ? acc + x
                               : (double)((float)acc + (float)x);
        acc = op == DT_REDUCE_SUM   ? sum
              : op == DT_REDUCE_MAX ? (x > acc ? x : acc)
                                    : (x < acc ? x : acc);
    }
    double room = 0;
    store(c->dtype, &room, 0, acc);
    return load(c->dtype, &room, 0);
}

/* Elements of rank r's piece of a part; uneven ones are 0 now and then. */
static int64_t piece(const a_case *c, int part, int r)
{
    return (c->uneven ? (2 * part + 3 * r + 1) % 4 : 2 + part) * c->scale;
}

/* Elements that `from` sends to `to` in an all-to-all. */
static int64_t pair(const a_case *c, int part, int from, int to)
{
    return (c->uneven ? (from + 2 * to + part) % 3 : 1 + part) * c->scale;
}

typedef struct cut {
    int64_t count[MAX_RANKS], start[MAX_RANKS], total;
} cut;

static cut cut_pieces(const a_case *c, int part)
{
    cut t = {.total = 0};
    for (int r = 0; r < dt_comm_size(c->comm); r++) {
        t.count[r] = piece(c, part, r);
        t.start[r] = t.total;
        t.total += t.count[r];
    }
    return t;
}

typedef struct sides {
    dt_array in[MAX_PARTS], out[MAX_PARTS];
    dt_part part[MAX_PARTS];
    cut cut[MAX_PARTS];
} sides;

static dt_status open_sides(const a_case *c, sides *s, const int64_t *in, const int64_t *out,
                            const int64_t *first)
{
    *s = (sides){0};
    const int me = dt_comm_rank(c->comm);
    for (int p = 0; p < c->n; p++) {
        s->cut[p] = cut_pieces(c, p);
        DT_TRY(case_array(c->world, c->dtype, me, p, first[p], in[p], &s->in[p]));
        DT_TRY(case_array(c->world, c->dtype, -1, p, 0, out[p], &s->out[p]));
        s->part[p] = (dt_part){.in = &s->in[p], .out = &s->out[p]};
    }
    return DT_OK;
}

static dt_status close_sides(const a_case *c, sides *s)
{
    for (int p = 0; p < c->n; p++) {
        const int64_t bytes = (int64_t)dt_array_bytes(&s->out[p]);
        case_results *r = c->results;
        DT_TRY(dt_grow((void **)&r->bytes, &r->capacity, r->count + bytes, 1));
        if (bytes > 0)
            memcpy(r->bytes + r->count, test_look(&s->out[p]), (size_t)bytes);
        r->count += bytes;
        dt_array_release(&s->in[p]);
        dt_array_release(&s->out[p]);
    }
    return DT_OK;
}

static dt_status expect(const a_case *c, const dt_array *a, int64_t i, double want,
                        const char *what)
{
    const dt_array one = {a->storage, a->offset + i, DT_SHAPE(1), c->dtype};
    const double got = load(c->dtype, test_look(&one), 0);
    /* NCCL adds f32 and f64 in an order of its own: k terms of at most 4/3, rounded k times each
     * way. */
    const double k = dt_comm_size(c->comm);
    const bool reordered = test_device_kind() == DT_CUDA && strstr(what, "reduce") &&
                           (c->dtype == DT_F32 || c->dtype == DT_F64);
    const double unit = c->dtype == DT_F32 ? 0x1p-24 : 0x1p-53;
    const double limit = reordered ? 2 * k * k * 4 / 3 * unit : 0;
    TEST_THAT(fabs(got - want) <= limit, "%s %s of %d, uneven %d, element %lld: %.9g, not %.9g",
              what, dt_dtype_name(c->dtype), c->n, c->uneven, (long long)i, got, want);
    return DT_OK;
}

static dt_status try_all_gather(const a_case *c)
{
    const int me = dt_comm_rank(c->comm), k = dt_comm_size(c->comm);
    int64_t in[MAX_PARTS], out[MAX_PARTS];
    for (int p = 0; p < c->n; p++) {
        in[p] = piece(c, p, me);
        out[p] = cut_pieces(c, p).total;
    }
    sides s;
    DT_TRY(open_sides(c, &s, in, out, (int64_t[MAX_PARTS]){0}));
    for (int p = 0; p < c->n; p++)
        s.part[p].recv = c->uneven ? s.cut[p].count : NULL;
    dt_work *work;
    DT_TRY(dt_all_gather(c->comm, c->n, s.part, "gather", &work));
    DT_TRY(dt_work_wait(&work));
    for (int p = 0; p < c->n; p++)
        for (int r = 0; r < k; r++)
            for (int64_t i = 0; i < s.cut[p].count[r]; i++)
                DT_TRY(expect(c, &s.out[p], s.cut[p].start[r] + i, stored_value(c->dtype, r, p, i),
                              "all_gather"));
    DT_TRY(close_sides(c, &s));
    return DT_OK;
}

static dt_status try_reduce_scatter(const a_case *c)
{
    const int me = dt_comm_rank(c->comm);
    int64_t in[MAX_PARTS], out[MAX_PARTS];
    for (int p = 0; p < c->n; p++) {
        in[p] = cut_pieces(c, p).total;
        out[p] = piece(c, p, me);
    }
    sides s;
    DT_TRY(open_sides(c, &s, in, out, (int64_t[MAX_PARTS]){0}));
    for (int p = 0; p < c->n; p++)
        s.part[p].send = c->uneven ? s.cut[p].count : NULL;
    dt_work *work;
    DT_TRY(dt_reduce_scatter(c->comm, c->n, s.part, "scatter", &work));
    DT_TRY(dt_work_wait(&work));
    for (int p = 0; p < c->n; p++)
        for (int64_t i = 0; i < out[p]; i++)
            DT_TRY(expect(c, &s.out[p], i, combined(c, DT_REDUCE_SUM, p, s.cut[p].start[me] + i),
                          "reduce_scatter"));
    DT_TRY(close_sides(c, &s));
    return DT_OK;
}

/* Sizes 0, 1, ...: also fewer elements than ranks. Part 0 in place. */
static dt_status try_all_reduce(const a_case *c, dt_reduce op)
{
    int64_t n[MAX_PARTS];
    for (int p = 0; p < c->n; p++)
        n[p] = (c->uneven ? 5 * p : 1 + 3 * p) * c->scale;
    sides s;
    DT_TRY(open_sides(c, &s, n, n, (int64_t[MAX_PARTS]){0}));
    dt_array_copy(&s.out[0], &s.in[0]);
    s.part[0].in = &s.out[0];
    const int64_t unused[MAX_RANKS] = {0};
    for (int p = 0; p < c->n; p++)
        s.part[p].send = s.part[p].recv = unused;
    dt_work *work;
    DT_TRY(dt_all_reduce(c->comm, c->n, s.part, op, "reduce", &work));
    DT_TRY(dt_work_wait(&work));
    for (int p = 0; p < c->n; p++)
        for (int64_t i = 0; i < n[p]; i++)
            DT_TRY(expect(c, &s.out[p], i, combined(c, op, p, i), "all_reduce"));
    DT_TRY(close_sides(c, &s));
    return DT_OK;
}

/* The piece from rank r begins, in r's array, behind r's pieces for lower ranks. */
static dt_status try_all_to_all(const a_case *c)
{
    const int me = dt_comm_rank(c->comm), k = dt_comm_size(c->comm);
    int64_t in[MAX_PARTS] = {0}, out[MAX_PARTS] = {0};
    int64_t send[MAX_PARTS][MAX_RANKS], recv[MAX_PARTS][MAX_RANKS];
    for (int p = 0; p < c->n; p++)
        for (int r = 0; r < k; r++) {
            in[p] += send[p][r] = pair(c, p, me, r);
            out[p] += recv[p][r] = pair(c, p, r, me);
        }
    sides s;
    DT_TRY(open_sides(c, &s, in, out, (int64_t[MAX_PARTS]){0}));
    for (int p = 0; p < c->n && c->uneven; p++) {
        s.part[p].send = send[p];
        s.part[p].recv = recv[p];
    }
    dt_work *work;
    DT_TRY(dt_all_to_all(c->comm, c->n, s.part, "exchange", &work));
    DT_TRY(dt_work_wait(&work));
    for (int p = 0; p < c->n; p++) {
        int64_t at = 0;
        for (int r = 0; r < k; r++) {
            int64_t skipped = 0;
            for (int lower = 0; lower < me; lower++)
                skipped += pair(c, p, r, lower);
            for (int64_t i = 0; i < recv[p][r]; i++)
                DT_TRY(expect(c, &s.out[p], at++, stored_value(c->dtype, r, p, skipped + i),
                              "all_to_all"));
        }
    }
    DT_TRY(close_sides(c, &s));
    return DT_OK;
}

static dt_status try_broadcast(const a_case *c, int root)
{
    int64_t n[MAX_PARTS];
    for (int p = 0; p < c->n; p++)
        n[p] = piece(c, p, 1);
    sides s;
    DT_TRY(open_sides(c, &s, n, n, (int64_t[MAX_PARTS]){0}));
    dt_work *work;
    DT_TRY(dt_broadcast(c->comm, root, c->n, s.part, "broadcast", &work));
    DT_TRY(dt_work_wait(&work));
    for (int p = 0; p < c->n; p++)
        for (int64_t i = 0; i < n[p]; i++)
            DT_TRY(expect(c, &s.out[p], i, stored_value(c->dtype, root, p, i), "broadcast"));
    DT_TRY(close_sides(c, &s));
    return DT_OK;
}

/* Round a ring: all send first, then receive. */
static dt_status try_messages(const a_case *c)
{
    const int me = dt_comm_rank(c->comm), k = dt_comm_size(c->comm);
    if (k == 1)
        return DT_OK;
    int64_t n[MAX_PARTS];
    for (int p = 0; p < c->n; p++)
        n[p] = piece(c, p, 0);
    sides s;
    DT_TRY(open_sides(c, &s, n, n, (int64_t[MAX_PARTS]){0}));
    const dt_array *in[MAX_PARTS];
    dt_array *out[MAX_PARTS];
    for (int p = 0; p < c->n; p++) {
        in[p] = &s.in[p];
        out[p] = &s.out[p];
    }
    dt_work *sent, *received;
    DT_TRY(dt_send(c->comm, (me + 1) % k, c->n, in, "to the right", &sent));
    DT_TRY(dt_recv(c->comm, (me + k - 1) % k, c->n, out, "from the left", &received));
    DT_TRY(dt_work_wait(&sent));
    DT_TRY(dt_work_wait(&received));
    for (int p = 0; p < c->n; p++)
        for (int64_t i = 0; i < n[p]; i++)
            DT_TRY(expect(c, &s.out[p], i, stored_value(c->dtype, (me + k - 1) % k, p, i), "recv"));
    DT_TRY(close_sides(c, &s));
    return DT_OK;
}

static dt_status try_all(const a_case *c)
{
    DT_TRY(try_all_gather(c));
    DT_TRY(try_reduce_scatter(c));
    DT_TRY(try_all_reduce(c, DT_REDUCE_SUM));
    DT_TRY(try_all_reduce(c, DT_REDUCE_MAX));
    DT_TRY(try_all_reduce(c, DT_REDUCE_MIN));
    DT_TRY(try_all_to_all(c));
    for (int root = 0; root < dt_comm_size(c->comm); root++)
        DT_TRY(try_broadcast(c, root));
    DT_TRY(try_messages(c));
    dt_work *work;
    DT_TRY(dt_barrier(c->comm, "barrier", &work));
    DT_TRY(dt_work_wait(&work));
    return DT_OK;
}

dt_status run_cases(dt_world *world, dt_comm *comm, bool large, case_results *results)
{
    a_case c = {.world = world, .comm = comm, .scale = 1, .results = results};
    DT_TRY(case_link(world, comm));
    for (int uneven = 0; uneven < 2; uneven++) {
        c.uneven = uneven;
        for (c.n = 1; c.n <= MAX_PARTS; c.n++)
            for (int dtype = 0; dtype < DT_NDTYPES; dtype++) {
                c.dtype = (dt_dtype)dtype;
                DT_TRY(try_all(&c));
            }
    }
    c.dtype = DT_F32;
    c.n = 1;
    for (c.scale = 300; c.scale <= 600; c.scale += 300) /* what some ranks send is small */
        DT_TRY(try_all_to_all(&c));
    c.n = 2;
    c.scale = 1999;
    if (large)
        DT_TRY(try_all(&c));
    c.n = 1;
    for (int i = 0; large && i < 2; i++) { /* sums of 16 bits are made in blocks */
        c.dtype = i ? DT_F16 : DT_BF16;
        DT_TRY(try_reduce_scatter(&c));
        DT_TRY(try_all_reduce(&c, DT_REDUCE_SUM));
    }
    return DT_OK;
}
