/* comm/work.c - the life of one call: its memory, and the wait that ends it. Host thread only.
 * Read next: lane.c. */
#include "comm/nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Take bytes from a block; with base NULL only count them. */
static void *carve(char *base, size_t *used, size_t bytes)
{
    void *at = base ? base + *used : NULL;
    *used += (bytes + 15) / 16 * 16;
    return at;
}

static void carve_exchange(char *base, size_t *used, dti_exchange *x, int n, int width,
                           size_t *element_bytes)
{
    const size_t bytes = (size_t)n * (size_t)width * sizeof(dti_piece);
    x->n = n;
    x->width = width;
    x->element_bytes = element_bytes;
    x->send = carve(base, used, bytes);
    x->recv = carve(base, used, bytes);
}

static size_t carve_work(char *base, dti_work_plan p)
{
    size_t used = 0;
    dt_work *w = carve(base, &used, sizeof *w);
    dt_work sized = {0};
    if (!w)
        w = &sized;
    const size_t width = (size_t)p.width;
    w->operand = carve(base, &used, (size_t)p.n * sizeof *w->operand);
    size_t *element_bytes = carve(base, &used, ((size_t)p.n + 1) * sizeof *element_bytes);
    const int pieces = p.moves ? p.n : 0;
    carve_exchange(base, &used, &w->first, pieces, p.width, element_bytes);
    if (p.two_steps)
        carve_exchange(base, &used, &w->second, pieces, p.width, element_bytes);
    if (p.reduces)
        w->source = carve(base, &used, width * sizeof *w->source);
    if (p.compares) {
        if (base)
            element_bytes[p.n] = 1;
        carve_exchange(base, &used, &w->compare, 1, p.width, element_bytes + p.n);
        w->record = carve(base, &used, width * sizeof *w->record);
    }
    return used;
}

/* Where peers can read it if the world has such a place, then `array_out` is what to give back. */
static void *take(const dt_world *world, size_t bytes, dt_array *array_out)
{
    if (!world->notes)
        return malloc(bytes);
    const dt_shape shape = DT_SHAPE((int64_t)bytes);
    if (dt_array_create(world->notes, DT_U8, shape, DT_TAG_COMM, array_out) != DT_OK)
        return NULL;
    return dt_array_data(array_out);
}

dt_status dti_work_create(dt_comm *comm, dti_work_plan plan, const char *label, dt_work **work_out)
{
    dt_array memory = {0};
    const size_t bytes = carve_work(NULL, plan), texts = offsetof(dt_work, label);
    char *base = take(comm->world, bytes, &memory);
    DT_REQUIRE(base, DT_ERR_NOMEM, "a call of %d parts", plan.n);
    memset(base, 0, texts);
    memset(base + sizeof(dt_work), 0, bytes - sizeof(dt_work));
    (void)carve_work(base, plan);
    dt_work *w = (dt_work *)(void *)base;
    w->memory = memory;
    w->comm = comm; /* which outlives it */
    comm->refs++;
    w->kind = plan.kind;
    w->n = plan.n;
    w->peer = -1;
    dti_copy_text(w->label, sizeof w->label, label ? label : "");
    w->message[0] = '\0';
    *work_out = w;
    return DT_OK;
}

dt_status dti_work_scratch(dt_work *w)
{
    const size_t bytes = w->comm->ops->scratch_bytes ? w->comm->ops->scratch_bytes(w) : 0;
    w->scratch = bytes > 0 ? malloc(bytes) : NULL;
    DT_REQUIRE(bytes == 0 || w->scratch, DT_ERR_NOMEM, "requests of a call of %d parts", w->n);
    return DT_OK;
}

dt_status dti_work_host_copy(dt_work *w, size_t bytes)
{
    w->host_copy = take(w->comm->world, bytes, &w->host_memory);
    DT_REQUIRE(w->host_copy, DT_ERR_NOMEM, "%zu bytes of host values", bytes);
    memset(w->host_copy, 0, bytes);
    return DT_OK;
}

static void give(dt_array *memory, void *base)
{
    if (memory->storage)
        dt_array_release(memory);
    else
        free(base);
}

void dti_work_free(dt_work *w)
{
    for (int i = 0; i < w->n; i++) {
        dt_array_release(&w->operand[i].in);
        dt_array_release(&w->operand[i].out);
        free(w->operand[i].saved);
    }
    dt_array_release(&w->staging);
    dti_forget_home(w);
    dti_nccl_forget(w);
    give(&w->host_memory, w->host_copy);
    free(w->scratch);
    dt_array memory = w->memory;
    dt_comm *comm = w->comm;
    give(&memory, w);
    dt_comm_destroy(&comm);
}

bool dt_work_done(dt_work *work)
{
    return !work || (work->event ? dti_nccl_done(work) : dti_lane_done(work));
}

static void wait_on_device(dt_work *w)
{
    dt_work **link = &w->comm->world->on_device;
    while (*link != w)
        link = &(*link)->next;
    *link = w->next;
    w->status = dti_nccl_wait(w);
    if (w->status != DT_OK)
        dti_copy_text(w->message, sizeof w->message, dt_error_trace());
}

dt_status dt_work_wait(dt_work **work)
{
    dt_work *w = *work;
    if (!w)
        return DT_OK;
    *work = NULL;
    dti_event(w, "wait", DT_TRACE_BEGIN, 0);
    if (w->event)
        wait_on_device(w);
    else
        dti_lane_wait(w);
    dti_event(w, "wait", DT_TRACE_END, 0);
    const dt_status st = w->status;
    if (st == DT_OK) {
        const dt_status moved = w->home ? dti_bring_home(w) : DT_OK;
        dti_work_free(w);
        return moved;
    }
    dti_forget_home(w);
    w->next = w->comm->world->graves;
    w->comm->world->graves = w;
    if (atomic_load(&w->comm->world->fate->told))
        dt_error_is_of_other();
    return DT_ERROR(st, "%s", w->message);
}
