/* comm/world.c - who the ranks are: creation, destruction and what a world knows of itself.
 * Read next: comm.c. */
#include "comm/comm_internal.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double dti_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct timespec dti_timespec(double seconds)
{
    const time_t whole = (time_t)seconds;
    return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((seconds - (double)whole) * 1e9)};
}

bool dti_late(dt_work *w)
{
    const double now = dti_now();
    if (w->deadline_s == 0)
        w->deadline_s = now + w->comm->world->timeout_s;
    return now > w->deadline_s;
}

void dti_copy_text(char *to, size_t size_bytes, const char *text)
{
    const size_t length = strnlen(text, size_bytes - 1);
    memcpy(to, text, length);
    to[length] = '\0';
}

void dti_pause(double since_s)
{
    const struct timespec nap = {.tv_nsec = 50000};
    if (dti_now() - since_s < 100e-6)
        (void)sched_yield();
    else
        (void)nanosleep(&nap, NULL);
}

/* mpirun may have bound this process to fewer cores than it has threads: every ratio measured then
 * lies. */
static void warn_of_narrow_affinity(void)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const char *text = getenv("OMP_NUM_THREADS");
    const long wanted = text ? strtol(text, NULL, 10) : 0;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    const long allowed = CPU_COUNT(&set);
    if (allowed < wanted && !atomic_flag_test_and_set(&warned))
        (void)fprintf(stderr,
                      "warning: OMP_NUM_THREADS is %ld but this process may use only %ld cores; "
                      "under mpirun use tools/mpirun or --bind-to none\n",
                      wanted, allowed);
}

dt_status dti_world_new(const dt_world_options *options, dt_backend backend, dt_world **world_out)
{
    const dt_world_options o = options ? *options : (dt_world_options){0};
    DT_REQUIRE(o.timeout_s >= 0 && o.piece >= 0, DT_ERR_ARG,
               "timeout_s=%g and piece=%lld must not be negative", o.timeout_s, (long long)o.piece);
    dt_world *world = calloc(1, sizeof *world);
    DT_REQUIRE(world, DT_ERR_NOMEM, "a world");
    world->backend = backend;
    world->size = 1;
    world->timeout_s = o.timeout_s > 0 ? o.timeout_s : 300;
    world->piece = o.piece > 0 ? o.piece : (int64_t)1 << 28;
    world->heap_options = o.heap;
    world->trace = o.trace;
    world->fate = &world->own_fate;
    for (int i = 0; i < DTI_CHANNELS; i++)
        dti_lane_open(&world->lane[i]);
    *world_out = world;
    return DT_OK;
}

dt_status dti_world_ready(dt_world *world)
{
    warn_of_narrow_affinity();
    int *ranks = malloc((size_t)world->size * sizeof *ranks);
    DT_REQUIRE(ranks, DT_ERR_NOMEM, "ranks of a world of %d", world->size);
    for (int r = 0; r < world->size; r++)
        ranks[r] = r;
    const dt_status st = dt_comm_create(world, ranks, world->size, 0, &world->all);
    free(ranks);
    DT_TRY(st);
    dt_comm_set_axes(world->all, "world");
    world->comms_created = 0;
    return DT_OK;
}

/* DT_COMM=mpi or shm: what carries data between the ranks that mpirun or srun started. */
static dt_status choose_backend(dt_backend *backend_out)
{
    const char *text = getenv("DT_COMM");
    DT_REQUIRE(!text || strcmp(text, "mpi") == 0 || strcmp(text, "shm") == 0, DT_ERR_ARG,
               "DT_COMM=%s is unknown; legal: mpi, shm", text);
    const bool mpi = text && strcmp(text, "mpi") == 0;
    *backend_out = !dti_mpi_launched() ? DT_BACKEND_SELF : mpi ? DT_BACKEND_MPI : DT_BACKEND_SHM;
    return DT_OK;
}

/* Through MPI it works too, only slower. */
static dt_status share_memory(dt_world *world, int machines)
{
    const char *text = getenv("DT_MACHINES");
    if (machines == 0 && text)
        machines = (int)strtol(text, NULL, 10);
    world->backend = DT_BACKEND_MPI;
    if (world->size == 1)
        return DT_OK;
    DT_REQUIRE(machines >= 0 && machines <= world->size, DT_ERR_ARG,
               "machines=%d must be at most the %d ranks", machines, world->size);
    const dt_status st = dti_shm_open(world, machines);
    if (st == DT_OK)
        world->backend = DT_BACKEND_SHM;
    if (st != DT_ERR_UNSUPPORTED)
        return st;
    if (world->rank == 0)
        (void)fprintf(stderr, "warning: ranks do not share memory, MPI carries their data: %s\n",
                      dt_error_trace());
    return DT_OK;
}

