/* fsdp/dt_fsdp.h - fully sharded data parallelism on placements, and plain replication.
 *
 * dt_fully_shard changes a module in place. Its parameters rest sharded over the data-parallel
 * axes (S(0) by default, inside of what tensor parallelism split: "S(0)@tp>dp_shard"), are
 * gathered before the module runs, freed after it, gathered again for its backward, and their
 * gradients are reduced to where the parameters rest:
 *
 *     rest     S(0)@dp_shard     what the optimizer sees
 *     use      R@dp_shard        what ops see, from unshard to reshard
 *     gradient P@dp_shard  ->    S(0)@dp_shard by one coalesced reduce-scatter a group
 *
 * Call it bottom-up, on every layer and then on the root; each call makes one group of the
 * parameters that no inner call has.
 * Sources: Zhao et al. 2023 (FSDP), Rajbhandari et al. 2020 (ZeRO). Read next: docs/fsdp.md,
 * fsdp/order.c (what happens when). */
#pragma once

#include "nn/dt_module.h"

/* When the gathered parameters are freed after forward. */
typedef enum dt_reshard {
    DT_RESHARD_DEFAULT, /* always, but for the root: its backward comes first */
    DT_RESHARD_ALWAYS,
    DT_RESHARD_NEVER, /* kept from forward to the end of backward */
    DT_RESHARD_STEP,  /* kept until dt_module_reduce_grads: one gather a step */
    DT_RESHARD_GROUP  /* to groups of `reshard_size` neighbours, who gather again for backward */
} dt_reshard;

/* When gradients are reduced. */
typedef enum dt_grad_reduce {
    DT_REDUCE_EACH,        /* after every backward of the group, shards and replicas */
    DT_REDUCE_SHARDS_EACH, /* shards so; replicas once, in dt_module_reduce_grads */
    DT_REDUCE_STEP         /* both once, in dt_module_reduce_grads */
} dt_grad_reduce;

typedef struct dt_fsdp_options {
    const char *replicate_axes; /* HSDP: axes over which shards are replicated; NULL: none */
    dt_reshard reshard;
    /* DT_RESHARD_GROUP: divides the ranks of the (one) shard axis; 1: NEVER; all: ALWAYS */
    int reshard_size;
    dt_grad_reduce reduce;
    /* Of parameters in use: bf16, f16; those stored narrower stay. f32 (0): as they are stored. */
    dt_dtype param_dtype;
    /* In which gradients are summed: f32 (0; f64 where parameters are) or bf16. */
    dt_dtype reduce_dtype;
    /* false: where param_dtype is not f32, float inputs of the group are cast to it, and outputs of
     * the root to output_dtype: f32 (0), or, of a pipeline's stage that is not the last, 16 bits */
    bool keep_input_dtype;
    dt_dtype output_dtype;
    int prefetch; /* groups gathered ahead: 0: 1, -1: none */
    /* Dim of p->shape that is sharded; negative: not sharded (stays as it is). NULL: dim 0. */
    int (*shard_dim)(const dt_param *p, void *arg);
    void *shard_dim_arg;
    /* Offload: the file, or memory of the host, in which shards rest but for the time of their
     * gather; NULL: where they are used. Optimizer state: dt_adamw_options.store. */
    dt_store *store;
} dt_fsdp_options;

/* dt_fsdp_zero - the policies of ZeRO by stage; optimizer state is sharded in all of them, as
 * parameters rest sharded. Per group:
 *   1   parameters and gradients stay whole until the end of the step: one all-gather and one
 *       reduce-scatter a step
 *   2   gradients are sharded after every backward: one all-gather a step, one reduce-scatter a
 *       microbatch
 *   3   (and any other value) parameters are freed after use too: two all-gathers (the root one)
 *       and one reduce-scatter a microbatch
 * docs/fsdp.md has the bytes. */
dt_fsdp_options dt_fsdp_zero(int stage);

