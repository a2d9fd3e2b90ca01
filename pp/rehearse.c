/* pp/rehearse.c - before the first pass of a kind, every rank runs its stages without numbers, for
 * each size of microbatch: forward and backward, in two halves. What cannot work then is an
 * error on all ranks of the mesh, before anything has moved. What a stage is given in a rehearsal
 * is what the boundary says, so all stages together are one run of the whole model. Read first:
 * dt_mesh_rehearse in mesh/dt_mesh.h, pp/stage.c. */
#include "pp/pipeline_internal.h"

#include <stdlib.h>

static dti_rehearsal kind_of(const dti_run *r)
{
    dti_rehearsal kind = {0};
    kind.at_once = r->pass->at_once;
    kind.tail = r->pass->samples - (r->nmicrobatches - 1) * r->pass->at_once;
    kind.seq_len = r->pass->seq_len;
    kind.no_grad = r->pass->tape.no_grad;
    kind.no_targets = r->pass->no_targets;
    kind.loss = r->pass->loss;
    kind.aside = r->pass->aside != NULL;
    return kind;
}

static bool same(const dti_rehearsal *a, const dti_rehearsal *b)
{
    return a->at_once == b->at_once && a->tail == b->tail && a->seq_len == b->seq_len &&
           a->no_grad == b->no_grad && a->no_targets == b->no_targets && a->loss == b->loss &&
           a->aside == b->aside;
}

static bool known(const dt_pipeline *p, const dti_rehearsal *kind)
{
    for (int i = 0; i < p->nrehearsed && i < DTI_PP_REHEARSALS; i++)
        if (same(&p->rehearsed[i], kind))
            return true;
    return false;
}

/* A tensor like another one, but of this moment's device: meta. */
static dt_status twin(dt_tensor *of, dt_tensor **out)
{
    if (of)
        DT_TRY(dt_tensor_create(dt_tensor_layout(of), dt_tensor_dtype(of), DT_TAG_ACTIVATION, out));
    return DT_OK;
}

static dt_status play(const dti_run *r, const dti_stage *s, int k, dti_cell *c)
{
    DT_TRY(dt_mesh_rehearse(r->p->mesh, true));
    DT_TRY(dt_tape_create(r->p->mesh, &r->pass->tape, &c->tape));
    DT_TRY(twin(s->cell[k].ids, &c->ids));
    DT_TRY(twin(s->cell[k].targets, &c->targets));
    for (int i = 0; i < 2; i++)
        DT_TRY(twin(s->cell[k].aside[i], &c->aside[i]));
    if (s->index > 0)
        DT_TRY(dti_pp_input(r, k, NULL, c));
    DT_TRY(dti_pp_compute(r, s, k, c));
    if (r->pass->tape.no_grad)
        return DT_OK;
    if (s->index < r->p->lowered->nstages - 1)
        DT_TRY(dti_pp_output_gradient(r, k, c));
    DT_TRY(dti_pp_compute_back(r, s, k, c, false));
    DT_TRY(dt_backward_weight(c->tape));
    return DT_OK;
}

/* The same pass and boundary on all ranks? One all-reduce gives the largest of each number and of
 * its negative. Collective: the mesh. */
static dt_status compare(const dt_pipeline *p, const dti_rehearsal *kind, int nmicrobatches)
{
    static const char *const what[] = {"the number of microbatches",
                                       "the number of samples at once",
                                       "the number of samples of the last microbatch",
                                       "seq_len",
                                       "no_grad",
                                       "no_targets",
                                       "whether there is a loss",
                                       "whether there are tensors aside",
                                       "hidden",
                                       "the number of skips",
                                       "the number of features of skips",
                                       "a hash of the boundary's placement"};
    enum { N = DT_COUNT(what) };
    const dt_pipeline_options *o = &p->options;
    int64_t hash = 0, features = 0, fact[2 * N];
    for (const char *c = o->boundary; *c; c++)
        hash = (hash * 31 + *c) % 1000003;
    for (int i = 0; i < p->ntensors - 1; i++)
        features = features * 31 + o->skip[i];
    const int64_t mine[N] = {nmicrobatches, kind->at_once,    kind->tail,         kind->seq_len,
                             kind->no_grad, kind->no_targets, kind->loss != NULL, kind->aside,
                             o->hidden,     p->ntensors - 1,  features,           hash};
    for (int i = 0; i < N; i++) {
        fact[i] = mine[i];
        fact[N + i] = -mine[i];
    }
    DT_TRY(dt_all_reduce_i64_sync(p->all, fact, 2 * N, DT_REDUCE_MAX));
    for (int i = 0; i < N; i++)
        DT_REQUIRE(fact[i] == -fact[N + i], DT_ERR_ARG,
                   "ranks run different passes: %s is %lld here, elsewhere %lld to %lld", what[i],
                   (long long)mine[i], (long long)-fact[N + i], (long long)fact[i]);
    return DT_OK;
}

