/* comm/hier.c - a communicator whose ranks are on several machines, some of them together.
 *
 * What everybody is to have (all_gather, broadcast, the second half of all_reduce) crosses to each
 * machine once: a rank sends its piece to one partner there, which stores it into the results of
 * all on its machine.
 *
 *     machine 0          machine 1
 *     0 ---- piece 0 ---> 2 ---> 3        partners of 0: 2; of 1: 3
 *     1 ---- piece 1 ---> 3 ---> 2
 *
 * Sums are made of everybody's terms in rank order, as everywhere, so those cross by themselves: on
 * any layout all_reduce has the same bits, at the cost of more bytes than partial sums would need.
 * Read before: shm.c, mpi_move.c. */
#include "comm/mpi_internal.h"
#include "comm/shm_internal.h"

#include <stdlib.h>

/* What everybody is to have crosses in x. */
static bool is_for_all(const dt_work *w, const dti_exchange *x)
{
    const bool gathers = w->kind == DT_CALL_ALL_GATHER || w->kind == DT_CALL_BROADCAST;
    return (gathers && x == &w->first && !w->host_values) || (x == &w->second && x->n > 0);
}

static void store(const dt_work *w, const dti_exchange *x, int member, const dti_piece *row,
                  bool stream)
{
    for (int i = 0; i < x->n; i++)
        dti_store_piece(w, i * x->width + member, row[i * x->width + member], stream);
    if (stream)
        dti_copy_fence();
}

static dt_status exchange(dt_work *w, const dti_exchange *x)
{
    if (!is_for_all(w, x))
        return dti_mpi_exchange(w, x);
    const dt_comm *comm = w->comm;
    const bool stream = w->whole * comm->room->size >= DTI_STREAM_BYTES;
    dt_status st = dti_room_meet(w, DTI_STEP_DIRECT, x);
    if (st != DT_OK)
        return st;
    store(w, x, comm->rank, x->send, stream);
    st = dti_mpi_exchange_with(w, x, comm->sends_to, comm->hears_from);
    for (int p = 0; st == DT_OK && p < comm->size; p++)
        if (comm->hears_from[p])
            store(w, x, p, x->recv, stream);
    return st == DT_OK ? dti_shm_finish(w) : st;
}

static void close_comm(dt_comm *comm)
{
    free(comm->sends_to);
    free(comm->hears_from);
    free(comm->room);
    dti_mpi_close_comm(comm);
}

/* Members on p's machine, and p's place among them. */
static int count_together(const dt_comm *comm, const int *machine, int p, int *place_out)
{
    int n = 0;
    for (int q = 0; q < comm->size; q++) {
        if (q == p)
            *place_out = n;
        n += machine[comm->ranks[q]] == machine[comm->ranks[p]];
    }
    return n;
}

dt_status dti_hier_open(dt_comm *comm, const int *machine)
{
    static const dti_backend ops = {
        .shares = true,
        .polls = true,
        .comm_close = close_comm,
        .scratch_bytes = dti_mpi_scratch_bytes,
        .exchange = exchange,
        .finish = dti_mpi_finish,
        .start = dti_mpi_start,
        .test = dti_mpi_test,
        .cancel = dti_mpi_cancel,
    };
    comm->sends_to = calloc((size_t)comm->size, sizeof *comm->sends_to);
    comm->hears_from = calloc((size_t)comm->size, sizeof *comm->hears_from);
    comm->ops = &ops;
    DT_REQUIRE(comm->sends_to && comm->hears_from, DT_ERR_NOMEM, "a communicator");
    int mine = 0, theirs = 0;
    const int here = count_together(comm, machine, comm->rank, &mine);
    for (int p = 0; p < comm->size; p++) {
        const int there = count_together(comm, machine, p, &theirs);
        const bool far = machine[comm->ranks[p]] != machine[comm->ranks[comm->rank]];
        comm->sends_to[p] = far && mine % there == theirs;
        comm->hears_from[p] = far && theirs % here == mine;
    }
    return DT_OK;
}
