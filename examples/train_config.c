/* examples/train_config.c - see examples/train_config.h. */
#include "examples/train_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(key, fallback, help)                            \
    {                                                         \
        key, DT_OPTION_INT, fallback, help, NULL, 1, INFINITY \
    }
#define COUNT0(key, fallback, help)                           \
    {                                                         \
        key, DT_OPTION_INT, fallback, help, NULL, 0, INFINITY \
    }
#define NUMBER(key, fallback, help)                             \
    {                                                           \
        key, DT_OPTION_FLOAT, fallback, help, NULL, 0, INFINITY \
    }
#define TEXT(key, fallback, help)                         \
    {                                                     \
        key, DT_OPTION_STRING, fallback, help, NULL, 0, 0 \
    }
#define SWITCH(key, fallback, help)                     \
    {                                                   \
        key, DT_OPTION_BOOL, fallback, help, NULL, 0, 0 \
    }
#define CHOICE(key, fallback, legal, help)                 \
    {                                                      \
        key, DT_OPTION_STRING, fallback, help, legal, 0, 0 \
    }

#define DEGREE(key, help)                                  \
    {                                                      \
        key, DT_OPTION_INT, "1", help, NULL, 1, MOST_RANKS \
    }

#define MOST_RANKS 16384

static const dt_option table[] = {
    TEXT("model.config", NULL, "Hugging Face config.json (llama, gpt2)"),
    TEXT("model.init", "random", "random, or a safetensors file or folder to start from"),
    TEXT("model.save", NULL, "folder for the trained model (config.json, model.safetensors)"),
    TEXT("data.path", NULL,
         "text (bytes as tokens), llm.c token files (a pattern: \"shard_*.bin\"), or Megatron's "
         ".idx"),
    TEXT("data.blend", NULL,
         "in place of data.path, sources and their weights: \"0.7 a.idx 0.3 b.bin\""),
    TEXT("data.labels", NULL, "int32 targets that replace the next tokens; -100 is ignored"),
    CHOICE("data.format", "auto", "auto|text|tokens|megatron", "what data.path is"),
    SWITCH("data.shuffle", "false", "samples in another order every round through the data"),
    CHOICE("data.documents", "none", "none|loss|attention",
           "loss: no targets across the ends of documents; attention: nor attention and positions"),
    {"data.end_token", DT_OPTION_INT, "-1",
     "token that ends a document; -1: Megatron's index tells where they end", NULL, -1, INT32_MAX},
    COUNT("train.steps", "100", "optimizer steps"),
    COUNT("train.seq_len", "256", "tokens of a sample"),
    COUNT("train.global_batch", "8", "samples of a step, on all ranks together"),
    COUNT0("train.micro_batch", "0",
           "samples of a data-parallel rank in one pass; 0: its whole share"),
    COUNT0("train.loss_chunk", "0", "tokens whose logits exist at once; 0: 1024"),
    COUNT0("train.seed", "0", "of initial weights and dropout"),
    NUMBER("train.max_norm", "1.0", "gradients are clipped to this norm; 0: not"),
    NUMBER("optim.lr", "1e-3", "peak learning rate"),
    {"optim.beta1", DT_OPTION_FLOAT, "0.9", "AdamW", NULL, 0, 1},
    {"optim.beta2", DT_OPTION_FLOAT, "0.95", "AdamW", NULL, 0, 1},
    NUMBER("optim.eps", "1e-8", "AdamW"),
    NUMBER("optim.weight_decay", "0.1", "AdamW, on tensors of two or more dims in files"),
    COUNT0("schedule.warmup_steps", "0", "steps of linear warm-up"),
    CHOICE("schedule.decay", "none", "none|linear|cosine|wsd", "what follows the warm-up"),
    {"schedule.min_ratio", DT_OPTION_FLOAT, "0", "the rate never falls below this part of the peak",
     NULL, 0, 1},
    COUNT0("schedule.decay_steps", "0", "wsd: last steps that decay; 0: a tenth"),
    DEGREE("parallel.dp_replicate", "ranks that hold the whole model and share the batch"),
    DEGREE(
        "parallel.dp_shard",
        "ranks that share the batch and hold shards of parameters, gradients and optimizer state"),
    DEGREE("parallel.tp", "tensor parallel ranks: they share every layer"),
    DEGREE("parallel.pp", "pipeline parallel ranks: each has some of the layers"),
    SWITCH("parallel.sp", "false",
           "sequence parallelism: activations between tp blocks are split too"),
    SWITCH("parallel.loss_parallel", "true",
           "with tp, the loss of a split vocabulary; false: of gathered logits"),
    SWITCH("parallel.tp_overlap", "false",
           "with sp, products run while their inputs and outputs move"),
    TEXT("parallel.schedule", "1f1b",
         "order of microbatches with pp: gpipe, 1f1b, interleaved, zb-h1, zbv ... "
         "(docs/pipeline.md), or "
         "a .csv file"),
    {"parallel.stages_per_rank", DT_OPTION_INT, "0", "stages that a rank of pp has; 0: by schedule",
     NULL, 0, MOST_RANKS},
    TEXT("parallel.split", "equal",
         "layers of stages: equal, cost, numbers such as 3,2,2, or names (docs/pipeline.md)"),
    SWITCH("parallel.reshard_after_forward", "true",
           "free gathered parameters until backward (ZeRO-3); false: keep them (ZeRO-2); with pp, "
           "where "
           "not given: false"),
    {"parallel.reshard_size", DT_OPTION_INT, "0",
     "keep parts in groups of so many dp_shard ranks until backward; 0: not", NULL, 0, MOST_RANKS},
    CHOICE("dtype.param", "f32", "f32|bf16|f16",
           "type of parameters in use; the optimizer's stay f32; f16: with a loss scale"),
    CHOICE("dtype.reduce", "f32", "f32|bf16", "type in which gradients are summed over ranks"),
    CHOICE("recompute", "none", "none|full|selective",
           "what backward makes again: nothing, layers, layers but for products and attention"),
    CHOICE("offload.what", "none", "none|optimizer|all",
           "what rests elsewhere between uses: the optimizer's state, and sharded parameters"),
    CHOICE("offload.to", "files", "files|host",
           "where: in files, or in memory of the host, on cuda pinned (cpu: where they are)"),
    TEXT("offload.dir", NULL, "folder for these files, one a rank; they go at the end"),
    TEXT("checkpoint.dir", NULL,
         "folder for checkpoints (docs/checkpoint.md): after the last step, on SIGUSR1, and on "
         "SIGTERM, which ends the run"),
    COUNT0("checkpoint.every", "0", "steps between checkpoints; 0: only those"),
    COUNT0("checkpoint.keep", "3", "how many stay; 0: all"),
    SWITCH("checkpoint.resume", "true", "go on from the newest good one in checkpoint.dir"),
    {"checkpoint.step", DT_OPTION_INT, "-1", "go on from this one; -1: the newest", NULL, -1,
     INFINITY},
    TEXT("checkpoint.exclude", NULL,
         "what it does not go on with, but anew: of optimizer, data, step (with commas)"),
    SWITCH("checkpoint.async", "false", "train on while they are written"),
    CHOICE("checkpoint.dtype", "f32", "f32|bf16|f16",
           "type of weights in model files; what it rounds is kept with the optimizer's state"),
    SWITCH("checkpoint.model_only", "false", "weights only: nothing to go on from"),
    {"checkpoint.file_bytes", DT_OPTION_SIZE, "5GB", "largest file of several tensors", NULL, 1,
     INFINITY},
    {"checkpoint.staging_bytes", DT_OPTION_SIZE, "0",
     "memory of a rank for saving; 0: 128 MiB, async: also what it writes", NULL, 0, INFINITY},
    COUNT0("eval.every", "0", "steps between evaluations; 0: none"),
    COUNT("eval.steps", "10", "batches of an evaluation"),
    TEXT(
        "eval.path", NULL,
        "data to evaluate on; none: what eval.split holds out, or else the end of data.path, which "
        "training meets too"),
    {"eval.split", DT_OPTION_FLOAT, "0",
     "part of the data, at its end, for evaluation and not for training", NULL, 0, 0.99},
    CHOICE("device", "cpu", "cpu|cuda", "where; the ranks of a machine share its devices out"),
    {"ranks", DT_OPTION_INT, "0", "run this many ranks as threads of one process; 0: as launched",
     NULL, 0, 1024},
    COUNT("log.every", "10", "steps between lines"),
    TEXT("log.json", NULL, "file for one JSON object a step"),
    SWITCH("log.params", "false", "norms of every gradient and weight in log.json"),
    SWITCH("log.plan", "false",
           "print every module's placements and collectives, with bytes, before step 1"),
    TEXT("log.plot", NULL, "SVG file for the loss curve"),
    TEXT("log.tensorboard", NULL, "folder for TensorBoard's event files"),
    COUNT0("log.layers", "0",
           "steps between tables of the gradient's norm in every layer; 0: none"),
    NUMBER("log.spike", "6",
           "tell of losses so many standard deviations above the mean of the last 128; 0: not"),
    TEXT("log.trace", NULL, "file for rank 0's trace events (Chrome trace JSON)"),
    TEXT("log.timeline", NULL,
         "SVG file for the last step of a pipeline: its schedule simulated and, below, measured"),
    NUMBER("log.peak_flops", "0",
           "FLOP/s of one rank's share of the machine, 0: measured; mfu = tokens/s x FLOP/token / "
           "peak, FLOP/token = 6 x (matmul parameters + layers x heads x head_dim x 2 x seq_len)"),
    {"help", DT_OPTION_COMMAND, NULL, "print this", NULL, 0, 0},
    {"print-config", DT_OPTION_COMMAND, NULL, "print the configuration that results", NULL, 0, 0},
};

