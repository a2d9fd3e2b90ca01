/* comm/record.c - what is remembered of calls: counters, the ring of the last ones, DT_EXPLAIN's
 * lines, trace events. */
#include "comm/comm_internal.h"

#include <stdio.h>
#include <string.h>

const char *dt_call_name(dt_call kind)
{
    static const char *const text[] = {
#define X(name, text) [DT_CALL_##name] = (text),
        DT_CALL_TABLE(X)
#undef X
    };
    return (int)kind >= 0 && kind < DT_NCALLS ? text[kind] : "unknown call";
}

static void count(dt_counts *counts, const dt_work *w)
{
    counts->calls[w->kind]++;
    counts->bytes[w->kind] += w->bytes;
    counts->total_calls++;
    counts->total_bytes += w->bytes;
}

static unsigned long long ring_word(int64_t index, dti_ring_state state)
{
    return (unsigned long long)index << 2 | (unsigned long long)state;
}

void dti_count_issue(dt_work *w)
{
    dt_world *world = w->comm->world;
    count(&world->counts, w);
    count(&w->comm->counts, w);
    w->ring_index = world->ring_next++;
    dti_ring_entry *e = &world->ring[w->ring_index % DTI_RING];
    e->sequence = w->sequence;
    e->bytes = w->bytes;
    e->kind = w->kind;
    dti_copy_text(e->label, sizeof e->label, w->label);
    dti_copy_text(e->comm_name, sizeof e->comm_name, w->comm->name);
    atomic_store(&e->state, ring_word(w->ring_index, DTI_RING_QUEUED));
    char speaker[24];
    if (world->explain)
        (void)fprintf(stderr, "%scomm: %s #%lld on %s, %lld bytes, %d %s: %s\n",
                      dt_world_speaker(world, speaker), dt_call_name(w->kind),
                      (long long)w->sequence, w->comm->name, (long long)w->bytes, w->n,
                      w->n == 1 ? "tensor" : "tensors", w->label);
    dti_event(w, "issue", DT_TRACE_MOMENT, 0);
}

/* A worker may mark a call whose entry the host has since given to a newer one: then it is not its
 * own. */
void dti_ring_mark(const dt_work *w, dti_ring_state state)
{
    dti_ring_entry *e = &w->comm->world->ring[w->ring_index % DTI_RING];
    unsigned long long old = atomic_load(&e->state);
    while (!w->host_values && old >> 2 == (unsigned long long)w->ring_index &&
           !atomic_compare_exchange_weak(&e->state, &old, ring_word(w->ring_index, state)))
        continue;
}

void dti_event(const dt_work *w, const char *kind, dt_trace_phase phase, int lane)
{
    if (!w->trace)
        return;
    char name[DTI_LABEL_BYTES + 20];
    (void)snprintf(name, sizeof name, "%s %s", dt_call_name(w->kind), w->label);
    dt_trace_record(w->trace, kind, name, phase, lane, w->bytes);
}

dt_counts dt_world_counts(const dt_world *world)
{
    return world->counts;
}

dt_counts dt_comm_counts(const dt_comm *comm)
{
    return comm->counts;
}

void dt_world_reset_counts(dt_world *world)
{
    world->counts = (dt_counts){0};
    for (dt_comm *c = world->comms; c; c = c->next)
        c->counts = (dt_counts){0};
}

void dt_world_print_ring(const dt_world *world, void (*print)(void *arg, const char *line),
                         void *arg)
{
    static const char *const state_text[] = {"queued", "runs", "done", "failed"};
    const int64_t first = world->ring_next > DTI_RING ? world->ring_next - DTI_RING : 0;
    for (int64_t i = first; i < world->ring_next; i++) {
        const dti_ring_entry *e = &world->ring[i % DTI_RING];
        char line[DTI_NAME_BYTES + DTI_LABEL_BYTES + 100];
        (void)snprintf(line, sizeof line, "%s #%lld on %s, %lld bytes, %s: %s",
                       dt_call_name(e->kind), (long long)e->sequence, e->comm_name,
                       (long long)e->bytes, state_text[atomic_load(&e->state) & 3], e->label);
        print(arg, line);
    }
}