/* dt_fully_shard - one group from the parameters at and below m that no inner call has.
 *   in   mesh   that the parameters live on
 *        axes   over which they are sharded: "dp_shard", or a nest "dp_shard,cp"
 * Before dt_module_materialize. On axes of size 1 nothing is ever gathered or reduced; param_dtype
 * still casts. The outermost call, on one module, makes the root: it must hold every group of the
 * model.
 * Cost: communicators, made here; a step makes none. Per pass of a group: one all-gather before
 * forward, one before backward if it was freed, one reduce-scatter after backward (docs/fsdp.md).
 * Collective: over the axes, the same calls on all their ranks.
 * Errors: DT_ERR_ARG for an axis the mesh lacks, a scalar parameter, a reshard_size that is no
 * factor, no parameters; DT_ERR_STATE for a module that was given before, a tied parameter whose
 * other holder is outside of the group (both are named). Nothing has changed then. The first
 * forward fails with DT_ERR_STATE without one root over all groups, or where parameters are not
 * materialized (the first is named). */
DT_NODISCARD dt_status dt_fully_shard(dt_module *m, dt_mesh *mesh, const char *axes,
                                      const dt_fsdp_options *options);
/* The same for several modules as one group, such as embedding, last norm and head: gathered when
 * the first of them runs. */
DT_NODISCARD dt_status dt_fully_shard_list(int n, dt_module *const *modules, dt_mesh *mesh,
                                           const char *axes, const dt_fsdp_options *options);

/* dt_fsdp_unshard begins to gather a group (finished at its first use, or by reshard); both act on
 * the group of m alone.
 * Errors: DT_ERR_STATE where m is NULL (destroyed), has no group or was not materialized. */
DT_NODISCARD dt_status dt_fsdp_unshard(dt_module *m);
DT_NODISCARD dt_status dt_fsdp_reshard(dt_module *m);
/* For the groups (and replicas) at and below m. Sync off: gradients accumulate where they arise,
 * whole, in reduce_dtype, until a backward with sync on or dt_module_reduce_grads. */
void dt_fsdp_set_grad_sync(dt_module *m, bool on);
/* Off: the groups stay gathered after backward too (several microbatches with one gather), until
 * dt_fsdp_reshard or dt_module_reduce_grads. */
void dt_fsdp_set_reshard_after_backward(dt_module *m, bool on);
/* Groups to gather ahead when m's group begins its forward (backward: its backward), instead of
 * the next ones in the order of the first step; n -1: by the order again. Errors: DT_ERR_STATE for
 * a module without a group, DT_ERR_ARG for one below another root. */
DT_NODISCARD dt_status dt_fsdp_set_prefetch(dt_module *m, bool backward, int n,
                                            dt_module *const *ahead);
/* dt_fsdp_reset - after a forward or backward that failed on all ranks: finish what is in flight,
 * free every copy, forget all gradients; the next step starts clean. Destroy or reset the tapes
 * first. */
DT_NODISCARD dt_status dt_fsdp_reset(dt_module *root);

/* dt_fsdp_schedule_print - what one forward, its backward and dt_module_reduce_grads do, in order,
 * by the options now in force and the order of groups that the first forward fixed: a line an
 * event, "gather", "wait", "forward", "free", "backward", "reduce" (begins) or "reduced" (has
 * arrived), then the group's first module. Traces have the same events (kind "fsdp").
 * Errors: DT_ERR_STATE before the first forward, within a step, for a module that is not below a
 * root. */
DT_NODISCARD dt_status dt_fsdp_schedule_print(dt_module *root,
                                              void (*print)(void *arg, const char *line),
                                              void *arg);

/* dt_replicate - data parallelism without sharding: gradients of buckets of parameters are
 * all-reduced over `axes` while backward still runs. dt_fsdp_set_grad_sync(m, false) puts that
 * off, to the next backward with sync on or (then in one call) dt_module_reduce_grads.
 *   in   bucket_bytes   a bucket is full when it has so many, of this rank; 0: 4 MiB
 * Cost: one all-reduce a bucket and backward. Errors: as dt_fully_shard. */
DT_NODISCARD dt_status dt_replicate(dt_module *m, dt_mesh *mesh, const char *axes,
                                    int64_t bucket_bytes);