/* The optimizer takes 0 for its defaults; who writes 0 means something else. */
static dt_status check_adamw(const dt_adamw_options *o)
{
    const struct {
        const char *key;
        double value;
    } above[] = {{"optim.beta1", o->beta1}, {"optim.beta2", o->beta2}, {"optim.eps", o->eps}};
    for (int i = 0; i < DT_COUNT(above); i++)
        DT_REQUIRE(above[i].value > 0, DT_ERR_ARG, "%s: 0 is not legal; legal: above 0",
                   above[i].key);
    return DT_OK;
}

/* Values that only make sense together. */
static dt_status check_together(const train_config *c)
{
    int64_t bytes;
    DT_REQUIRE(!__builtin_mul_overflow(c->global_batch, c->seq_len, &bytes) &&
                   !__builtin_mul_overflow(bytes, (int64_t)sizeof(int32_t), &bytes),
               DT_ERR_ARG,
               "train.global_batch=%lld x train.seq_len=%lld tokens are more than a step can have",
               (long long)c->global_batch, (long long)c->seq_len);
    DT_REQUIRE(
        c->pp == 1 || c->micro_batch > 0, DT_ERR_ARG,
        "parallel.pp=%d needs train.micro_batch of 1 or more: samples of a data-parallel rank "
        "in one pass through the pipeline",
        c->pp);
    DT_REQUIRE(
        c->eval_every == 0 || c->eval_path || c->eval_split > 0 || !(c->data_blend || c->shuffle),
        DT_ERR_ARG,
        "eval.every with data.blend or data.shuffle needs eval.path or eval.split: such data "
        "has no end to evaluate on");
    DT_REQUIRE(c->checkpoint_dir || c->checkpoint_every == 0, DT_ERR_ARG,
               "checkpoint.every=%lld needs checkpoint.dir, a folder",
               (long long)c->checkpoint_every);
    DT_REQUIRE(!c->log_timeline || c->pp > 1, DT_ERR_ARG,
               "log.timeline=%s draws a pipeline: it needs parallel.pp of 2 or more",
               c->log_timeline);
    DT_REQUIRE(!c->tp_overlap || c->sp, DT_ERR_ARG,
               "parallel.tp_overlap=true needs parallel.sp=true, or make it false");
    return DT_OK;
}

