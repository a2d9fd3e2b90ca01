/* examples/train_config.h - the options of examples/train.c: one table that --help, the parser
 * and the printer read. */
#pragma once

#include "base/dt_options.h"
#include "checkpoint/dt_checkpoint.h"
#include "data/dt_data.h"
#include "models/dt_models.h"
#include "nn/dt_recompute.h"
#include "optim/dt_optim.h"

/* What the ends of documents do: nothing; no loss across them; attention and positions within a
 * document too. */
typedef enum train_documents {
    TRAIN_DOCUMENTS_NONE,
    TRAIN_DOCUMENTS_LOSS,
    TRAIN_DOCUMENTS_ATTENTION
} train_documents;

typedef struct train_config {
    dt_options *options;                                /* owns the strings below */
    const char *model_config, *model_init, *model_save; /* init, save: NULL for none */
    const char *data_path, *data_labels;
    dt_data_format data_format;
    bool data_blend, shuffle; /* blend: data_path is weights and paths */
    train_documents documents;
    int32_t end_token; /* -1: none */
    int64_t steps, seq_len, global_batch, micro_batch, loss_chunk;
    uint64_t seed;
    double max_norm;
    dt_adamw_options adamw;
    dt_schedule schedule;
    int dp_replicate, dp_shard, tp, pp;
    const char *pp_schedule; /* a name, or a CSV file */
    const char *pp_split;    /* dt_pipeline_options.split */
    int stages_per_rank;     /* 0: by schedule */
    bool sp, loss_parallel, tp_overlap; /* with tp */
    dt_recompute_policy recompute; /* of every layer */
    bool reshard_after_forward;
    int reshard_size; /* 0: not to groups */
    dt_device_kind device;
    dt_dtype param_dtype, reduce_dtype;
    bool f64;                /* everything, with param_dtype f32; for checks: no key */
    const char *offload_dir; /* of the files that the optimizer's state rests in; NULL: none */
    bool offload_host;       /* it rests in memory of the host */
    bool offload_params;     /* beside the optimizer's state */
    const char *checkpoint_dir;       /* NULL: none */
    dt_checkpoint_options checkpoint; /* but for what the run fills in */
    int64_t checkpoint_every, checkpoint_step; /* every 0: at the end only; step -1: the newest */
    bool checkpoint_resume, checkpoint_model_only;
    const char *checkpoint_exclude; /* NULL: nothing; else the names of the next: */
    bool new_optimizer, new_data, new_step; /* not from the checkpoint */
    int ranks; /* as threads of this process; 0: as launched */
    const char *eval_path; /* NULL: the part that eval_split holds out, or the end of data_path */
    double eval_split;
    int64_t eval_every, eval_steps; /* every 0: never */
    int64_t log_every;
    const char *log_json, *log_plot, *log_trace, *log_timeline, *log_tensorboard; /* NULL: none */
    double log_spike;   /* 0: not watched */
    int64_t log_layers; /* 0: never */
    bool log_params, log_plan;
    double peak_flops; /* of the machine for one rank; 0: measured */
} train_config;

/* Parse and check. *done: the command line asked for something that is finished now (--help,
 * --print-config), printed to `out` (NULL: this rank does not print). Errors: DT_ERR_ARG names
 * the key and what is legal. */
dt_status train_config_parse(int argc, char **argv, FILE *out, train_config *config_out,
                             bool *done);
void train_config_free(train_config *config);
/* What can only be checked when the number of ranks is known. */
dt_status train_config_check_ranks(const train_config *config, int nranks);
