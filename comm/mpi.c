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

/* What a member tells the others. */
typedef struct greeting {
    uint64_t hash, note;
} greeting;

static dt_status wait_to_meet(dt_comm *comm, MPI_Request *request, const greeting *said)
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
        DT_REQUIRE(r == comm->rank || said[r].hash == said[comm->rank].hash, DT_ERR_COMM,
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

dt_status dti_mpi_meet(dt_comm *comm, uint64_t note, uint64_t *notes)
{
    const mpi_world *mpi = comm->world->mpi;
    const int k = comm->size, bytes = (int)sizeof(greeting);
    greeting *said = calloc((size_t)k, sizeof *said);
    MPI_Request *request = malloc(2 * (size_t)k * sizeof(MPI_Request));
    if (!said || !request) {
        free(said);
        free(request);
        return DT_ERROR(DT_ERR_NOMEM, "a communicator of %d", k);
    }
    said[comm->rank] = (greeting){hash_of(comm), note};
    int error = MPI_SUCCESS;
    for (int r = 0; r < 2 * k; r++)
        request[r] = MPI_REQUEST_NULL;
    for (int r = 0; r < k && error == MPI_SUCCESS; r++)
        if (r != comm->rank)
            error = MPI_Irecv(&said[r], bytes, MPI_BYTE, comm->ranks[r], TAG_CREATE, mpi->all,
                              &request[r]);
    for (int r = 0; r < k && error == MPI_SUCCESS; r++)
        if (r != comm->rank)
            error = MPI_Isend(&said[comm->rank], bytes, MPI_BYTE, comm->ranks[r], TAG_CREATE,
                              mpi->all, &request[k + r]);
    const dt_status st = error == MPI_SUCCESS ? wait_to_meet(comm, request, said)
                                              : DT_ERROR(DT_ERR_COMM, "MPI error %d", error);
    for (int r = 0; r < k; r++)
        notes[r] = said[r].note;
    if (take_back(k, request)) {
        free(said);
        free(request);
    }
    return st; /* NOLINT(clang-analyzer-unix.Malloc): what is not freed may still be MPI's */
}

static dt_status meet(dt_comm *comm)
{
    uint64_t *notes = malloc((size_t)comm->size * sizeof *notes);
    DT_REQUIRE(notes, DT_ERR_NOMEM, "a communicator of %d", comm->size);
    const dt_status st = dti_mpi_meet(comm, 0, notes);
    free(notes);
    return st;
}

dt_status dti_mpi_gather(dt_world *world, const void *mine, size_t bytes, void *all)
{
    const mpi_world *mpi = world->mpi;
    const int error =
        MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, mpi->all);
    DT_REQUIRE(error == MPI_SUCCESS, DT_ERR_COMM, "MPI_Allgather: error %d", error);
    return DT_OK;
}

/* The lowest rank of the machine. */
dt_status dti_mpi_machine(dt_world *world, int *machine_out)
{
    const mpi_world *mpi = world->mpi;
    MPI_Comm local;
    int error =
        MPI_Comm_split_type(mpi->all, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &local);
    int lowest = world->rank;
    if (error == MPI_SUCCESS) {
        error = MPI_Bcast(&lowest, 1, MPI_INT, 0, local);
        (void)MPI_Comm_free(&local);
    }
    DT_REQUIRE(error == MPI_SUCCESS, DT_ERR_COMM, "MPI_Comm_split_type: error %d", error);
    *machine_out = lowest;
    return DT_OK;
}

static int create(const dt_comm *comm, MPI_Comm *mpi_out)
{
    const mpi_world *mpi = comm->world->mpi;
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

dt_status dti_mpi_open_comm(dt_comm *comm)
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
void dti_mpi_close_comm(dt_comm *comm)
{
    if (!dti_broken(comm->world))
        (void)MPI_Comm_free(comm->data);
    free(comm->data);
}

/* ---- the world ---- */

/* What this process's ranks that share memory look at, to tell a failure that was told from a kill.
 */
static dt_world *launched;

void dti_mpi_close_world(dt_world *world)
{
    mpi_world *mpi = world->mpi;
    launched = launched == world ? NULL : launched;
    if (!dti_broken(world)) {
        (void)MPI_Comm_free(&mpi->all);
        if (mpi->started)
            (void)MPI_Finalize();
    }
    free(mpi);
}

static void end_job(int exit_status)
{
    if (launched) {
        atomic_store(&launched->fate->told, true);
        dti_break(launched, dt_error_trace());
    }
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
        .comm_open = dti_mpi_open_comm,
        .comm_close = dti_mpi_close_comm,
        .world_close = dti_mpi_close_world,
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
    world->mpi = mpi;
    world->ops = &ops;
    launched = world;
    dt_error_context(world->rank, world->size, end_job);
    return DT_OK;
}
