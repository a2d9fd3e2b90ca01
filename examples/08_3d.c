/* examples/08_3d.c - a Llama on 8 ranks: 2 pipeline stages x 2 shards x 2 tensor-parallel ranks.
 *
 *   build/examples/08_3d --ranks=8        tools/mpirun -n 8 build/examples/08_3d
 *
 * Read next: examples/train_session.c, the same for any model, mesh and data. */
#include "dtensor.h"
#include "examples/example.h"

enum { BATCH = 8, SEQ = 16, VOCAB = 64, HIDDEN = 32, STEPS = 10 };

/* Samples [lo, hi): ids where the first stage is, targets where the last is; each rank keeps its
 * share. Token i is 3 i. */
static dt_status read_tokens(void *mesh, int64_t lo, int64_t hi, dt_tensor **ids,
                             dt_tensor **targets)
{
    int32_t host[BATCH * SEQ + 1];
    const dt_layout *rows = NULL;
    for (int64_t i = 0; i <= (hi - lo) * SEQ; i++)
        host[i] = (int32_t)((lo * SEQ + i) * 3 % VOCAB);
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(hi - lo, SEQ), "S(0)@dp_shard", &rows));
    if (ids)
        DT_TRY(dt_distribute(rows, DT_I32, host, ids));
    if (targets)
        DT_TRY(dt_distribute(rows, DT_I32, host + 1, targets));
    return DT_OK;
}

static const dt_llama_config config = {VOCAB, HIDDEN, 48, 4, 4, 4, 8, SEQ, .rope.theta = 1e4,
                                       .rms_norm_eps = 1e-5, .initializer_range = 0.1};
static const dt_model_facts facts = {.architecture = "LlamaForCausalLM"};

static dt_status train(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL, *inner = NULL; /* of all ranks; of those of a stage */
    dt_module *model = NULL;
    dt_pp_schedule *schedule = NULL;
    dt_pipeline *pipe = NULL;
    dt_optim *adamw = NULL;
    dt_comm *all = NULL;
    const dt_mesh_options axes = {.axes = {{"pp", 2}, {"dp_shard", 2}, {"tp", 2}}};
    dt_tp_plan plan = dt_llama_tp_plan(DT_TP_VOCAB_SPLIT, true);
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &axes, &mesh));
    DT_TRY(dt_llama_create(&config, &model)); /* on meta: shapes, no memory */

    /* PP: each rank keeps the layers of its stages; 2 samples a microbatch */
    const dt_pipeline_options cut = {
        .chain = dt_model_chain(&facts), .hidden = HIDDEN, .boundary = "S(0)@dp_shard, S(1)@tp"};
    DT_TRY(dt_pp_schedule_create("zb-h1", 2, BATCH / 2, 0, &schedule));
    DT_TRY(dt_pipeline_split(&model, mesh, "pp", schedule, &cut, &pipe));
    dt_module *stage = dt_pipeline_stage(pipe, 0);
    inner = dt_pipeline_mesh(pipe);

    /* TP with sequence parallelism, then FSDP: a layer a group, the rest another */
    plan.stage = true;
    DT_TRY(dt_parallelize_module(stage, inner, "tp", &plan));
    for (int i = 0; i < dt_model_nlayers(stage); i++)
        DT_TRY(dt_fully_shard(dt_model_layer(stage, i), inner, "dp_shard", NULL));
    DT_TRY(dt_fully_shard(stage, inner, "dp_shard", NULL));
    DT_TRY(dt_module_materialize(stage, inner, 42)); /* this rank's shards; any mesh, same values */
    DT_TRY(dt_adamw_create(stage, NULL, &adamw));
    dt_model_set_loss(stage, BATCH * SEQ, 0);

    DT_TRY(dt_mesh_comm_named(mesh, "pp,dp_shard", 0, &all));
    const dt_pipeline_pass pass = {
        .samples = BATCH, .at_once = 2, .seq_len = SEQ, .read = read_tokens, .arg = inner};
    for (int step = 1; step <= STEPS; step++) {
        double loss = 0;                             /* this rank's terms of it */
        DT_TRY(dt_pipeline_run(pipe, &pass, &loss)); /* forward, backward, gradients at home */
        DT_TRY(dt_optim_step(adamw, 1e-2, 1));
        dt_module_clear_grads(stage);
        DT_TRY(dt_all_reduce_f64_sync(all, &loss, 1, DT_REDUCE_SUM));
        if (dt_world_rank(world) == 0)
            (void)printf("step %2d  loss %.6f\n", step, loss);
    }
    dt_optim_destroy(&adamw);
    dt_pp_schedule_destroy(&schedule);
    dt_pipeline_destroy(&pipe); /* with its stages and their mesh */
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, train);
}
