/* examples/07_pipeline.c - a small Llama on a pipeline: a picture of every schedule, one is run.
 *
 *     rank 0: embedding, layer  --x-->  rank 1: layer  --x-->  ...  last rank: layer, head, loss
 *                              <--dx--                <--dx--
 *
 * A batch of 8 samples goes through in 8 microbatches; each rank does what its row says.
 *
 *   build/examples/07_pipeline --ranks=4
 *
 * Read next: docs/pipeline.md, pp/run.c. */
#include "examples/example.h"
#include "models/dt_models.h"
#include "pp/dt_pipeline.h"

enum { SAMPLES = 8, SEQ = 16, VOCAB = 64, HIDDEN = 32 };

static dt_status draw_all(int ranks)
{
    const dt_pp_rule *rule = NULL;
    for (int i = 0; (rule = dt_pp_rule_at(i)); i++) {
        dt_pp_schedule *s = NULL;
        dt_pp_timeline *t = NULL;
        if (ranks % rule->p_multiple != 0 || SAMPLES < rule->m_per_rank * ranks)
            continue; /* not legal for so many ranks */
        DT_TRY(dt_pp_schedule_create(rule->name, ranks, SAMPLES, 0, &s));
        DT_TRY(dt_pp_simulate(s, NULL, &t));
        (void)printf("%s: time %g\n", rule->name, t->makespan);
        DT_TRY(dt_pp_draw_text(s, t, 0, stdout));
        dt_pp_timeline_destroy(&t);
        dt_pp_schedule_destroy(&s);
    }
    return DT_OK;
}

/* Samples [lo, hi): token i is followed by i + 3. */
static dt_status tokens(dt_pipeline *p, int64_t lo, int64_t hi, int next, dt_tensor **out)
{
    int32_t host[SAMPLES * SEQ];
    const dt_layout *layout = NULL;
    for (int64_t i = lo * SEQ; i < hi * SEQ; i++)
        host[i - lo * SEQ] = (int32_t)((3 * i + next) % VOCAB);
    DT_TRY(dt_mesh_layout_text(dt_pipeline_mesh(p), DT_SHAPE(hi - lo, SEQ), "", &layout));
    DT_TRY(dt_distribute(layout, DT_I32, host, out));
    return DT_OK;
}

static dt_status read_tokens(void *arg, int64_t lo, int64_t hi, dt_tensor **ids,
                             dt_tensor **targets)
{
    if (ids) /* on the rank of the first stage */
        DT_TRY(tokens(arg, lo, hi, 0, ids));
    if (targets) /* on the rank of the last one */
        DT_TRY(tokens(arg, lo, hi, 3, targets));
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    (void)arg;
    const int ranks = dt_world_size(world);
    const dt_llama_config config = {VOCAB, HIDDEN, 48, ranks, 4, 4, 8, SEQ, .rope.theta = 1e4,
                                    .rms_norm_eps = 1e-5, .initializer_range = 0.1};
    const dt_model_facts facts = {.architecture = "LlamaForCausalLM"};
    const dt_pipeline_options options = {
        .chain = dt_model_chain(&facts), .hidden = HIDDEN, .boundary = ""};
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_pp_schedule *schedule = NULL;
    dt_pipeline *p = NULL;
    if (dt_world_rank(world) == 0)
        DT_TRY(draw_all(ranks));
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &(dt_mesh_options){.axes = {{"pp", -1}}},
                          &mesh));
    DT_TRY(dt_llama_create(&config, &model));
    DT_TRY(dt_pp_schedule_create("1f1b", ranks, SAMPLES, 0, &schedule));
    DT_TRY(dt_pipeline_split(&model, mesh, "pp", schedule, &options, &p));
    DT_TRY(dt_module_materialize(dt_pipeline_module(p), dt_pipeline_mesh(p), 42));
    dt_model_set_loss(dt_pipeline_stage(p, 0), SAMPLES * SEQ, 0); /* one stage a rank */

    double loss = 0;
    const dt_pipeline_pass pass = {
        .samples = SAMPLES, .at_once = 1, .seq_len = SEQ, .read = read_tokens, .arg = p};
    DT_TRY(dt_pipeline_run(p, &pass, &loss)); /* forward and backward; gradients are at home */
    const dt_counts c = dt_world_counts(world);
    (void)printf("rank %d: %d layer, %lld parameters, %lld sends, %d microbatches alive at most\n",
                 dt_world_rank(world), dt_model_nlayers(dt_pipeline_stage(p, 0)),
                 (long long)dt_module_count(dt_pipeline_module(p)),
                 (long long)c.calls[DT_CALL_SEND], dt_pipeline_peak_live(p));
    if (dt_world_rank(world) == ranks - 1)
        (void)printf("1f1b: loss %.5f\n", loss);
    dt_pp_schedule_destroy(&schedule);
    dt_pipeline_destroy(&p);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, body);
}
