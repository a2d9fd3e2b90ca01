/* comm/switches.c - what the environment turns on: DT_EXPLAIN, DT_CHECK, DT_FAULT.
 *
 * DT_FAULT is a comma list of name or name:argument. Handled here in comm/, the argument being a
 * part of the label that a call must have (none: all calls):
 *   skip_reduce   all_reduce and reduce_scatter give this rank's own terms
 *   swap_shards   all_gather gives the pieces of ranks 0 and 1 in each other's place
 *   drop_wait     the result is as it was before the call, as if nobody had waited for it
 *   slow_comm:MS  every call takes MS milliseconds longer (the argument is a number here)
 *   unshared      this rank says that it cannot share its memory
 *   alloc:N, alloc:N@R  allocation N, counted from 1, of all ranks' heaps or of rank R's fails
 * In checkpoint/ (save_internal.h): checkpoint_kill, checkpoint_full. */
#include "comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The entry `name` of a comma list; its argument (may be "") is copied. */
static bool find_entry(const char *list, const char *name, char *argument, size_t size_bytes)
{
    const size_t length = strlen(name);
    for (const char *at = list; *at;) {
        const size_t entry = strcspn(at, ",");
        const size_t head = strcspn(at, ",:");
        if (head == length && strncmp(at, name, length) == 0) {
            const int rest = head < entry ? (int)(entry - head - 1) : 0;
            (void)snprintf(argument, size_bytes, "%.*s", rest, at + head + (head < entry ? 1 : 0));
            return true;
        }
        at += entry + (at[entry] == ',' ? 1 : 0);
    }
    return false;
}

bool dt_world_check(const dt_world *world, const char *what)
{
    char argument[64];
    return find_entry(world->checks, what, argument, sizeof argument);
}

void dt_world_set_check(dt_world *world, const char *names)
{
    (void)snprintf(world->checks, sizeof world->checks, "%s", names ? names : "");
}

bool dt_world_fault(const dt_world *world, const char *name)
{
    return dti_fault_hits(world, name, NULL);
}

bool dti_fault_hits(const dt_world *world, const char *name, const char *label)
{
    char argument[64];
    if (!world->faults[0] || !find_entry(world->faults, name, argument, sizeof argument))
        return false;
    return !label || strstr(label, argument);
}

int64_t dt_world_fault_number(const dt_world *world, const char *name)
{
    char argument[64], *end = NULL;
    if (!world->faults[0] || !find_entry(world->faults, name, argument, sizeof argument))
        return 0;
    const long long number = strtoll(argument, &end, 10);
    return *end != '@' || strtol(end + 1, NULL, 10) == world->rank ? number : 0;
}

void dt_world_set_delay(dt_world *world, unsigned kinds, int delay_ms)
{
    world->delay_mask = kinds;
    world->delay_s = delay_ms / 1e3;
}

void dt_world_set_fault(dt_world *world, const char *names)
{
    (void)snprintf(world->faults, sizeof world->faults, "%s", names ? names : "");
    char delay_ms[64] = "0";
    (void)find_entry(world->faults, "slow_comm", delay_ms, sizeof delay_ms);
    dt_world_set_delay(world, (1u << DT_NCALLS) - 1, (int)strtol(delay_ms, NULL, 10));
}

bool dt_world_explain(const dt_world *world)
{
    return world->explain;
}

const char *dt_world_speaker(const dt_world *world, char buf[24])
{
    buf[0] = '\0';
    if (world->rank > 0)
        (void)snprintf(buf, 24, "rank %d ", world->rank);
    return buf;
}

void dt_world_set_explain(dt_world *world, bool on)
{
    world->explain = on;
}

/* Every entry of a comma list is one of `legal`, a comma list too. */
static dt_status check_names(const char *variable, const char *list, const char *legal)
{
    char name[64], argument[64];
    for (const char *at = list; *at; at += *at == ',') {
        (void)snprintf(name, sizeof name, "%s", at);
        name[strcspn(name, ",:")] = '\0';
        DT_REQUIRE(!*name || find_entry(legal, name, argument, sizeof argument), DT_ERR_ARG,
                   "%s=%s: '%s' is unknown; legal: %s", variable, list, name, legal);
        at += strcspn(at, ",");
    }
    return DT_OK;
}

dt_status dti_switches_read(dt_world *world)
{
    const char *explain = getenv("DT_EXPLAIN");
    const char *checks = getenv("DT_CHECK");
    const char *faults = getenv("DT_FAULT");
    const bool speaks = world->rank == 0 || world->backend == DT_BACKEND_FAKE;
    if (checks)
        DT_TRY(check_names("DT_CHECK", checks, "collective,replicas"));
    if (faults)
        DT_TRY(check_names("DT_FAULT", faults,
                           "skip_reduce,swap_shards,drop_wait,drop_event,slow_comm,unshared,alloc,"
                           "checkpoint_kill,checkpoint_full"));
    world->explain = explain && (strcmp(explain, "all") == 0 ||
                                 (speaks && explain[0] && strcmp(explain, "0") != 0));
    dt_world_set_check(world, checks);
    dt_world_set_fault(world, faults);
    const int64_t failing = dt_world_fault_number(world, "alloc");
    if (failing > 0)
        world->heap_options.fail_after = failing;
    enum { OF_NCCL = 3 }; /* the waits of comm/nccl_call.c come before those of copies */
    const int64_t dropped = dt_world_fault_number(world, "drop_event");
    if (dropped > OF_NCCL)
        world->heap_options.drop_wait = (int)dropped - OF_NCCL;
    return DT_OK;
}
