/* comm/mpi.c - ranks are MPI processes. MPI only moves bytes; sums are made in run.c.
 *
 * An exchange posts all receives, then all sends, each cut into messages of at most `piece` elements
 * (MPI counts are ints), and tests them until all are done or the deadline has passed. Errors come back
 * as status codes. A communicator is first agreed on among its ranks by small messages with a deadline,
 * because MPI's own creation would wait for ever for a rank that does not come. */
#include "comm/comm_internal.h"

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_COLLECTIVE = 1, TAG_MESSAGE = 2, TAG_CREATE = 3 };
#define MESSAGE_BYTES_MAX ((size_t)1 << 30)

typedef struct mpi_world {
    MPI_Comm all; /* a duplicate of MPI_COMM_WORLD; carries only the agreement on communicators */
    bool started; /* by us, so ended by us */
} mpi_world;

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
    return dti_fail(w, DT_ERR_COMM, "%s: %s", what, text);
}

/* ---- messages ---- */

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

static size_t scratch_bytes(const dt_work *w)
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
        return dti_fail(w, DT_ERR_COMM, "rank %d sends %d bytes where this rank expects %d",
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
            return dti_fail(w, DT_ERR_COMM, "rank %d sends more bytes than this rank expects",
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

/* Ranks we still wait for are those whose messages have not come; without such, those that do not take ours. */
static dt_status fail_absent(dt_work *w, const flight *f)
{
    bool *absent = calloc((size_t)w->comm->size, sizeof *absent);
    if (!absent)
        return dti_fail(w, DT_ERR_TIMEOUT, "deadline passed");
    bool receives = false;
    for (int i = 0; i < f->n; i++)
        receives |= f->request[i] != MPI_REQUEST_NULL && f->expect[i] >= 0;
    for (int i = 0; i < f->n; i++)
        if (f->request[i] != MPI_REQUEST_NULL && (f->expect[i] >= 0 || !receives))
            absent[f->peer[i]] = true;
    const dt_status st = dti_fail_absent(w, absent);
    free(absent);
    return st;
}

static dt_status post_all(dt_work *w, flight *f, const dti_exchange *x)
{
    const int k = w->comm->size, me = w->comm->rank;
    dt_status st = DT_OK;
    for (int pass = 0; pass < 2; pass++) /* receives first, so that sends find them */
        for (int i = 0; i < x->n; i++)
            for (int step = 1; st == DT_OK && step < k; step++) {
                const bool send = pass == 1;
                const int peer = (send ? me + step : me + k - step) % k;
                const dti_piece *row = (send ? x->send : x->recv) + i * k;
                st = post(w, f, peer, row[peer], message_bytes(w, x, i), send);
            }
    return st;
}

static dt_status exchange(dt_work *w, const dti_exchange *x)
{
    if (dti_broken(w->comm->world))
        return dti_fail_with_peer(w);
    flight *f = lay_out(w, count_messages(w, x));
    const double since = dti_now();
    dt_status st = post_all(w, f, x);
    while (st == DT_OK && f->pending > 0) {
        st = look(w, f);
        if (st != DT_OK || f->pending == 0)
            break;
        if (dti_now() > w->deadline_s)
            st = fail_absent(w, f);
        dti_pause(since);
    }
    if (st != DT_OK)
        abandon(f);
    return st;
}

static dt_status finish(dt_work *w)
{
    (void)w; /* all sends are complete when exchange returns */
    return DT_OK;
}

static dt_status start(dt_work *w)
{
    const dti_exchange *x = &w->first;
    const bool send = w->kind == DT_CALL_SEND;
    flight *f = lay_out(w, count_messages(w, x));
    dt_status st = dti_broken(w->comm->world) ? dti_fail_with_peer(w) : DT_OK;
    for (int i = 0; st == DT_OK && i < x->n; i++)
        st = post(w, f, w->peer, send ? x->send[i] : x->recv[i], message_bytes(w, x, i), send);
    if (st != DT_OK)
        abandon(f);
    return st;
}

static dt_status test(dt_work *w, bool *done_out)
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

static bool cancel(dt_work *w)
{
    flight *f = w->scratch;
    if (f->pending == 0)
        return true;
    abandon(f);
    return false;
}

/* ---- communicators ---- */

static uint64_t hash_of(const dt_comm *comm)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    hash = (hash ^ (uint64_t)comm->channel) * 0x100000001b3u;
    for (int i = 0; i < comm->size; i++)
        hash = (hash ^ (uint64_t)comm->ranks[i]) * 0x100000001b3u;
    return hash;
}

static dt_status wait_to_meet(dt_comm *comm, MPI_Request *request, const uint64_t *hash)
{
    const int k = comm->size;
    const double since = dti_now();
    int done = 0;
    while (!done) {
        const int error = MPI_Testall(2 * k, request, &done, MPI_STATUSES_IGNORE);
        DT_REQUIRE(error == MPI_SUCCESS, DT_ERR_COMM, "MPI error %d", error);
        DT_REQUIRE(done || dti_now() - since < comm->world->timeout_s, DT_ERR_TIMEOUT,
                   "creating %s: waited %.3g s for its ranks", comm->name, comm->world->timeout_s);
        if (!done)
            dti_pause(since);
    }
    for (int r = 0; r < k; r++)
        DT_REQUIRE(r == comm->rank || hash[r] == hash[comm->rank], DT_ERR_COMM,
                   "creating %s: rank %d creates another communicator at this point", comm->name,
                   comm->ranks[r]);
    return DT_OK;
}

/* Every member tells every other what it is about to create. */
static dt_status meet(dt_comm *comm)
{
    const mpi_world *mpi = comm->world->data;
    const int k = comm->size;
    uint64_t *hash = calloc((size_t)k, sizeof *hash);
    MPI_Request *request = malloc(2 * (size_t)k * sizeof(MPI_Request));
    if (!hash || !request) {
        free(hash);
        free(request);
        return DT_ERROR(DT_ERR_NOMEM, "a communicator of %d", k);
    }
    hash[comm->rank] = hash_of(comm);
    int error = MPI_SUCCESS;
    for (int r = 0; r < 2 * k; r++)
        request[r] = MPI_REQUEST_NULL;
    for (int r = 0; r < k && error == MPI_SUCCESS; r++)
        if (r != comm->rank)
            error =
                MPI_Irecv(&hash[r], 8, MPI_BYTE, comm->ranks[r], TAG_CREATE, mpi->all, &request[r]);
    for (int r = 0; r < k && error == MPI_SUCCESS; r++)
        if (r != comm->rank)
            error = MPI_Isend(&hash[comm->rank], 8, MPI_BYTE, comm->ranks[r], TAG_CREATE, mpi->all,
                              &request[k + r]);
    const dt_status st = error == MPI_SUCCESS ? wait_to_meet(comm, request, hash)
                                              : DT_ERROR(DT_ERR_COMM, "MPI error %d", error);
    if (st == DT_OK) { /* else MPI may still write to them */
        free(hash);
        free(request);
    }
    return st;
}

static int create(const dt_comm *comm, MPI_Comm *mpi_out)
{
    const mpi_world *mpi = comm->world->data;
    MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    int error = MPI_Comm_group(mpi->all, &all);
    if (error == MPI_SUCCESS)
        error = MPI_Group_incl(all, comm->size, comm->ranks, &members);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_create_group(mpi->all, members, comm->channel, mpi_out);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_errhandler(*mpi_out, MPI_ERRORS_RETURN);
    if (members != MPI_GROUP_NULL)
        (void)MPI_Group_free(&members);
    if (all != MPI_GROUP_NULL)
        (void)MPI_Group_free(&all);
    return error;
}

static dt_status open_comm(dt_comm *comm)
{
    DT_TRY(meet(comm));
    MPI_Comm *made = malloc(sizeof(MPI_Comm));
    DT_REQUIRE(made, DT_ERR_NOMEM, "a communicator");
    const int error = create(comm, made);
    if (error != MPI_SUCCESS)
        free(made);
    DT_REQUIRE(error == MPI_SUCCESS, DT_ERR_COMM, "MPI cannot create %s: error %d", comm->name,
               error);
    comm->data = made;
    return DT_OK;
}

/* In a dead world MPI would wait for ever for the others. */
static void close_comm(dt_comm *comm)
{
    if (!dti_broken(comm->world))
        (void)MPI_Comm_free(comm->data);
    free(comm->data);
}

/* ---- the world ---- */

static void close_world(dt_world *world)
{
    mpi_world *mpi = world->data;
    if (!dti_broken(world)) {
        (void)MPI_Comm_free(&mpi->all);
        if (mpi->started)
            (void)MPI_Finalize();
    }
    free(mpi);
}

static void end_job(int exit_status)
{
    (void)MPI_Abort(MPI_COMM_WORLD, exit_status);
    exit(exit_status);
}

bool dti_mpi_launched(void)
{
    static const char *const name[] = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK",
                                       "SLURM_STEP_NUM_TASKS"};
    for (int i = 0; i < DT_COUNT(name); i++)
        if (getenv(name[i]))
            return true;
    return false;
}

