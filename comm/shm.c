/* comm/shm.c - ranks are processes of one machine that have mapped each other's memory.
 *
 * MPI brings them together: each tells the others where its two heaps are, the world's cpu heap
 * (arrays) and one of its own (works, desks: `notes`). Files are opened through /proc and told from
 * others by the nonce in their names; a pidfd tells when a peer has ended. After that MPI carries
 * nothing but the creation of communicators, and data between machines.
 *
 *   rank 0's address space    [arrays 0] [notes 0]   [arrays 1] [notes 1] ...
 *                              own                    the files of rank 1, mapped here
 *
 * Memory of a peer stays mapped, and so readable, after the peer has ended.
 * Read before: shm_internal.h, threads.c (the same for threads). */
#include "comm/shm_internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WHY_BYTES = 120 };
#define NOTES_BYTES ((size_t)4 << 30) /* address space */

typedef struct shm_world {
    const dti_backend *across; /* moves data between machines */
    dti_peer *peer;            /* by world rank; of other machines: nothing */
    int *machine;              /* by world rank */
    dt_array fate;             /* the lowest local rank's is that of all on its machine */
    dt_array *desks; /* of all communicators there ever were: a peer may look at an old one */
    int64_t ndesks, capacity;
} shm_world;

/* What a rank tells the others. */
typedef struct introduction {
    int pid, machine;
    dt_heap_map map[2];
    void *fate;
    char why[WHY_BYTES]; /* it cannot share memory; "": it can */
} introduction;

static dt_status take_note(dt_world *world, size_t bytes, dt_array *array_out)
{
    DT_TRY(dt_array_create(world->notes, DT_U8, DT_SHAPE((int64_t)bytes), DT_TAG_COMM, array_out));
    memset(dt_array_data(array_out), 0, bytes);
    return DT_OK;
}

static dt_status introduce(dt_world *world, int machine, introduction *mine)
{
    dt_heap *heap;
    DT_TRY(dt_world_heap(world, (dt_device){.kind = DT_CPU}, &heap));
    const dt_heap_options options = {.reserve_bytes = NOTES_BYTES};
    DT_TRY(dt_heap_create((dt_device){.kind = DT_CPU}, &options, &world->notes));
    shm_world *shm = world->data;
    DT_TRY(take_note(world, sizeof(dti_fate), &shm->fate));
    *mine = (introduction){.pid = (int)getpid(), .machine = machine};
    mine->map[0] = dt_heap_get_map(heap);
    mine->map[1] = dt_heap_get_map(world->notes);
    mine->fate = dt_array_data(&shm->fate);
    if (mine->map[0].fd < 0 || mine->map[1].fd < 0 || dt_world_fault(world, "unshared"))
        (void)snprintf(mine->why, sizeof mine->why, "the system refuses a file for its memory");
    return DT_OK;
}

static void map_peer(dti_peer *peer, const introduction *theirs, char why[WHY_BYTES])
{
    peer->pid = theirs->pid;
    peer->pidfd = (int)syscall(SYS_pidfd_open, theirs->pid, 0);
    for (int i = 0; i < 2; i++) {
        const dt_heap_map *map = &theirs->map[i];
        void *here = dt_heap_open_map(theirs->pid, map);
        if (!here) {
            (void)snprintf(why, WHY_BYTES, "cannot map the memory of process %d: %s", theirs->pid,
                           strerror(errno));
            return;
        }
        peer->from[i] = (uintptr_t)map->base;
        peer->to[i] = (uintptr_t)here;
        peer->bytes[i] = map->bytes;
    }
}

static void unmap_peer(const dti_peer *peer)
{
    for (int i = 0; i < 2; i++)
        if (peer->to[i])
            (void)munmap((void *)peer->to[i], peer->bytes[i]);
    if (peer->pidfd >= 0)
        (void)close(peer->pidfd);
}

static void map_peers(dt_world *world, const introduction *all, char why[WHY_BYTES])
{
    const shm_world *shm = world->data;
    for (int r = 0; r < world->size; r++) {
        shm->machine[r] = all[r].machine;
        if (r == world->rank)
            shm->peer[r] = (dti_peer){.bytes = {SIZE_MAX, 0}, .pidfd = -1, .pid = all[r].pid};
        else if (all[r].machine == all[world->rank].machine && why[0] == '\0')
            map_peer(&shm->peer[r], &all[r], why);
    }
}

/* The fate of a machine's ranks lies with the lowest of them. */
static void share_fate(dt_world *world, const introduction *all)
{
    const shm_world *shm = world->data;
    int lowest = 0;
    while (all[lowest].machine != all[world->rank].machine)
        lowest++;
    world->fate = dti_there(&shm->peer[lowest], all[lowest].fate);
    int local = 0;
    for (int r = 0; r < world->size; r++)
        local += all[r].machine == all[world->rank].machine;
    cpu_set_t set;
    const bool roomy = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= local;
    world->spins = roomy ? 1000 : 0;
}

/* Members of the communicator on this rank's machine; how many there are on the fullest one. */
static int local_members(const dt_comm *comm, int *local, int *me_out, int *fullest_out)
{
    const shm_world *shm = comm->world->data;
    int n = 0;
    *fullest_out = 0;
    for (int p = 0; p < comm->size; p++) {
        int together = 0;
        for (int q = 0; q < comm->size; q++)
            together += shm->machine[comm->ranks[q]] == shm->machine[comm->ranks[p]];
        *fullest_out = together > *fullest_out ? together : *fullest_out;
        if (p == comm->rank)
            *me_out = n;
        if (shm->machine[comm->ranks[p]] == shm->machine[comm->world->rank])
            local[n++] = p;
    }
    return n;
}

