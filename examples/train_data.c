/* examples/train_data.c - the data of a training run: opening it, batches as tensors, evaluation's
 * part. Read first: data/dt_data.h. */
#include "examples/train_pipeline.h"

const char *const train_batch_layout = "S(0)@dp_replicate>dp_shard";

dt_status train_data_open(train_session *s)
{
    const train_config *c = s->config;
    dt_dataset_options o = {.format = c->data_format,
                            .labels_path = c->data_labels,
                            .vocab = s->facts.vocab,
                            .seq_len = c->seq_len,
                            .blend = c->data_blend,
                            .shuffle = c->shuffle,
                            .seed = c->seed,
                            .held_out = c->eval_split,
                            .documents = c->documents != TRAIN_DOCUMENTS_NONE,
                            .has_end_token = c->end_token >= 0,
                            .end_token = c->end_token};
    DT_TRY(dt_dataset_open(c->data_path, &o, &s->data));
    if (!c->eval_path && c->eval_split <= 0)
        return DT_OK;
    o.shuffle = false;
    o.evaluation = true;
    if (c->eval_path) {
        o.blend = false;
        o.labels_path = NULL;
        o.held_out = 0;
        o.evaluation = false;
    }
    DT_TRY(dt_dataset_open(c->eval_path ? c->eval_path : c->data_path, &o, &s->eval_data));
    return DT_OK;
}

bool train_has_documents(const train_session *s)
{
    return s->config->documents == TRAIN_DOCUMENTS_ATTENTION;
}

/* Two tensors of this rank's rows, which are in s->ids and s->targets. */
static dt_status make_tensors(train_session *s, const dt_layout *layout, dt_tensor **a,
                              dt_tensor **b)
{
    const int64_t n = dt_shape_count(dt_mesh_local(layout, NULL));
    DT_TRY(dt_tensor_create(layout, DT_I32, DT_TAG_ACTIVATION, a));
    DT_TRY(dt_tensor_create(layout, DT_I32, DT_TAG_ACTIVATION, b));
    DT_TRY(dt_array_write(dt_tensor_local(*a), s->ids, n));
    DT_TRY(dt_array_write(dt_tensor_local(*b), s->targets, n));
    return DT_OK;
}

dt_status train_session_read(train_session *s, train_place at, int64_t lo, int64_t hi,
                             train_micro *m)
{
    const dt_shape shape = DT_SHAPE(hi - lo, s->config->seq_len);
    const dt_layout *layout = NULL;
    int64_t offset[DT_MAX_DIMS];
    DT_TRY(dt_mesh_layout_text(s->mesh, shape, train_batch_layout, &layout));
    const dt_shape local = dt_mesh_local(layout, offset);
    const dt_batch batch = {.position = at.position,
                            .global_batch = s->config->global_batch,
                            .seq_len = s->config->seq_len,
                            .lo = lo + offset[0],
                            .hi = lo + offset[0] + local.dim[0]};
    if (train_has_documents(s)) {
        DT_TRY(dt_dataset_documents(at.data, &batch, s->ids, s->targets));
        DT_TRY(make_tensors(s, layout, &m->positions, &m->documents));
    }
    DT_TRY(dt_dataset_batch(at.data, &batch, s->ids, s->targets));
    return make_tensors(s, layout, &m->ids, &m->targets);
}

void train_micro_release(train_micro *m)
{
    dt_tensor_destroy(&m->ids);
    dt_tensor_destroy(&m->targets);
    dt_tensor_destroy(&m->positions);
    dt_tensor_destroy(&m->documents);
}

dt_status train_count_valid(train_session *s, train_place at, int64_t *valid_out)
{
    train_micro all = {0};
    dt_comm *dp = NULL;
    int64_t valid = 0;
    dt_status st = train_session_read(s, at, 0, s->config->global_batch, &all);
    const int64_t mine = st == DT_OK ? dt_array_count(dt_tensor_local(all.targets)) : 0;
    train_micro_release(&all);
    for (int64_t i = 0; i < mine; i++)
        valid += s->targets[i] != DT_LABEL_IGNORED;
    DT_TRY(dt_world_agree_sync(s->world, st)); /* a bad token is seen by one rank only */
    DT_TRY(dt_mesh_comm_named(s->mesh, "dp_replicate,dp_shard", 0, &dp));
    DT_TRY(dt_all_reduce_i64_sync(dp, &valid, 1, DT_REDUCE_SUM));
    *valid_out = valid;
    return DT_OK;
}

int64_t train_next_position(const train_session *s, train_place at)
{
    const int64_t length = dt_dataset_length(at.data);
    return dt_dataset_position_next(length, at.position, s->config->global_batch,
                                    s->config->seq_len);
}

train_place train_eval_place(const train_session *s)
{
    const train_config *c = s->config;
    train_place at = {s->eval_data ? s->eval_data : s->data, 0};
    const int64_t length = dt_dataset_length(at.data);
    const double wanted = (double)c->eval_steps * (double)(c->global_batch * c->seq_len);
    if (!s->eval_data && wanted < (double)length)
        at.position = length - 1 - (int64_t)wanted;
    return at;
}
