/* bench/trainer.h - training steps of a model on one rank or laid out on several, with random
 * weights and tokens: what bench/train_step.c and bench/parallel_step.c measure on the cpu and
 * bench/gpu.c on cuda. */
#pragma once

#include "base/dt_trace.h"
#include "nn/dt_module.h"
#include "optim/dt_optim.h"
#include "pp/dt_pipeline.h"

typedef struct trainer_shape {
    const char *name;
    bool llama;
    int64_t vocab, hidden, inner, layers, heads, kv_heads, batch, seq;
} trainer_shape;

/* Of those that are measured on the cpu; NULL: no such name. */
const trainer_shape *trainer_shape_named(const char *name);

/* What the ranks of the world do: shards (ZeRO-3), copies, tensor parallelism without and with
 * sequence parallelism, stages of a pipeline (1f1b, a microbatch a sample). One rank: any of them
 * but the last. */
typedef enum trainer_way {
    TRAINER_FSDP,
    TRAINER_REPLICATED,
    TRAINER_TP,
    TRAINER_SP,
    TRAINER_PP,
    TRAINER_NWAYS
} trainer_way;

/* Set s, dtype (of parameters in products; f32 where they are replicated), way, samples (of a step;
 * 0: those of s), split and, if the parts of a step are to be traced, trace. */
typedef struct trainer {
    const trainer_shape *s;
    dt_dtype dtype;
    trainer_way way;
    int64_t samples;
    const char *split; /* of a pipeline (dt_pipeline_options) */
    dt_trace *trace;
    dt_world *world;
    dt_mesh *mesh, *stage_mesh; /* of all ranks; of those that hold a stage, or all */
    dt_module *model;           /* this rank's */
    dt_pipeline *pipeline;      /* NULL but for TRAINER_PP */
    dt_optim *optim;
    dt_tape *tape;
    dt_values in;
} trainer;

DT_NODISCARD dt_status trainer_create(trainer *t, dt_world *world, dt_device device);
void trainer_destroy(trainer *t);
/* Forward, the loss to the host, backward, global norm and clip, AdamW. */
DT_NODISCARD dt_status trainer_step(trainer *t, float *loss);
/* Its parts; not of a pipeline. */
DT_NODISCARD dt_status trainer_forward(trainer *t, dt_tensor **loss_out);
DT_NODISCARD dt_status trainer_backward(trainer *t, dt_tensor *loss);
DT_NODISCARD dt_status trainer_update(trainer *t);
/* Useful FLOP of a step, of all ranks (not of a pipeline): per token 6 for each parameter that a
 * product uses, and 6 * hidden * seq a layer for attention, which is causal: half the square. */
double trainer_flops(const trainer *t);