/* Take what gradients the leaves of a stage's parameters have out of the way, or put them back in
 * place of those of the rehearsal. */
static void swap_grads(dt_module *root, dt_local *kept, bool back)
{
    int n = 0;
    dt_param *const *param = dt_module_params(root, &n);
    for (int i = 0; i < n; i++) {
        dt_tensor *leaf = param[i]->use ? param[i]->use : param[i]->tensor;
        if (!leaf) /* the forward will say so */
            continue;
        if (back)
            dt_tensor_clear_grad(leaf);
        else
            kept[i] = *dt_tensor_grad(leaf);
        *dt_tensor_grad(leaf) = back ? kept[i] : (dt_local){0};
    }
}

static dt_status play_stage(const dti_run *r, const dti_stage *s, int k)
{
    dti_cell c = {0};
    int n = 0;
    (void)dt_module_params(s->root, &n);
    DT_TRY(dti_pp_read(r, s, k, &s->cell[k])); /* stays for the pass itself */
    dt_local *kept = calloc((size_t)n + 1, sizeof *kept);
    DT_REQUIRE(kept, DT_ERR_NOMEM, "%d gradients", n);
    swap_grads(s->root, kept, false);
    const dt_status st = play(r, s, k, &c), off = dt_mesh_rehearse(r->p->mesh, false);
    swap_grads(s->root, kept, true);
    free(kept);
    dt_tape_destroy(&c.tape);
    for (int i = 0; i < DTI_PP_TENSORS; i++)
        dt_tensor_destroy(&c.x[i]);
    dt_tensor_destroy(&c.ids);
    dt_tensor_destroy(&c.targets);
    dt_tensor_destroy(&c.aside[0]);
    dt_tensor_destroy(&c.aside[1]);
    dti_pp_release(c.dy);
    dti_pp_release(c.dx);
    return st != DT_OK ? st : off;
}

/* What ops see of sharded parameters must exist. */
static dt_status announce(dt_module *m)
{
    void *arg = NULL;
    const dt_sharder *sharder = dt_module_sharder(m, &arg);
    if (sharder && sharder->announce)
        DT_TRY(sharder->announce(m, arg));
    for (int i = 0; i < dt_module_nchildren(m); i++)
        DT_TRY(announce(dt_module_child(m, i)));
    return DT_OK;
}

/* Microbatches of all sizes: the first and the last. */
static dt_status play_all(dti_run *r)
{
    dt_pipeline *p = r->p;
    const int end = r->nmicrobatches - 1;
    DT_TRY(announce(p->bundle));
    for (int i = 0; i < p->nstages; i++) {
        for (int k = 0; k <= end; k += end > 0 ? end : 1) {
            const dt_status st = play_stage(r, &p->stage[i], k);
            if (st != DT_OK)
                return DT_ERROR(st, "before the first microbatch, stage %d: %s", p->stage[i].index,
                                dt_error_trace());
        }
    }
    return DT_OK;
}

/* It is not to be seen in traces. */
static dt_status play_unseen(dti_run *r)
{
    dt_world *world = dt_mesh_world(r->p->mesh);
    dt_trace *trace = dt_world_trace(world);
    const bool explain = dt_world_explain(world);
    dt_world_set_trace(world, NULL);
    dt_world_set_explain(world, false);
    const dt_status st = play_all(r);
    dt_world_set_explain(world, explain);
    dt_world_set_trace(world, trace);
    return st;
}

dt_status dti_pp_rehearse(dti_run *r, dt_status valid)
{
    dt_pipeline *p = r->p;
    const dti_rehearsal kind = kind_of(r);
    if (valid == DT_OK ? known(p, &kind) : p->nrehearsed > 0)
        return valid;
    DT_TRY(compare(p, &kind, r->nmicrobatches));
    DT_TRY(dt_comm_agree_sync(p->all, valid == DT_OK ? play_unseen(r) : valid));
    p->rehearsed[p->nrehearsed++ % DTI_PP_REHEARSALS] = kind;
    return DT_OK;
}
