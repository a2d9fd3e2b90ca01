/* comm/staged.c - arrays on cuda, where nothing moves them from device to device: they are copied
 * to the host, moved there, and copied back by the wait. Read first: call.c. */
#include "comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>

static void warn(dt_world *world)
{
    if (!world->staged && world->rank == 0 && world->backend != DT_BACKEND_FAKE)
        (void)fprintf(stderr, "note: arrays on cuda move between ranks by way of host memory\n");
    world->staged = true;
}

/* Calls of a communicator run in the order of the program: what an earlier one brings comes home
 * before this one takes it away. */
static dt_status bring_inputs(const dt_comm *comm, int n, const dt_part *part)
{
    for (dt_work *w = comm->away; w; w = w->next_away)
        for (int i = 0; i < n * w->n; i++) {
            const dt_array *in = part[i / w->n].in, *home = &w->home[i % w->n];
            if (!in || !home->storage || in->storage != home->storage)
                continue;
            dti_lane_wait(w);
            DT_REQUIRE(w->status == DT_OK, w->status, "%s", w->message);
            DT_TRY(dti_bring_home(w));
            break;
        }
    return DT_OK;
}

/* An array like `a` on the host; its values too where `filled`. */
static dt_status to_host(dt_heap *heap, const dt_array *a, bool filled, dt_array *host_out)
{
    DT_TRY(dt_array_create(heap, a->dtype, a->shape, DT_TAG_COMM, host_out));
    if (filled)
        dt_array_copy(host_out, a);
    return DT_OK;
}

static dt_status make_parts(dt_world *world, int n, const dt_part *part, dt_array *host,
                            dt_part *there)
{
    dt_heap *heap;
    DT_TRY(dt_world_heap(world, (dt_device){.kind = DT_CPU}, &heap));
    for (int i = 0; i < n; i++) {
        dt_array *in = &host[2 * i], *out = in + 1;
        there[i] = part[i];
        if (part[i].in) {
            DT_TRY(to_host(heap, part[i].in, true, in));
            DT_TRY(dt_heap_status(part[i].in->storage->heap));
            there[i].in = in;
        }
        if (part[i].out) {
            DT_TRY(
                to_host(heap, part[i].out, world->faults[0], out)); /* may leave what was there */
            there[i].out = out;
        }
    }
    return DT_OK;
}

dt_status dti_call_staged(dt_comm *comm, const dti_call_options *o, int n, const dt_part *part,
                          dt_work **work_out)
{
    dt_part *there = calloc((size_t)n, sizeof *there);
    dt_array *host = calloc(2 * (size_t)n, sizeof *host), *home = calloc((size_t)n, sizeof *home);
    dt_status st = DT_OK;
    dt_work *w = NULL;
    if (!there || !host || !home) {
        st = DT_ERROR(DT_ERR_NOMEM, "a call of %d parts", n);
        goto done;
    }
    warn(comm->world);
    DT_TRY_TO(done, st, bring_inputs(comm, n, part));
    DT_TRY_TO(done, st, make_parts(comm->world, n, part, host, there));
    DT_TRY_TO(done, st, dti_call(comm, o, n, there, &w));
    for (int i = 0; i < n; i++)
        home[i] = part[i].out ? dt_array_share(part[i].out) : (dt_array){0};
    w->home = home;
    home = NULL;
    dt_work **last = &comm->away;
    while (*last)
        last = &(*last)->next_away;
    *last = w;
    *work_out = w;
done:
    for (int i = 0; host && i < 2 * n; i++)
        dt_array_release(&host[i]);
    free(home);
    free(host);
    free(there);
    return st;
}

dt_status dti_bring_home(dt_work *w)
{
    for (int i = 0; i < w->n; i++) {
        if (!w->home[i].storage)
            continue;
        dt_array_copy(&w->home[i], &w->operand[i].out);
        DT_TRY(dt_heap_status(w->home[i].storage->heap));
        dt_array_release(&w->home[i]);
    }
    return DT_OK;
}

void dti_forget_home(dt_work *w)
{
    if (!w->home)
        return;
    for (int i = 0; i < w->n; i++)
        dt_array_release(&w->home[i]);
    free(w->home);
    dt_work **link = &w->comm->away;
    while (*link != w)
        link = &(*link)->next_away;
    *link = w->next_away;
    w->home = NULL;
}