static dt_status make_room(dt_comm *comm, const int *local, int n, int me)
{
    dt_world *world = comm->world;
    shm_world *shm = world->data;
    DT_TRY(dt_grow((void **)&shm->desks, &shm->capacity, shm->ndesks + 1, sizeof *shm->desks));
    dt_array *desk = &shm->desks[shm->ndesks];
    DT_TRY(take_note(world, dti_desk_bytes(n), desk));
    shm->ndesks++;
    uint64_t *notes = malloc((size_t)comm->size * sizeof *notes);
    int *ranks = malloc((size_t)n * sizeof *ranks);
    for (int i = 0; ranks && i < n; i++)
        ranks[i] = comm->ranks[local[i]];
    comm->room = ranks ? dti_room_new(n, me, ranks) : NULL;
    dt_status st = notes && comm->room ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "a communicator");
    if (st == DT_OK)
        st = dti_mpi_meet(comm, (uint64_t)(uintptr_t)dt_array_data(desk), notes);
    for (int i = 0; st == DT_OK && i < n; i++) {
        comm->room->peer[i] = &shm->peer[ranks[i]];
        comm->room->desk[i] = dti_there(comm->room->peer[i], (void *)(uintptr_t)notes[local[i]]);
    }
    free(notes);
    free(ranks);
    if (st != DT_OK)
        free(comm->room);
    return st;
}

static dt_status open_comm(dt_comm *comm)
{
    shm_world *shm = comm->world->data;
    int *local = malloc((size_t)comm->size * sizeof *local), me = 0, fullest = 0;
    DT_REQUIRE(local, DT_ERR_NOMEM, "a communicator of %d", comm->size);
    const int n = local_members(comm, local, &me, &fullest);
    dt_status st = DT_OK;
    if (n < comm->size)
        st = shm->across->comm_open(comm);
    if (st == DT_OK && fullest > 1)
        st = make_room(comm, local, n, me);
    if (st == DT_OK && n < comm->size && fullest > 1)
        st = dti_hier_open(comm, shm->machine);
    else if (n < comm->size)
        comm->ops = shm->across;
    free(local);
    return st;
}

static void close_comm(dt_comm *comm)
{
    free(comm->room);
}

static void free_shm(dt_world *world)
{
    shm_world *shm = world->data;
    for (int64_t i = 0; i < shm->ndesks; i++)
        dt_array_release(&shm->desks[i]);
    dt_array_release(&shm->fate);
    dt_heap_destroy(&world->notes);
    for (int r = 0; r < world->size; r++)
        unmap_peer(&shm->peer[r]);
    free(shm->desks);
    free(shm->peer);
    free(shm->machine);
    free(shm);
    world->data = NULL;
}

static void close_world(dt_world *world)
{
    const bool broken = dti_broken(world);
    world->fate = &world->own_fate;
    if (broken)
        dti_break(world, "the world has ended");
    free_shm(world);
    dti_mpi_close_world(world);
}

/* Says on all ranks why some rank cannot; "": all can. */
static dt_status agree(dt_world *world, const char mine[WHY_BYTES])
{
    char *all = malloc((size_t)world->size * WHY_BYTES);
    DT_REQUIRE(all, DT_ERR_NOMEM, "a world of %d", world->size);
    dt_status st = dti_mpi_gather(world, mine, WHY_BYTES, all);
    for (int r = 0; st == DT_OK && r < world->size; r++)
        if (all[r * WHY_BYTES])
            st = DT_ERROR(DT_ERR_UNSUPPORTED, "rank %d: %s", r, all + r * WHY_BYTES);
    free(all);
    return st;
}

static dt_status come_together(dt_world *world, int machine)
{
    introduction mine = {0}, *all = calloc((size_t)world->size, sizeof *all);
    DT_REQUIRE(all, DT_ERR_NOMEM, "a world of %d", world->size);
    dt_status st = introduce(world, machine, &mine);
    if (st != DT_OK) /* the others wait for this rank's word */
        (void)snprintf(mine.why, sizeof mine.why, "%s", dt_status_string(st));
    st = dti_mpi_gather(world, &mine, sizeof mine, all);
    if (st == DT_OK)
        st = agree(world, mine.why);
    if (st == DT_OK) {
        map_peers(world, all, mine.why);
        st = agree(world, mine.why);
    }
    if (st == DT_OK)
        share_fate(world, all);
    free(all);
    return st;
}

dt_status dti_shm_open(dt_world *world, int machines)
{
    static const dti_backend ops = {
        .lends = true,
        .shares = true,
        .comm_open = open_comm,
        .comm_close = close_comm,
        .world_close = close_world,
        .collective = dti_shm_collective,
        .exchange = dti_shm_exchange,
        .finish = dti_shm_finish,
        .start = dti_shm_start,
        .test = dti_shm_test,
        .cancel = dti_shm_cancel,
    };
    int machine = machines > 0 ? (int)((int64_t)world->rank * machines / world->size) : 0;
    if (machines == 0)
        DT_TRY(dti_mpi_machine(world, &machine));
    shm_world *shm = calloc(1, sizeof *shm);
    DT_REQUIRE(shm, DT_ERR_NOMEM, "a world of %d", world->size);
    world->data = shm;
    shm->across = world->ops;
    shm->peer = calloc((size_t)world->size, sizeof *shm->peer);
    shm->machine = calloc((size_t)world->size, sizeof *shm->machine);
    dt_status st =
        shm->peer && shm->machine ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%d peers", world->size);
    for (int r = 0; st == DT_OK && r < world->size; r++)
        shm->peer[r].pidfd = -1;
    if (st == DT_OK)
        st = come_together(world, machine);
    if (st == DT_OK)
        world->ops = &ops;
    else
        free_shm(world);
    return st;
}
