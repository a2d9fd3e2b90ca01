/* comm/mpi_move.c - how MPI moves the bytes of a call; sums are made in run.c.
 *
 * An exchange posts all receives, then all sends, each cut into messages of at most `piece`
 * elements (MPI counts are ints), and tests them until all are done or the deadline has passed.
 * Errors come back as status codes. Read before: mpi.c. */
#include "comm/mpi_internal.h"

#include <stdlib.h>

enum { TAG_COLLECTIVE = 1, TAG_MESSAGE = 2 };
#define MESSAGE_BYTES_MAX ((size_t)1 << 30)

/* The messages of one exchange, in scratch memory of its work. */
typedef struct flight {
    int n, pending;
    MPI_Request *request;
    MPI_Status *status;
    int *index;         /* of what MPI_Testsome found */
    int *peer, *expect; /* rank; bytes to receive, -1: a send */
} flight;

static dt_status fail_mpi(dt_work *w, int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    (void)MPI_Error_string(error, text, &length);
    return dti_work_fail(w, DT_ERR_COMM, "%s: %s", what, text);
}

static size_t message_bytes(const dt_work *w, const dti_exchange *x, int part)
{
    const size_t element = x->element_bytes[part] > 0 ? x->element_bytes[part] : 1;
    const size_t most = MESSAGE_BYTES_MAX / element;
    const size_t piece = (size_t)w->comm->world->piece;
    return (piece < most ? piece : most) * element;
}

static int count_messages(const dt_work *w, const dti_exchange *x)
{
    size_t n = 0;
    for (int i = 0; i < x->n; i++) {
        const size_t limit = message_bytes(w, x, i);
        for (int r = 0; r < x->width; r++) {
            if (x->width > 1 && r == w->comm->rank)
                continue;
            n += (x->send[i * x->width + r].bytes + limit - 1) / limit;
            n += (x->recv[i * x->width + r].bytes + limit - 1) / limit;
        }
    }
    return (int)n;
}

static size_t flight_bytes(int n)
{
    return sizeof(flight) +
           (size_t)n * (sizeof(MPI_Request) + sizeof(MPI_Status) + 3 * sizeof(int));
}

size_t dti_mpi_scratch_bytes(const dt_work *w)
{
    const int first = count_messages(w, &w->first), second = count_messages(w, &w->second);
    const int compare = count_messages(w, &w->compare);
    int most = first > second ? first : second;
    most = most > compare ? most : compare;
    return flight_bytes(most);
}

static flight *lay_out(dt_work *w, int n)
{
    flight *f = w->scratch;
    *f = (flight){0};
    f->request = (MPI_Request *)(void *)(f + 1);
    f->status = (MPI_Status *)(void *)(f->request + n);
    f->index = (int *)(void *)(f->status + n);
    f->peer = f->index + n;
    f->expect = f->peer + n;
    return f;
}

static dt_status post(dt_work *w, flight *f, int peer, dti_piece piece, size_t limit, bool is_send)
{
    const MPI_Comm comm = *(MPI_Comm *)w->comm->data;
    const bool message = w->kind == DT_CALL_SEND || w->kind == DT_CALL_RECV;
    const int tag = message ? TAG_MESSAGE : TAG_COLLECTIVE;
    for (size_t at = 0; at < piece.bytes; at += limit) {
        const int n = (int)(piece.bytes - at < limit ? piece.bytes - at : limit);
        MPI_Request *request = &f->request[f->n];
        const int error = is_send
                              ? MPI_Isend(piece.data + at, n, MPI_BYTE, peer, tag, comm, request)
                              : MPI_Irecv(piece.data + at, n, MPI_BYTE, peer, tag, comm, request);
        if (error != MPI_SUCCESS)
            return fail_mpi(w, error, is_send ? "MPI_Isend" : "MPI_Irecv");
        f->peer[f->n] = peer;
        f->expect[f->n] = is_send ? -1 : n;
        f->n++;
        f->pending++;
    }
    return DT_OK;
}

/* Give up what is still pending; the bytes stay alive with the failed work. */
static void abandon(flight *f)
{
    for (int i = 0; i < f->n; i++) {
        if (f->request[i] == MPI_REQUEST_NULL)
            continue;
        if (f->expect[i] >= 0)
            (void)MPI_Cancel(&f->request[i]);
        (void)MPI_Request_free(&f->request[i]);
    }
    f->pending = 0;
}

static dt_status check_arrival(dt_work *w, const flight *f, int i, const MPI_Status *status)
{
    if (f->expect[i] < 0)
        return DT_OK;
    int bytes = 0;
    (void)MPI_Get_count(status, MPI_BYTE, &bytes);
    if (bytes != f->expect[i])
        return dti_work_fail(w, DT_ERR_COMM, "rank %d sends %d bytes where this rank expects %d",
                             w->comm->ranks[f->peer[i]], bytes, f->expect[i]);
    return DT_OK;
}

