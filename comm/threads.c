/* comm/threads.c - ranks are threads of one process: they see each other's memory as it is.
 *
 * What moves bytes is the code of ranks in shared memory (shm_internal.h), where the thread
 * sanitizer sees every hand-over. The desks of a communicator stand in a hall, which the first of
 * its ranks opens and the last one closes. Read next: launch.c, shm_room.c. */
#include "comm/shm_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct hall {
    int *ranks, size, channel, refs;
    size_t desk_bytes; /* padded to whole cache lines */
    char *desks;       /* mapped */
    struct hall *next;
} hall;

struct dti_group {
    dti_fate fate;
    pthread_mutex_t lock;
    hall *halls;
};

static const dti_peer everybody = {.bytes = {SIZE_MAX, 0}, .pidfd = -1};

dt_status dti_group_create(int nranks, dti_group **group_out)
{
    dti_group *group = calloc(1, sizeof *group);
    DT_REQUIRE(group, DT_ERR_NOMEM, "a world of %d threads", nranks);
    pthread_mutex_init(&group->lock, NULL);
    *group_out = group;
    return DT_OK;
}

void dti_group_destroy(dti_group **group)
{
    pthread_mutex_destroy(&(*group)->lock);
    free(*group);
    *group = NULL;
}

static hall *find_hall(const dti_group *group, const dt_comm *comm)
{
    for (hall *h = group->halls; h; h = h->next)
        if (h->size == comm->size && h->channel == comm->channel &&
            memcmp(h->ranks, comm->ranks, (size_t)comm->size * sizeof *comm->ranks) == 0)
            return h;
    return NULL;
}

static void free_hall(hall *h)
{
    if (h->desks)
        (void)munmap(h->desks, (size_t)h->size * h->desk_bytes);
    free(h->ranks);
    free(h);
}

/* Zeros, and no memory before they are written: most pairs of ranks have no messages, and of 1024
 * ranks all boxes are 64 GiB. */
static char *map_desks(size_t bytes)
{
    char *desks = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return desks == MAP_FAILED ? NULL : desks;
}

static hall *new_hall(const dt_comm *comm)
{
    hall *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    const size_t k = (size_t)comm->size;
    *h = (hall){.size = comm->size, .channel = comm->channel};
    h->desk_bytes = (dti_desk_bytes(comm->size) + 63) / 64 * 64;
    h->ranks = malloc(k * sizeof *h->ranks);
    h->desks = map_desks(k * h->desk_bytes);
    if (!h->ranks || !h->desks) {
        free_hall(h);
        return NULL;
    }
    memcpy(h->ranks, comm->ranks, k * sizeof *h->ranks);
    return h;
}

static void leave_hall(dti_group *group, const dt_comm *comm)
{
    pthread_mutex_lock(&group->lock);
    hall **link = &group->halls;
    while (*link != find_hall(group, comm))
        link = &(*link)->next;
    hall *h = *link;
    if (--h->refs == 0) {
        *link = h->next;
        free_hall(h);
    }
    pthread_mutex_unlock(&group->lock);
}

static hall *enter_hall(dti_group *group, const dt_comm *comm)
{
    pthread_mutex_lock(&group->lock);
    hall *h = find_hall(group, comm);
    if (!h) {
        h = new_hall(comm);
        if (h) {
            h->next = group->halls;
            group->halls = h;
        }
    }
    if (h)
        h->refs++;
    pthread_mutex_unlock(&group->lock);
    return h;
}

static dt_status open_comm(dt_comm *comm)
{
    dti_room *room = dti_room_new(comm->size, comm->rank, comm->ranks);
    const hall *h = room ? enter_hall(comm->world->data, comm) : NULL;
    if (!h)
        free(room);
    DT_REQUIRE(h, DT_ERR_NOMEM, "a communicator of %d threads", comm->size);
    for (int r = 0; r < comm->size; r++) {
        room->desk[r] = (dti_desk *)(void *)(h->desks + (size_t)r * h->desk_bytes);
        room->peer[r] = &everybody;
    }
    dti_room_enter(room);
    comm->room = room;
    return DT_OK;
}

static void close_comm(dt_comm *comm)
{
    free(comm->room);
    leave_hall(comm->world->data, comm);
}

void dti_threads_open(dt_world *world, dti_group *group, int rank, int size)
{
    static const dti_backend ops = {
        .lends = true,
        .comm_open = open_comm,
        .comm_close = close_comm,
        .collective = dti_shm_collective,
        .exchange = dti_shm_exchange,
        .finish = dti_shm_finish,
        .start = dti_shm_start,
        .test = dti_shm_test,
        .cancel = dti_shm_cancel,
    };
    world->ops = &ops;
    world->data = group;
    world->rank = rank;
    world->size = size;
    world->fate = &group->fate;
    cpu_set_t set;
    const bool roomy = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= size;
    world->spins = roomy ? 1000 : 0;
}
