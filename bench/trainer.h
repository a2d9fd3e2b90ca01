/* bench/trainer.h - training steps of a model on one rank, with random weights and tokens: what
 * bench/train_step.c measures on the cpu and bench/gpu.c on cuda. */
#pragma once

#include "base/dt_trace.h"
#include "nn/dt_module.h"
#include "optim/dt_optim.h"

typedef struct trainer_shape {
    const char *name;
    bool llama;
    int64_t vocab, hidden, inner, layers, heads, kv_heads, batch, seq;
} trainer_shape;

/* Set s, dtype (of parameters in products) and, if the parts of a step are to be traced, trace. */
typedef struct trainer {
    const trainer_shape *s;
    dt_dtype dtype;
    dt_trace *trace;
    dt_mesh *mesh;
    dt_module *model;
    dt_optim *optim;
    dt_tape *tape;
    dt_values in;
} trainer;

DT_NODISCARD dt_status trainer_create(trainer *t, dt_world *world, dt_device device);
void trainer_destroy(trainer *t);
/* Forward, the loss to the host, backward, global norm and clip, AdamW. */
DT_NODISCARD dt_status trainer_step(trainer *t, float *loss);
/* Its parts. */
DT_NODISCARD dt_status trainer_forward(trainer *t, dt_tensor **loss_out);
DT_NODISCARD dt_status trainer_backward(trainer *t, dt_tensor *loss);
DT_NODISCARD dt_status trainer_update(trainer *t);
/* Useful FLOP of a step: per token 6 for each parameter that a product uses, and 6 * hidden * seq a
 * layer for attention, which is causal: half the square. */
double trainer_flops(const trainer *t);
