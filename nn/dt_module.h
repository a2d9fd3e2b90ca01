/* nn/dt_module.h - modules: names, parameters, calls and hooks.
 *
 * A module is made on meta: it knows names and shapes, nothing is allocated. Composition changes it
 * in place, in this order:
 *
 *     create -> pipeline split -> parallelize -> recompute -> fully_shard -> materialize
 *            -> init or load -> optimizer
 *
 * Names are Hugging Face's and never change. Placements of parameters are attributes set by tp and
 * fsdp; a parameter that nobody placed is R on the mesh given to materialize. Read next:
 * nn/dt_layers.h. */
#pragma once

#include "array/dt_store.h"
#include "dtensor/ops/dt_ops.h"

typedef struct dt_module dt_module;

/* What modules take and give. */
enum { DT_MAX_VALUES = 8 };
typedef struct dt_values {
    int n;
    dt_tensor *value[DT_MAX_VALUES]; /* NULL: optional, left out */
} dt_values;

/* ---- parameters ---- */

typedef enum dt_init_kind { DT_INIT_ZEROS, DT_INIT_ONES, DT_INIT_NORMAL } dt_init_kind;

/* How a parameter starts: normal values have mean 0 and deviation std; element i of the file shape
 * is element i of the Philox sequence of (seed, name), so the values do not depend on the mesh. */
typedef struct dt_init {
    dt_init_kind kind;
    double std;
} dt_init;

typedef struct dt_param {
    char *name;               /* full, as in files: "model.layers.0.mlp.up_proj.weight" */
    dt_shape shape;           /* logical shape, as ops see it */
    /* shape in files over the same bytes; decides RNG indices and weight decay */
    dt_shape file_shape;
    dt_dtype dtype;
    dt_init init;
    bool frozen;              /* no gradient, no update */
    const dt_layout *layout;  /* where it rests; NULL: R on the mesh of materialize */
    /* a leaf, once materialized, placed as `layout`: what the optimizer updates */
    dt_tensor *tensor;
    /* what ops see, where that is another: fully_shard's gathered one; NULL: `tensor` */
    dt_tensor *use;
    int users;                /* modules that hold it: 2 when tied */
    /* another pipeline stage has the parameter too and owns it: counted and saved there */
    bool copy;
    /* who gathers and reduces it: a group of fully_shard or replicate; NULL: nobody */
    const void *owner;
    dt_store *store; /* where `tensor` rests while nobody uses it; NULL: in memory */
} dt_param;

/* ---- making modules ---- */

/* What kind of module: its name and how it runs. `state` is the kind's own struct, zeroed,
 * `state_bytes` long. */
typedef struct dt_module_kind {
    const char *name; /* "linear" */
    size_t state_bytes;
    dt_values (*forward)(dt_module *m, dt_tape *t, const dt_values *in);
} dt_module_kind;

DT_NODISCARD dt_status dt_module_create(const dt_module_kind *kind, dt_module **module_out);
/* Releases children, parameters and hooks. Accepts NULL inside. Only a root. */
void dt_module_destroy(dt_module **module);
void *dt_module_state(dt_module *m);
const char *dt_module_kind_name(const dt_module *m);

/* Add a child under a name ("layers", "0", "self_attn"); the parent owns it from then on.
 * Errors: DT_ERR_ARG for a name used twice; then the child is still the caller's. */
DT_NODISCARD dt_status dt_module_add(dt_module *m, const char *name, dt_module *child);
/* Add a parameter "weight"; file_shape NULL: the shape. Full names follow from the path when the
 * root is complete (dt_module_finish). */
DT_NODISCARD dt_status dt_module_add_param(dt_module *m, const char *name, dt_shape shape,
                                           const dt_shape *file_shape, dt_init init,
                                           dt_param **param_out);
/* Hold another module's parameter too: tied weights. It has one name, one tensor, one gradient. */
DT_NODISCARD dt_status dt_module_tie(dt_module *m, const char *name, dt_param *param);
/* Give every module its path and every parameter its full name. The root's own path is "". */
DT_NODISCARD dt_status dt_module_finish(dt_module *root);

/* ---- taking apart, on meta: pipeline stages ---- */

/* What a model that is a chain says of itself: paths of the modules before its layers, of the
 * module whose children are the layers, and of those behind. Lists end with NULL. */
enum { DT_CHAIN_ENDS = 4 };
typedef struct dt_chain {
    const char *first[DT_CHAIN_ENDS], *layers, *last[DT_CHAIN_ENDS];
} dt_chain;

typedef enum dt_take { DT_TAKE_NOT, DT_TAKE_WHOLE, DT_TAKE_INSIDE } dt_take;
typedef dt_take (*dt_module_taker)(const dt_module *m, void *arg);
/* dt_module_extract - a new tree with the names of m's. Modules below m that `take` wants whole
 * move into it; those of which it wants the inside are made again, empty. A forward must bear with
 * children that are missing. Errors: DT_ERR_STATE for an inside with parameters or hooks; then what
 * was moved is lost. */
DT_NODISCARD dt_status dt_module_extract(dt_module *m, dt_module_taker take, void *arg,
                                         dt_module **out);
/* Parameters that modules outside of this tree hold too become the tree's own. */
DT_NODISCARD dt_status dt_module_untie(dt_module *root);
/* One module over n trees that stay roots: for parameters, gradients, memory and the optimizer. It
 * owns them; roots[i] become NULL. */
DT_NODISCARD dt_status dt_module_bundle(int n, dt_module **roots, dt_module **bundle_out);

