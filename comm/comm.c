/* comm/comm.c - communicators: ordered ranks and a channel, interned by their world.
 * Read next: call.c. */
#include "comm/nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dti_print_ranks(const int *ranks, int n, char *text, size_t size_bytes)
{
    size_t at = 0;
    for (int i = 0; i < n && at + 16 < size_bytes;) {
        int last = i;
        while (last + 1 < n && ranks[last + 1] == ranks[last] + 1)
            last++;
        if (last == i)
            at += (size_t)snprintf(text + at, size_bytes - at, "%s%d", i ? "," : "", ranks[i]);
        else
            at += (size_t)snprintf(text + at, size_bytes - at, "%s%d%s%d", i ? "," : "", ranks[i],
                                   last == i + 1 ? "," : "-", ranks[last]);
        i = last + 1;
        if (i < n && at + 16 >= size_bytes)
            (void)snprintf(text + at, size_bytes - at, ",..");
    }
}

static void make_name(dt_comm *comm)
{
    char ranks[64] = "";
    dti_print_ranks(comm->ranks, comm->size, ranks, sizeof ranks);
    (void)snprintf(comm->name, sizeof comm->name, "%s%s[%s]/%d", comm->axes,
                   comm->axes[0] ? " " : "", ranks, comm->channel);
}

void dt_comm_set_axes(dt_comm *comm, const char *axes)
{
    (void)snprintf(comm->axes, sizeof comm->axes, "%s", axes);
    make_name(comm);
}

static dt_status check_ranks(const dt_world *world, const int *ranks, int nranks, int channel)
{
    DT_REQUIRE(nranks >= 1 && nranks <= world->size, DT_ERR_ARG, "nranks=%d must be 1..%d", nranks,
               world->size);
    DT_REQUIRE(channel >= 0 && channel < DTI_CHANNELS, DT_ERR_ARG, "channel=%d must be 0..%d",
               channel, DTI_CHANNELS - 1);
    for (int i = 0; i < nranks; i++)
        DT_REQUIRE(ranks[i] >= 0 && ranks[i] < world->size, DT_ERR_ARG,
                   "ranks[%d]=%d is not in a world of %d", i, ranks[i], world->size);
    bool *seen = calloc((size_t)world->size, sizeof *seen);
    DT_REQUIRE(seen, DT_ERR_NOMEM, "a communicator of %d", nranks);
    int twice = -1;
    for (int i = 0; i < nranks; i++) {
        if (seen[ranks[i]])
            twice = ranks[i];
        seen[ranks[i]] = true;
    }
    free(seen);
    DT_REQUIRE(twice < 0, DT_ERR_ARG, "rank %d is named twice", twice);
    return DT_OK;
}

static dt_comm *find(const dt_world *world, const int *ranks, int nranks, int channel)
{
    for (dt_comm *c = world->comms; c; c = c->next)
        if (c->size == nranks && c->channel == channel &&
            memcmp(c->ranks, ranks, (size_t)nranks * sizeof *ranks) == 0)
            return c;
    return NULL;
}

dt_status dt_comm_create(dt_world *world, const int *ranks, int nranks, int channel,
                         dt_comm **comm_out)
{
    DT_TRY(check_ranks(world, ranks, nranks, channel));
    dt_comm *comm = find(world, ranks, nranks, channel);
    if (comm) {
        comm->refs++;
        *comm_out = comm;
        return DT_OK;
    }
    comm = calloc(1, sizeof *comm);
    DT_REQUIRE(comm, DT_ERR_NOMEM, "a communicator");
    *comm = (dt_comm){.world = world, .size = nranks, .rank = -1, .channel = channel, .refs = 1};
    comm->ranks = malloc((size_t)nranks * sizeof *ranks);
    if (!comm->ranks) {
        free(comm);
        return DT_ERROR(DT_ERR_NOMEM, "a communicator of %d", nranks);
    }
    memcpy(comm->ranks, ranks, (size_t)nranks * sizeof *ranks);
    for (int i = 0; i < nranks; i++)
        if (ranks[i] == world->rank)
            comm->rank = i;
    make_name(comm);
    comm->ops = world->ops;
    const bool talks = nranks > 1 && comm->rank >= 0;
    const dt_status st = talks ? comm->ops->comm_open(comm) : DT_OK;
    if (st != DT_OK) {
        free(comm->ranks);
        free(comm);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    comm->next = world->comms;
    world->comms = comm;
    world->comms_created += talks;
    *comm_out = comm;
    return DT_OK;
}

void dti_comm_free(dt_comm *comm)
{
    dt_world *world = comm->world;
    dt_comm **link = &world->comms;
    while (*link != comm)
        link = &(*link)->next;
    *link = comm->next;
    dti_nccl_close(comm);
    if (comm->size > 1 && comm->rank >= 0)
        comm->ops->comm_close(comm);
    free(comm->ranks);
    free(comm);
}

void dt_comm_destroy(dt_comm **comm)
{
    dt_comm *c = *comm;
    if (c && --c->refs == 0) /* calls have references; one never waited for ends with the world */
        dti_comm_free(c);
    *comm = NULL;
}

int dt_comm_rank(const dt_comm *comm)
{
    return comm->rank;
}

int dt_comm_size(const dt_comm *comm)
{
    return comm->size;
}