dt_status dt_world_create(const dt_world_options *options, dt_world **world_out)
{
    dt_backend backend = options ? options->backend : DT_BACKEND_AUTO;
    if (backend == DT_BACKEND_AUTO)
        DT_TRY(choose_backend(&backend));
    const bool launched = backend == DT_BACKEND_MPI || backend == DT_BACKEND_SHM;
    DT_REQUIRE(backend != DT_BACKEND_THREADS, DT_ERR_ARG,
               "ranks as threads are started by dt_world_run_threads");
    dt_world *world;
    DT_TRY(dti_world_new(options, backend, &world));
    dt_status st = DT_OK;
    if (launched)
        DT_TRY_TO(fail, st, dti_mpi_open(world));
    if (backend == DT_BACKEND_FAKE)
        DT_TRY_TO(fail, st, dti_fake_open(world, options->fake_rank, options->fake_size));
    if (!launched)
        dt_error_context(0, 1, NULL);
    DT_TRY_TO(fail, st, dti_switches_read(world));
    if (backend == DT_BACKEND_SHM)
        DT_TRY_TO(fail, st, share_memory(world, options ? options->machines : 0));
    DT_TRY_TO(fail, st, dti_world_ready(world));
    *world_out = world;
    return DT_OK;
fail:
    dt_world_destroy(&world);
    return st;
}

/* A rank that failed may have left arrays behind; its message must not end in an assertion. */
static void close_heap(const dt_world *world, dt_heap **heap)
{
    if (*heap && dti_broken(world))
        dt_heap_abandon(*heap);
    else
        dt_heap_destroy(heap);
}

static void free_works(dt_work **list)
{
    while (*list) {
        dt_work *work = *list;
        *list = work->next;
        dti_work_free(work);
    }
}

void dt_world_destroy(dt_world **world)
{
    dt_world *w = *world;
    if (!w)
        return;
    for (int i = 0; i < DTI_CHANNELS; i++)
        dti_lane_close(w, &w->lane[i]);
    free_works(&w->graves);
    free_works(&w->on_device);
    while (w->comms)
        dti_comm_free(w->comms);
    for (int i = 0; i < DT_COUNT(w->heap); i++)
        close_heap(w, &w->heap[i]);
    if (w->ops && w->ops->world_close)
        w->ops->world_close(w);
    free(w);
    *world = NULL;
}

int dt_world_rank(const dt_world *world)
{
    return world->rank;
}

int dt_world_size(const dt_world *world)
{
    return world->size;
}

dt_backend dt_world_backend(const dt_world *world)
{
    return world->backend;
}

dt_trace *dt_world_trace(const dt_world *world)
{
    return world->trace;
}

void dt_world_set_trace(dt_world *world, dt_trace *trace)
{
    world->trace = trace;
}

/* What the launcher says of this machine's ranks; else `fallback`. */
static int local_number(const char *const names[], int fallback)
{
    for (int i = 0; names[i]; i++) {
        const char *text = getenv(names[i]);
        if (text && *text)
            return (int)strtol(text, NULL, 10);
    }
    return fallback;
}

dt_status dt_world_device(dt_world *world, dt_device_kind kind, dt_device *device_out)
{
    static const char *const rank_names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                             "SLURM_LOCALID", NULL};
    static const char *const size_names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                             "SLURM_NTASKS_PER_NODE", NULL};
    *device_out = (dt_device){.kind = kind};
    if (kind != DT_CUDA)
        return DT_OK;
    const int devices = dt_device_count(DT_CUDA);
    DT_REQUIRE(devices > 0, DT_ERR_DEVICE, "there is no cuda device, or cuda is not built in");
    const bool processes = world->mpi != NULL;
    const int rank = processes ? local_number(rank_names, world->rank) : world->rank;
    const int ranks = processes ? local_number(size_names, world->size) : world->size;
    device_out->index = rank % devices;
    world->heap_options.device_ranks = (ranks + devices - 1) / devices;
    return DT_OK;
}

dt_status dt_world_heap(dt_world *world, dt_device device, dt_heap **heap_out)
{
    DT_REQUIRE((int)device.kind >= 0 && (int)device.kind < DT_COUNT(world->heap), DT_ERR_ARG,
               "no device kind %d", (int)device.kind);
    dt_heap **heap = &world->heap[device.kind];
    if (!*heap)
        DT_TRY(dt_heap_create(device, &world->heap_options, heap));
    *heap_out = *heap;
    return DT_OK;
}

dt_comm *dt_world_comm(dt_world *world)
{
    return world->all;
}

int dt_world_comms_created(const dt_world *world)
{
    return world->comms_created;
}