static dt_status fill_data(const dt_options *o, train_config *c)
{
    const char *path = dt_options_string(o, "data.path");
    const char *blend = dt_options_string(o, "data.blend");
    const char *documents = dt_options_string(o, "data.documents");
    DT_REQUIRE(path || blend, DT_ERR_ARG, "data.path is missing: a text or token file");
    DT_REQUIRE(!path || !blend, DT_ERR_ARG,
               "data.path and data.blend are both given; leave one out");
    c->data_path = path ? path : blend;
    c->data_blend = blend != NULL;
    c->data_labels = dt_options_string(o, "data.labels");
    DT_TRY(dt_data_format_parse(dt_options_string(o, "data.format"), &c->data_format));
    c->shuffle = dt_options_bool(o, "data.shuffle");
    c->documents = strcmp(documents, "none") == 0   ? TRAIN_DOCUMENTS_NONE
                   : strcmp(documents, "loss") == 0 ? TRAIN_DOCUMENTS_LOSS
                                                    : TRAIN_DOCUMENTS_ATTENTION;
    c->end_token = (int32_t)dt_options_int(o, "data.end_token");
    c->eval_path = dt_options_string(o, "eval.path");
    c->eval_split = dt_options_float(o, "eval.split");
    c->eval_every = dt_options_int(o, "eval.every");
    c->eval_steps = dt_options_int(o, "eval.steps");
    return DT_OK;
}

