/* comm/nccl_none.c - where NCCL is not built in. */
#include "comm/nccl_internal.h"

dt_status dti_nccl_takes(dt_comm *comm, const dt_array *any, const dti_call_options *o,
                         bool *takes_out)
{
    (void)comm;
    (void)any;
    (void)o;
    *takes_out = false;
    return DT_OK;
}

dt_status dti_nccl_link(dt_comm *comm, dt_heap *heap)
{
    (void)comm;
    (void)heap;
    return DT_OK;
}

dt_status dti_nccl_call(dt_comm *comm, const dti_call_options *o, int n, const dt_part *part,
                        dt_work **work_out)
{
    (void)o;
    (void)n;
    (void)part;
    (void)work_out;
    return DT_ERROR(DT_ERR_UNSUPPORTED, "%s: NCCL is not built in", comm->name);
}

dt_status dti_nccl_wait(dt_work *w)
{
    (void)w;
    return DT_OK;
}

bool dti_nccl_done(const dt_work *w)
{
    (void)w;
    return true;
}

void dti_nccl_forget(dt_work *w)
{
    (void)w;
}

void dti_nccl_close(dt_comm *comm)
{
    (void)comm;
}
