/* comm/fake.c - one process plays one rank of any number: calls are checked and counted, nothing
 * moves. The pieces of the other ranks are zero; host values of the others are this rank's own. */
#include "comm/comm_internal.h"

#include <string.h>

static dt_status open_comm(dt_comm *comm)
{
    (void)comm;
    return DT_OK;
}

static void close_comm(dt_comm *comm)
{
    (void)comm;
}

static size_t scratch_bytes(const dt_work *w)
{
    (void)w;
    return 0;
}

static dt_status exchange(dt_work *w, const dti_exchange *x)
{
    const int k = w->comm->size, me = w->comm->rank;
    const bool same = w->host_values || x == &w->compare;
    for (int c = 0; c < x->n * k; c++) {
        const dti_piece *to = &x->recv[c];
        if (c % k == me || !to->data || to->bytes == 0)
            continue;
        if (same)
            memcpy(to->data, x->send[c - c % k + me].data, to->bytes);
        else
            memset(to->data, 0, to->bytes);
    }
    return DT_OK;
}

static dt_status finish(dt_work *w)
{
    (void)w;
    return DT_OK;
}

static dt_status start(dt_work *w)
{
    for (int i = 0; i < w->first.n; i++)
        if (w->kind == DT_CALL_RECV && w->first.recv[i].bytes > 0)
            memset(w->first.recv[i].data, 0, w->first.recv[i].bytes);
    return DT_OK;
}

static dt_status test(dt_work *w, bool *done_out)
{
    (void)w;
    *done_out = true;
    return DT_OK;
}

static bool cancel(dt_work *w)
{
    (void)w;
    return true;
}

dt_status dti_fake_open(dt_world *world, int rank, int size)
{
    static const dti_backend ops = {
        .lends = true, /* what is not lent is zero */
        .comm_open = open_comm,
        .comm_close = close_comm,
        .scratch_bytes = scratch_bytes,
        .exchange = exchange,
        .finish = finish,
        .start = start,
        .test = test,
        .cancel = cancel,
    };
    DT_REQUIRE(size >= 1 && rank >= 0 && rank < size, DT_ERR_ARG,
               "fake_rank=%d must be 0..fake_size-1, fake_size=%d", rank, size);
    world->ops = &ops;
    world->rank = rank;
    world->size = size;
    return DT_OK;
}
