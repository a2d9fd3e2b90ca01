/* pp/tie.c - a parameter of two stages (embedding and head): each has a gradient of its own uses;
 * their sum, the same bits on both, keeps the two equal. Once a step, when both are at home. */
#include "pp/pipeline_internal.h"

/* A copy of a gradient, so that the two can be added both ways. */
static dt_status copy_of(const dt_pipeline *p, const dt_array *from, dt_array *copy_out)
{
    DT_TRY(dt_array_create(dt_mesh_heap(p->mesh), from->dtype, from->shape, DT_TAG_GRADIENT,
                           copy_out));
    dt_array_copy(copy_out, from);
    return DT_OK;
}

static dt_status exchange(const dt_pipeline *p, int peer, const dt_array *mine, dt_array *theirs)
{
    dt_work *sent = NULL, *received = NULL;
    DT_TRY(
        dt_array_create(dt_mesh_heap(p->mesh), mine->dtype, mine->shape, DT_TAG_GRADIENT, theirs));
    DT_TRY(dt_send(p->line, peer, 1, &mine, "tied gradient", &sent));
    DT_TRY(dt_recv(p->line, peer, 1, &theirs, "tied gradient", &received));
    DT_TRY(dt_work_wait(&received));
    DT_TRY(dt_work_wait(&sent));
    return DT_OK;
}

static dt_local *gradient(const dti_tie *tie, int end)
{
    return tie->param[end] ? dt_tensor_grad(tie->param[end]->tensor) : NULL;
}

dt_status dti_pp_check_ties(dt_pipeline *p)
{
    for (int t = 0; t < p->nties; t++) {
        for (int end = 0; end < 2; end++) {
            const dt_local *mine = gradient(&p->tie[t], end);
            DT_REQUIRE(!mine || mine->array.storage, DT_ERR_STATE,
                       "tied parameter %s has no gradient in stage %d", p->tie[t].name,
                       p->tie[t].stage[end]);
        }
    }
    return DT_OK;
}

static dt_status reduce(dt_pipeline *p, dti_tie *tie)
{
    dt_array other[2] = {{0}, {0}};
    dt_status st = DT_OK;
    for (int end = 0; end < 2; end++) { /* before either changes */
        const dt_local *mine = gradient(tie, end), *theirs = gradient(tie, !end);
        if (!mine)
            continue;
        DT_TRY_TO(done, st,
                  theirs ? copy_of(p, &theirs->array, &other[end])
                         : exchange(p, p->owner[tie->stage[!end]], &mine->array, &other[end]));
    }
    for (int end = 0; end < 2; end++) {
        if (!tie->param[end])
            continue;
        const dt_local more = {gradient(tie, end)->layout, other[end]};
        other[end] = (dt_array){0};
        DT_TRY_TO(done, st, dt_tensor_add_grad(tie->param[end]->tensor, (dt_local[]){more}));
    }
done:
    dt_array_release(&other[0]);
    dt_array_release(&other[1]);
    return st;
}

dt_status dti_pp_reduce_ties(dt_pipeline *p)
{
    for (int t = 0; t < p->nties; t++)
        DT_TRY(reduce(p, &p->tie[t]));
    return DT_OK;
}