/* ---- looking ---- */

const char *dt_module_path(const dt_module *m); /* "model.layers.0" */
dt_module *dt_module_parent(const dt_module *m); /* NULL at the root */
/* How many modules at or below m, but not at or below `but` (may be NULL), hold a parameter;
 * *first_out (may be NULL, else set it to NULL before) becomes the first of them. */
int dt_module_holders(dt_module *m, const dt_param *param, const dt_module *but,
                      dt_module **first_out);
/* `path` is relative to m; "" is m; NULL if there is none. */
dt_module *dt_module_find(dt_module *m, const char *path);
int dt_module_nchildren(const dt_module *m);
dt_module *dt_module_child(dt_module *m, int i);
/* A parameter held by this module under a short name ("weight"), or NULL. */
dt_param *dt_module_param(dt_module *m, const char *name);
/* All parameters below m, each once, in order of first use; the array belongs to the module. */
dt_param *const *dt_module_params(dt_module *m, int *n_out);
int64_t dt_module_count(dt_module *m); /* elements of all parameters, tied ones once */
/* A line a module and parameter: path, kind, shape, layout, local shape. */
void dt_module_print(dt_module *m, void (*print)(void *arg, const char *line), void *arg);

/* ---- running ---- */

/* dt_module_call - run a module on a tape: path entered, scope opened, hooks, forward, hooks, scope
 * closed (temporaries that are neither returned nor saved are freed). Never NULL: failures are the
 * tape's. */
dt_values dt_module_call(dt_module *m, dt_tape *t, const dt_values *in);
dt_tensor *dt_module_call1(dt_module *m, dt_tape *t, dt_tensor *x);
/* Run a list of modules one after the other; each one's input goes as soon as nothing needs it. */
dt_tensor *dt_module_sequence(dt_module *const *modules, int n, dt_tape *t, dt_tensor *x);

/* ---- hooks ---- */

/* Transform hooks replace values; they run again in a recompute. post hooks run in reverse order of
 * adding. */
typedef dt_values (*dt_transform)(dt_module *m, dt_tape *t, const dt_values *values, void *arg);
DT_NODISCARD dt_status dt_module_add_transform(dt_module *m, dt_transform before,
                                               dt_transform after, void *arg,
                                               void (*free_arg)(void *arg));
/* Lifetime hooks: NULL entries are skipped. Backward ones fire when the walk reaches the call, if a
 * gradient did. `recompute`: this forward is a replay. */
typedef struct dt_lifetime {
    dt_status (*pre_forward)(dt_module *m, dt_tape *t, bool recompute, void *arg);
    dt_status (*post_forward)(dt_module *m, dt_tape *t, bool recompute, void *arg);
    dt_status (*pre_backward)(dt_module *m, dt_tape *t, void *arg);
    dt_status (*post_backward_input)(dt_module *m, dt_tape *t, void *arg);
    dt_status (*post_backward_weight)(dt_module *m, dt_tape *t, void *arg);
    void *arg;
    void (*free_arg)(void *arg);
} dt_lifetime;
DT_NODISCARD dt_status dt_module_add_lifetime(dt_module *m, const dt_lifetime *hooks);

/* ---- sharders ---- */

/* What fully_shard offers to those that may not include it (pipelining, dt_module_reduce_grads).
 * `arg` is the sharder's. */
typedef struct dt_sharder {
    /* gather the group's parameters and keep them so */
    dt_status (*unshard)(dt_module *m, void *arg);
    dt_status (*reshard)(dt_module *m, void *arg);            /* free them */
    /* off: gradients stay where they arise */
    void (*set_grad_sync)(dt_module *m, bool on, void *arg);
    /* finish every reduction of this group */
    dt_status (*reduce_grads)(dt_module *m, void *arg);
    /* forget gradients that are not at a parameter yet, those on their way too */
    void (*clear_grads)(dt_module *m, void *arg);
    /* make dt_param.use of the group, without bytes: for a rehearsal before the first unshard */
    dt_status (*announce)(dt_module *m, void *arg);
} dt_sharder;
void dt_module_set_sharder(dt_module *m, const dt_sharder *sharder, void *arg);
const dt_sharder *dt_module_sharder(const dt_module *m, void **arg_out); /* NULL: none */

/* ---- memory and gradients ---- */

/* dt_module_place - set the layout of every parameter below m whose name matches `pattern` ("*" and
 * "?" as in the shell). Before materialize. Errors: DT_ERR_ARG when nothing matches,
 * DT_ERR_PLACEMENT for an illegal layout. */
DT_NODISCARD dt_status dt_module_place(dt_module *m, dt_mesh *mesh, const char *pattern,
                                       const char *layout);
/* dt_module_materialize - allocate this rank's parts on the meshes' devices and fill them with
 * initial values. Unplaced parameters are R on `mesh`. Same values on any mesh.   Errors:
 * DT_ERR_NOMEM names the parameter. */
DT_NODISCARD dt_status dt_module_materialize(dt_module *m, dt_mesh *mesh, uint64_t seed);
/* Bytes of parameters that this rank holds by their layouts, also before materialize; all bytes
 * where not placed. */
int64_t dt_module_local_bytes(dt_module *m);
/* dt_module_reduce_grads - bring every gradient to its parameter's own placement, once a step:
 * sharders first, then what is left in one coalesced call per collective and axis set. Collective:
 * over the axes on which gradients are P.   Blocks: yes. */
DT_NODISCARD dt_status dt_module_reduce_grads(dt_module *m);
void dt_module_clear_grads(dt_module *m);
