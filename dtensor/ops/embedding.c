/* dtensor/ops/embedding.c - y[...] = w[ids[...]]: rows of a table.
 *
 *     dw[v] = sum of dy over the tokens with id v, in token order; exactly 0 where there are none
 *
 * Rule: "...v,vd->...d" on one-hot(ids), which is never built: its v is sharded as dim 0 of w
 * wherever ids are R, its other dims are placed as ids. So w S(0) gives P: each rank writes
 * zeros for rows it lacks. ids S meets w R: dw is P.
 * Source: Shoeybi et al. 2019, "Megatron-LM" (vocab-parallel embedding). */
#include "dtensor/ops/nn_internal.h"

#include <string.h>

static dt_status infer(dt_rule *r)
{
    const dt_layout *ids = r->in[0], *w = r->in[1];
    char text[DT_SHAPE_TEXT];
    const int v = ids->shape.ndim;
    DT_REQUIRE(v < DT_MAX_DIMS && w->shape.ndim == 2, DT_ERR_SHAPE,
               "%s: w %s must be [V, d], ids of at most %d dims", r->name,
               dt_shape_print(w->shape, text, sizeof text), DT_MAX_DIMS - 1);
    dt_layout hot = *ids;
    hot.shape.ndim = v + 1;
    hot.shape.dim[v] = w->shape.dim[0];
    for (int i = 0; i < w->nsplit[0]; i++)
        if (dt_layout_at(ids, w->split[0][i]).kind == DT_REPLICATE)
            dt_layout_shard(&hot, w->split[0][i], v);
    return dt_rule_letters(r, "...v,vd->...d", &(dt_letters){.seen = {&hot}});
}

static dt_embedding_args arguments(dt_op_call *c, int64_t d)
{
    dt_embedding_args a = {.dtype = c->in[1].dtype,
                           .tokens = dt_array_count(&c->in[0]),
                           .d = d,
                           .ids = dt_array_data(&c->in[0])};
    dt_op_range(c, 1, 0, &a.lo, &a.hi);
    return a;
}

static dt_status forward(dt_op_call *c)
{
    const int64_t vocab = c->in_layout[1]->shape.dim[0];
    DT_TRY(dti_ids_check(c, 0, vocab, 0, "the id"));
    const dt_embedding_args a = arguments(c, c->in[1].shape.dim[1]);
    dti_nn(c)->embedding(&a, dt_array_data(&c->in[1]), dt_array_data(&c->out[0]));
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    dt_embedding_args a = arguments(c, c->din[1].shape.dim[1]);
    a.dtype = c->din[1].dtype;
    dti_nn(c)->embedding_dw(&a, dt_array_data(&c->dout[0]), dt_array_data(&c->din[1]));
    return DT_OK;
}

const dt_op dt_op_embedding = {.name = "embedding",
                               .infer = infer,
                               .linear = 1u << 1,
                               .nin = 2,
                               .nout = 1,
                               .forward = forward,
                               .backward = backward,
                               .no_grad_in = 1u << 0,
                               .saves = {0, DT_SAVE_IN(0)}};

dt_tensor *(dt_embedding)(dt_tape *t, dt_tensor *ids, dt_tensor *w)
{
    return dt_op_apply2(t, &dt_op_embedding, NULL, ids, w);
}