/* Look once; pending 0: all done. */
static dt_status look(dt_work *w, flight *f)
{
    int found = 0;
    for (int i = 0; i < f->n; i++)
        f->status[i].MPI_ERROR = MPI_SUCCESS;
    const int error = MPI_Testsome(f->n, f->request, &found, f->index, f->status);
    for (int i = 0; error == MPI_ERR_IN_STATUS && i < found; i++)
        if (f->status[i].MPI_ERROR == MPI_ERR_TRUNCATE)
            return dti_work_fail(w, DT_ERR_COMM, "rank %d sends more bytes than this rank expects",
                                 w->comm->ranks[f->peer[f->index[i]]]);
    if (error != MPI_SUCCESS)
        return fail_mpi(w, error, "MPI_Testsome");
    if (found == MPI_UNDEFINED) {
        f->pending = 0;
        return DT_OK;
    }
    f->pending -= found;
    dt_status st = DT_OK;
    for (int i = 0; st == DT_OK && i < found; i++)
        st = check_arrival(w, f, f->index[i], &f->status[i]);
    return st;
}

/* Ranks we still wait for are those whose messages have not come; without such, those that do not
 * take ours. */
static dt_status fail_absent(dt_work *w, const flight *f)
{
    bool *absent = calloc((size_t)w->comm->size, sizeof *absent);
    if (!absent)
        return dti_work_fail(w, DT_ERR_TIMEOUT, "deadline passed");
    bool receives = false;
    for (int i = 0; i < f->n; i++)
        receives |= f->request[i] != MPI_REQUEST_NULL && f->expect[i] >= 0;
    for (int i = 0; i < f->n; i++)
        if (f->request[i] != MPI_REQUEST_NULL && (f->expect[i] >= 0 || !receives))
            absent[f->peer[i]] = true;
    const dt_status st = dti_work_fail_absent(w, absent);
    free(absent);
    return st;
}

static dt_status post_all(dt_work *w, flight *f, const dti_exchange *x, const bool *to,
                          const bool *from)
{
    const int k = w->comm->size, me = w->comm->rank;
    dt_status st = DT_OK;
    for (int pass = 0; pass < 2; pass++) /* receives first, so that sends find them */
        for (int i = 0; i < x->n; i++)
            for (int step = 1; st == DT_OK && step < k; step++) {
                const bool send = pass == 1;
                const int peer = (send ? me + step : me + k - step) % k;
                const dti_piece *row = (send ? x->send : x->recv) + i * k;
                const bool *with = send ? to : from;
                if (with && !with[peer])
                    continue;
                st = post(w, f, peer, row[peer], message_bytes(w, x, i), send);
            }
    return st;
}

dt_status dti_mpi_exchange(dt_work *w, const dti_exchange *x)
{
    return dti_mpi_exchange_with(w, x, NULL, NULL);
}

dt_status dti_mpi_exchange_with(dt_work *w, const dti_exchange *x, const bool *to, const bool *from)
{
    if (dti_broken(w->comm->world))
        return dti_work_fail_peer(w);
    flight *f = lay_out(w, count_messages(w, x));
    const double since = dti_now();
    dt_status st = post_all(w, f, x, to, from);
    while (st == DT_OK && f->pending > 0) {
        st = look(w, f);
        if (st != DT_OK || f->pending == 0)
            break;
        if (dti_broken(w->comm->world))
            st = dti_work_fail_peer(w);
        else if (dti_late(w))
            st = fail_absent(w, f);
        dti_pause(since);
    }
    if (st != DT_OK)
        abandon(f);
    return st;
}

dt_status dti_mpi_finish(dt_work *w)
{
    (void)w; /* all sends are complete when exchange returns */
    return DT_OK;
}

dt_status dti_mpi_start(dt_work *w)
{
    const dti_exchange *x = &w->first;
    const bool send = w->kind == DT_CALL_SEND;
    flight *f = lay_out(w, count_messages(w, x));
    dt_status st = dti_broken(w->comm->world) ? dti_work_fail_peer(w) : DT_OK;
    for (int i = 0; st == DT_OK && i < x->n; i++)
        st = post(w, f, w->peer, send ? x->send[i] : x->recv[i], message_bytes(w, x, i), send);
    if (st != DT_OK)
        abandon(f);
    return st;
}

dt_status dti_mpi_test(dt_work *w, bool *done_out)
{
    flight *f = w->scratch;
    if (f->pending > 0) {
        const dt_status st = look(w, f);
        if (st != DT_OK) {
            abandon(f);
            return st;
        }
    }
    *done_out = f->pending == 0;
    return DT_OK;
}

bool dti_mpi_cancel(dt_work *w)
{
    flight *f = w->scratch;
    if (f->pending == 0)
        return true;
    abandon(f);
    return false;
}