/* "optimizer,step" */
static dt_status fill_exclude(const char *text, train_config *c)
{
    const struct {
        const char *name;
        bool *anew;
    } part[] = {
        {"optimizer", &c->new_optimizer}, {"data", &c->new_data}, {"step", &c->new_step}};
    for (const char *at = text; at && *at; at += strspn(at, ",")) {
        const size_t n = strcspn(at, ",");
        bool *anew = NULL;
        for (int i = 0; i < DT_COUNT(part); i++)
            if (strlen(part[i].name) == n && strncmp(at, part[i].name, n) == 0)
                anew = part[i].anew;
        DT_REQUIRE(anew, DT_ERR_ARG,
                   "checkpoint.exclude: '%.*s'; legal: some of optimizer, data, step, with commas",
                   (int)n, at);
        *anew = true;
        at += n;
    }
    c->checkpoint_exclude = text;
    return DT_OK;
}

static dt_status fill_offload(const dt_options *o, train_config *c)
{
    const char *what = dt_options_string(o, "offload.what");
    const char *to = dt_options_string(o, "offload.to");
    c->offload_dir = dt_options_string(o, "offload.dir");
    c->offload_params = strcmp(what, "all") == 0;
    c->offload_host = strcmp(to, "host") == 0 && strcmp(what, "none") != 0;
    DT_REQUIRE(!c->offload_dir == (strcmp(what, "none") == 0 || c->offload_host), DT_ERR_ARG,
               "offload.what=%s, offload.to=%s %s; legal: offload.what=optimizer or all together "
               "with offload.dir or with offload.to=host, or none of them",
               what, to, c->offload_dir ? "with offload.dir" : "without offload.dir");
    return DT_OK;
}

static dt_status fill_checkpoint(const dt_options *o, train_config *c)
{
    c->checkpoint_dir = dt_options_string(o, "checkpoint.dir");
    c->checkpoint_every = dt_options_int(o, "checkpoint.every");
    c->checkpoint_step = dt_options_int(o, "checkpoint.step");
    c->checkpoint_resume = dt_options_bool(o, "checkpoint.resume");
    c->checkpoint_model_only = dt_options_bool(o, "checkpoint.model_only");
    DT_TRY(fill_exclude(dt_options_string(o, "checkpoint.exclude"), c));
    const int64_t keep = dt_options_int(o, "checkpoint.keep");
    c->checkpoint = (dt_checkpoint_options){
        .async = dt_options_bool(o, "checkpoint.async"),
        .keep = keep < INT32_MAX ? (int)keep : INT32_MAX,
        .file_bytes = dt_options_size(o, "checkpoint.file_bytes"),
        .staging_bytes = dt_options_size(o, "checkpoint.staging_bytes"),
    };
    return dt_dtype_parse(dt_options_string(o, "checkpoint.dtype"), &c->checkpoint.dtype);
}

static void fill_parallel(const dt_options *o, train_config *c)
{
    c->dp_replicate = (int)dt_options_int(o, "parallel.dp_replicate");
    c->dp_shard = (int)dt_options_int(o, "parallel.dp_shard");
    c->tp = (int)dt_options_int(o, "parallel.tp");
    c->pp = (int)dt_options_int(o, "parallel.pp");
    c->pp_schedule = dt_options_string(o, "parallel.schedule");
    c->pp_split = dt_options_string(o, "parallel.split");
    c->stages_per_rank = (int)dt_options_int(o, "parallel.stages_per_rank");
    c->sp = dt_options_bool(o, "parallel.sp");
    c->loss_parallel = dt_options_bool(o, "parallel.loss_parallel");
    c->tp_overlap = dt_options_bool(o, "parallel.tp_overlap");
    c->reshard_after_forward =
        dt_options_bool(o, "parallel.reshard_after_forward") &&
        (c->pp == 1 || dt_options_is_set(o, "parallel.reshard_after_forward"));
    c->reshard_size = (int)dt_options_int(o, "parallel.reshard_size");
}

static void fill_log(const dt_options *o, train_config *c)
{
    c->log_every = dt_options_int(o, "log.every");
    c->log_json = dt_options_string(o, "log.json");
    c->log_params = dt_options_bool(o, "log.params");
    c->log_plan = dt_options_bool(o, "log.plan");
    c->log_plot = dt_options_string(o, "log.plot");
    c->log_trace = dt_options_string(o, "log.trace");
    c->log_timeline = dt_options_string(o, "log.timeline");
    c->log_tensorboard = dt_options_string(o, "log.tensorboard");
    c->log_spike = dt_options_float(o, "log.spike");
    c->log_layers = dt_options_int(o, "log.layers");
    c->peak_flops = dt_options_float(o, "log.peak_flops");
}

