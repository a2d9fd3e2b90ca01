/* comm/mpi.c - ranks are MPI processes: the world and its communicators.
 *
 * A communicator is first agreed on among its ranks by small messages with a deadline, because
 * MPI's own creation would wait for ever for a rank that does not come. Read next: mpi_move.c. */
#include "comm/mpi_internal.h"

#include <stdlib.h>

enum { TAG_CREATE = 3 };

typedef struct mpi_world {
    MPI_Comm all; /* a duplicate of MPI_COMM_WORLD; carries only the agreement on communicators */
    bool started; /* by us, so ended by us */
} mpi_world;

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

/* Withdraws the receives that nobody answered. False if MPI may still use our memory. */
static bool take_back(int k, MPI_Request *request)
{
    int done = 0;
    for (int r = 0; r < k; r++)
        if (request[r] != MPI_REQUEST_NULL)
            (void)MPI_Cancel(&request[r]);
    return MPI_Testall(2 * k, request, &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS && done;
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
    if (take_back(k, request)) {
        free(hash);
        free(request);
    }
    return st; /* NOLINT(clang-analyzer-unix.Malloc): what is not freed may still be MPI's */
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
        .scratch_bytes = dti_mpi_scratch_bytes,
        .exchange = dti_mpi_exchange,
        .finish = dti_mpi_finish,
        .start = dti_mpi_start,
        .test = dti_mpi_test,
        .cancel = dti_mpi_cancel,
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
