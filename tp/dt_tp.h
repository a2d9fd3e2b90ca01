/* tp/dt_tp.h - tensor, sequence and loss parallelism: a plan says where a module's parameters rest
 * and where tensors are at its borders, on the tensor-parallel axes alone. All else follows from
 * placements.
 *
 *     column parallel   w S(out): y S(last)   the input's gradient is P, so an `in` row "R" stands
 *                                             once at the sub-block's border: f of Megatron-LM
 *     row parallel      x, w S(k): y P        its `out` makes it R (all-reduce, g) or S(1)
 *                                             (reduce-scatter: sequence parallelism)
 *
 * Other axes keep what they have, so plans compose with data parallelism on the same mesh. A plan
 * is applied before recompute, fully_shard and dt_module_materialize.
 * Sources: Shoeybi et al. 2019 (Megatron-LM); Korthikanti et al. 2022 (sequence parallelism).
 * Read next: models/llama_plan.c, docs/tensor_parallel.md. */
#pragma once

#include "nn/dt_layers.h"

/* name, text: what it does to the parameters of a linear, an embedding or an lm_head */
#define DT_TP_STYLE_TABLE(X)                                                                       \
    X(BORDER, "border")               /* nothing: only `in` and `out` */                           \
    X(COLWISE, "colwise")             /* outputs split (an embedding's n; heads of a fused qkv) */ \
    X(COLWISE_OUTER, "colwise_outer") /* the same on the first of several axes: kv heads */        \
    X(ROWWISE, "rowwise")     /* inputs split (an embedding's rows); `out` defaults to "R" */      \
    X(SEQUENCE, "sequence")   /* all R; `in` defaults to "S(1)" */                                 \
    X(REPLICATE, "replicate") /* all R */

typedef enum dt_tp_style {
#define X(name, text) DT_TP_##name,
    DT_TP_STYLE_TABLE(X)
#undef X
} dt_tp_style;

/* A row of a plan. `pattern` is a path below the module; "*" and "?" match within one name of it.
 * `in` and `out` say, value by value and divided by commas, where tensors shall be on the axes of
 * the plan: "R"; "S(1)", "S(-1)" ...; "seq": S(1) under sequence parallelism, else R; "-" or a NULL
 * value: left alone, as are values past the list. NULL: the style's default, or nothing.
 * An `in` is always a node of the tape, also where nothing moves: its adjoint reduces the gradient
 * (f). SEQUENCE and `out` are one only where something changes. `out` of an lm_head gathers its
 * logits, also those of the loss; without it the loss is vocabulary-parallel. */
typedef struct dt_tp_rule {
    const char *pattern;
    dt_tp_style style;
    const char *in, *out;
} dt_tp_rule;

typedef struct dt_tp_plan {
    int nrules;
    const dt_tp_rule *rule;
    bool sequence;      /* what "seq" means */
    bool keep_gathered; /* see below */
    bool overlap;       /* see below */
    bool stage;         /* m is a part of the model (a pipeline stage): rows may match nothing */
} dt_tp_plan;

/* What an `in` gathers is not saved for backward but gathered again there (dt_tensor_regather):
 * under sequence parallelism activations then take 1/t of the memory, for two all-gathers a layer
 * more, unless keep_gathered.
 *
 * `overlap`, under sequence parallelism: linear layers communicate while they compute, in pieces
 * round a ring (dt_gather_linear, dt_linear_scatter). Columns gather their own input, so a BORDER's
 * `in` "R" does nothing: only linear layers may stand behind it. The same bytes, sent point to
 * point. */

/* dt_parallelize_module - apply a plan to the modules below m; changes it in place.
 *   in   axes   "tp", or a nest "tp_kv,tp_rep" of the same ranks (dt_tp_axes)
 * Collective: with `overlap`, over the axes; else no.
 * Cost: what dt_tp_print shows; for parameters none: they are not made yet.
 * Gradient: everything replicated over the axes whose gradient arises as P is reduced once a step
 * by dt_module_reduce_grads; nothing needs to be flagged.
 * Errors: DT_ERR_ARG for a pattern that matches nothing (lists near names), a module matched twice,
 * a style that the kind of module does not have, an unknown axis; DT_ERR_PLACEMENT for text that is
 * no placement, and a tied parameter placed in two ways; DT_ERR_ARG for `overlap` without
 * `sequence`; then nothing was changed. At the call: DT_ERR_ARG when a list has more
 * entries than the module takes values. */
DT_NODISCARD dt_status dt_parallelize_module(dt_module *m, dt_mesh *mesh, const char *axes,
                                             const dt_tp_plan *plan);

/* dt_tp_axes - the mesh axes for `tp` ranks: {"tp", tp}, or, where tp does not divide the kv heads
 * but does divide the query heads, {"tp_kv", g} and {"tp_rep", tp / g} with g = gcd(kv_heads, tp):
 * kv heads are split over tp_kv and replicated over tp_rep, so their compute and memory grow by no
 * more than tp / g.
 *   out  axis    two entries; the second has a NULL name if one is enough
 *        names   "tp" or "tp_kv,tp_rep", for dt_parallelize_module
 * Errors: DT_ERR_ARG when tp does not divide the query heads; lists the legal values. */
DT_NODISCARD dt_status dt_tp_axes(int64_t heads, int64_t kv_heads, int tp, dt_axis axis_out[2],
                                  const char **names_out);

/* dt_tp_print - what a parallelized module will do, before anything runs: a line a module with its
 * parameters' and its tensors' placements, its collectives forward and backward and their bytes.
 * A line starting with "!" names an activation gradient that stays P past a block, that is, outside
 * of every module with an `in`: an f is missing there.
 *   in   m    materialized on a meta mesh (with a fake world: of any size); for nothing else
 *        in   the input's shapes and layouts, tensors of the same mesh
 * Errors: DT_ERR_ARG for a mesh that is not meta; whatever the module's ops refuse. */
DT_NODISCARD dt_status dt_tp_print(dt_module *m, dt_mesh *mesh, const dt_values *in,
                                   void (*print)(void *arg, const char *line), void *arg);