static dt_status fill(const dt_options *o, train_config *c)
{
    DT_REQUIRE(dt_options_has(o, "model.config"), DT_ERR_ARG,
               "model.config is missing: the path of a Hugging Face config.json (train --help "
               "lists every key)");
    c->model_config = dt_options_string(o, "model.config");
    c->model_init = dt_options_string(o, "model.init");
    if (strcmp(c->model_init, "random") == 0)
        c->model_init = NULL;
    c->model_save = dt_options_string(o, "model.save");
    DT_TRY(fill_data(o, c));
    c->steps = dt_options_int(o, "train.steps");
    c->seq_len = dt_options_int(o, "train.seq_len");
    c->global_batch = dt_options_int(o, "train.global_batch");
    c->micro_batch = dt_options_int(o, "train.micro_batch");
    if (c->micro_batch > c->global_batch) /* the whole batch; a pipeline wants its number */
        c->micro_batch = dt_options_int(o, "parallel.pp") > 1 ? c->global_batch : 0;
    c->loss_chunk = dt_options_int(o, "train.loss_chunk");
    c->seed = (uint64_t)dt_options_int(o, "train.seed");
    c->max_norm = dt_options_float(o, "train.max_norm");
    c->adamw = (dt_adamw_options){.beta1 = dt_options_float(o, "optim.beta1"),
                                  .beta2 = dt_options_float(o, "optim.beta2"),
                                  .eps = dt_options_float(o, "optim.eps"),
                                  .weight_decay = dt_options_float(o, "optim.weight_decay")};
    c->schedule = (dt_schedule){.lr = dt_options_float(o, "optim.lr"),
                                .warmup_steps = dt_options_int(o, "schedule.warmup_steps"),
                                .total_steps = c->steps,
                                .min_ratio = dt_options_float(o, "schedule.min_ratio"),
                                .decay_steps = dt_options_int(o, "schedule.decay_steps")};
    DT_TRY(dt_decay_parse(dt_options_string(o, "schedule.decay"), &c->schedule.decay));
    fill_parallel(o, c);
    DT_TRY(dt_recompute_parse(dt_options_string(o, "recompute"), &c->recompute));
    DT_TRY(dt_dtype_parse(dt_options_string(o, "dtype.param"), &c->param_dtype));
    c->device = strcmp(dt_options_string(o, "device"), "cuda") == 0 ? DT_CUDA : DT_CPU;
    DT_TRY(dt_dtype_parse(dt_options_string(o, "dtype.reduce"), &c->reduce_dtype));
    DT_TRY(fill_offload(o, c));
    DT_TRY(fill_checkpoint(o, c));
    c->ranks = (int)dt_options_int(o, "ranks");
    fill_log(o, c);
    DT_TRY(check_adamw(&c->adamw));
    return check_together(c);
}

dt_status train_config_parse(int argc, char **argv, FILE *out, train_config *config_out, bool *done)
{
    train_config c = {0};
    DT_TRY(dt_options_parse(table, DT_COUNT(table), argc, (const char *const *)argv, &c.options));
    *done = dt_options_bool(c.options, "help") || dt_options_bool(c.options, "print-config");
    dt_status st = DT_OK;
    if (!*done)
        st = fill(c.options, &c);
    else if (out && dt_options_bool(c.options, "help"))
        dt_options_print_help(table, DT_COUNT(table), "train [CONFIG.json] [--key=value ...]", out);
    else if (out)
        st = dt_options_print_config(c.options, out);
    if (st != DT_OK || *done)
        dt_options_destroy(&c.options);
    *config_out = c;
    return st;
}

void train_config_free(train_config *config)
{
    dt_options_destroy(&config->options);
}

dt_status train_config_check_ranks(const train_config *c, int nranks)
{
    const int64_t product = (int64_t)c->dp_replicate * c->dp_shard * c->tp * c->pp;
    DT_REQUIRE(
        product == nranks, DT_ERR_ARG,
        "parallel.dp_replicate %d x dp_shard %d x tp %d x pp %d = %lld, but there %s %d rank%s; "
        "nearest: parallel.dp_replicate=%d with the others at 1, or start %lld ranks: "
        "--ranks=%lld, or tools/mpirun -n %lld",
        c->dp_replicate, c->dp_shard, c->tp, c->pp, (long long)product, nranks == 1 ? "is" : "are",
        nranks, nranks == 1 ? "" : "s", nranks, (long long)product, (long long)product,
        (long long)product);
    return DT_OK;
}
