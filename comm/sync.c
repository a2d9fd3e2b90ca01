/* comm/sync.c - host values, blocking: every rank gets everybody's bytes and does the same
 * arithmetic on them in rank order. Not counted. On the fake backend all ranks say what this one
 * says. */
#include "comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dt_status dti_gather_sync(dt_comm *comm, const void *mine, size_t bytes, void *all,
                          const char *label)
{
    DT_REQUIRE(comm->rank >= 0, DT_ERR_ARG, "rank %d is not a member of %s", comm->world->rank,
               comm->name);
    if (comm->size == 1) {
        memcpy(all, mine, bytes);
        return DT_OK;
    }
    dt_work *w;
    const dti_work_plan plan = {
        .kind = DT_CALL_ALL_GATHER, .n = 1, .width = comm->size, .moves = true};
    DT_TRY(dti_work_create(comm, plan, label, &w));
    w->host_values = true;
    w->first.element_bytes[0] = 1;
    dt_status st = dti_work_host_copy(w, bytes);
    if (st != DT_OK) {
        dti_work_free(w);
        return st;
    }
    memcpy(w->host_copy, mine, bytes);
    w->whole = (int64_t)bytes * comm->size;
    w->shape = bytes;
    for (int r = 0; r < comm->size; r++) {
        w->first.send[r] = (dti_piece){w->host_copy, bytes};
        w->first.recv[r] = (dti_piece){(char *)all + (size_t)r * bytes, bytes};
    }
    w->sequence = comm->collectives++;
    st = dti_work_scratch(w);
    if (st == DT_OK)
        st = dti_lane_issue(w);
    if (st != DT_OK) {
        dti_work_free(w);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    DT_TRY(dt_work_wait(&w));
    return DT_OK;
}

static dt_status gather_values(dt_comm *comm, const void *value, int n, void **all_out)
{
    DT_REQUIRE(n >= 1, DT_ERR_ARG, "n=%d values", n);
    const size_t bytes = (size_t)n * sizeof(int64_t);
    void *all = malloc(bytes * (size_t)comm->size);
    DT_REQUIRE(all, DT_ERR_NOMEM, "%d values of %d ranks", n, comm->size);
    const dt_status st = dti_gather_sync(comm, value, bytes, all, "host values");
    if (st != DT_OK) {
        free(all);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *all_out = all;
    return DT_OK;
}

static dt_status reduce_values(dt_comm *comm, void *value, int n, dt_dtype dtype, dt_reduce op)
{
    void *all = NULL;
    DT_TRY(gather_values(comm, value, n, &all));
    const void **term = malloc((size_t)comm->size * sizeof *term);
    if (!term) {
        free(all);
        return DT_ERROR(DT_ERR_NOMEM, "%d values of %d ranks", n, comm->size);
    }
    for (int r = 0; r < comm->size; r++)
        term[r] = (const char *)all + (size_t)r * (size_t)n * sizeof(int64_t);
    dti_add_terms(value, comm->size, term, n, dtype, op);
    free(term);
    free(all);
    return DT_OK;
}

dt_status dt_all_reduce_f64_sync(dt_comm *comm, double *value, int n, dt_reduce op)
{
    DT_TRY(reduce_values(comm, value, n, DT_F64, op));
    return DT_OK;
}

dt_status dt_all_reduce_i64_sync(dt_comm *comm, int64_t *value, int n, dt_reduce op)
{
    DT_TRY(reduce_values(comm, value, n, DT_I64, op));
    return DT_OK;
}

enum { VERDICT_BYTES = 1500 };

/* The texts travel only when there is one. */
static dt_status tell(dt_comm *comm, dt_status st, const char *mine, int lowest)
{
    char *all = malloc((size_t)comm->size * VERDICT_BYTES);
    DT_REQUIRE(all, DT_ERR_NOMEM, "the messages of %d ranks", comm->size);
    dt_status told = dti_gather_sync(comm, mine, VERDICT_BYTES, all, "agree");
    if (told == DT_OK)
        told = dt_error_relay(st, comm->ranks[lowest], all + (size_t)lowest * VERDICT_BYTES);
    free(all);
    return told;
}

dt_status dt_comm_agree_sync(dt_comm *comm, dt_status st)
{
    if (comm->size == 1)
        return st;
    char mine[VERDICT_BYTES] = "";
    if (st != DT_OK)
        (void)snprintf(mine, sizeof mine, "%s", dt_error_trace());
    int64_t status = st;
    void *all = NULL;
    DT_TRY(gather_values(comm, &status, 1, &all));
    int lowest = 0;
    while (lowest < comm->size && ((int64_t *)all)[lowest] == DT_OK)
        lowest++;
    const dt_status found = lowest < comm->size ? (dt_status)((int64_t *)all)[lowest] : DT_OK;
    free(all);
    return found == DT_OK ? DT_OK : tell(comm, found, mine, lowest);
}

dt_status dt_world_agree_sync(dt_world *world, dt_status st)
{
    return dt_comm_agree_sync(world->all, st);
}