static dt_status start_mpi(bool *started_out)
{
    int initialized = 0, finalized = 0, level = 0;
    (void)MPI_Initialized(&initialized);
    (void)MPI_Finalized(&finalized);
    DT_REQUIRE(!finalized, DT_ERR_STATE,
               "MPI has ended: one mpi world after another is not possible "
               "unless the program itself starts and ends MPI");
    if (initialized)
        (void)MPI_Query_thread(&level);
    else
        DT_REQUIRE(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS,
                   DT_ERR_COMM, "MPI_Init_thread failed");
    *started_out = !initialized;
    DT_REQUIRE(level == MPI_THREAD_MULTIPLE, DT_ERR_UNSUPPORTED,
               "MPI gives thread level %d, communication workers need MPI_THREAD_MULTIPLE", level);
    return DT_OK;
}

dt_status dti_mpi_open(dt_world *world)
{
    static const dti_backend ops = {
        .polls = true,
        .comm_open = open_comm,
        .comm_close = close_comm,
        .world_close = close_world,
        .scratch_bytes = scratch_bytes,
        .exchange = exchange,
        .finish = finish,
        .start = start,
        .test = test,
        .cancel = cancel,
    };
    bool started = false;
    DT_TRY(start_mpi(&started));
    mpi_world *mpi = malloc(sizeof *mpi);
    DT_REQUIRE(mpi, DT_ERR_NOMEM, "an mpi world");
    mpi->started = started;
    int error = MPI_Comm_dup(MPI_COMM_WORLD, &mpi->all);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_errhandler(mpi->all, MPI_ERRORS_RETURN);
    if (error != MPI_SUCCESS)
        free(mpi);
    DT_REQUIRE(error == MPI_SUCCESS, DT_ERR_COMM, "MPI_Comm_dup: error %d", error);
    (void)MPI_Comm_rank(mpi->all, &world->rank);
    (void)MPI_Comm_size(mpi->all, &world->size);
    world->data = mpi;
    world->ops = &ops;
    dt_error_context(world->rank, world->size, end_job);
    return DT_OK;
}
