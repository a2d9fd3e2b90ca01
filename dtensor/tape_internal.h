/* dtensor/tape_internal.h - what the files of this folder share: the tensor, the tape and its
 * nodes. */
#pragma once

#include "dtensor/dt_op.h"

typedef struct dti_node dti_node;

struct dt_tensor {
    const dt_layout *layout;
    dt_array local;
    dt_tape *tape; /* owner; NULL: a leaf, owned by the caller or a module */
    dt_local grad; /* leaf: accumulated over tapes; else: what has arrived so far in this walk */
    char *name;    /* leaves only */
    bool requires_grad;
    bool wide_grad;   /* dt_tensor_set_wide_grad */
    bool weight_side; /* a parameter, or made from one by unary ops: its gradient may wait */
    bool failed, dropped;
    dti_node *made_by; /* the redistribute that backward runs again (regather.c), or NULL */
};

/* A rule applied to given layouts; cached by the mesh. */
typedef struct dti_rule {
    int nout;
    const dt_layout *out[DT_OP_MAX_OUT];
    uint8_t zeroed[DT_OP_MAX_IN], summed[DT_OP_MAX_IN];
    const dt_layout *grad[DT_OP_MAX_IN]; /* declared by dt_local_map; NULL: derived */
} dti_rule;

/* A result that a selective recompute keeps: an op's output with its extras, or a redistribute's.
 * */
typedef struct dti_kept_result {
    const char *name;
    const dt_layout *layout;
    dt_array out, extra[DT_OP_MAX_EXTRA];
} dti_kept_result;

typedef struct dti_kept {
    dti_kept_result *result; /* in order of running */
    int64_t n, capacity, taken;
} dti_kept;

/* What a node "recompute" has beside its saved inputs. */
typedef struct dti_again {
    dt_recomputed call;
    const struct dti_drawn *drawn; /* when the call began */
    dti_kept kept;
    dt_tape *tape; /* of the second run; NULL until the walk arrives */
    /* of the second run; in: leaves themselves, stand-ins for tensors of the first tape */
    dt_tensor **in, *out[DT_RECOMPUTED_MAX_OUT];
} dti_again;

/* What a node does when the walk reaches it: from out[j]->grad to dti_deliver(in[i], ...), for the
 * inputs in `need`. */
typedef dt_status (*dti_backward)(dt_tape *t, dti_node *n, uint32_t need);

struct dti_node {
    const char *name;
    dti_backward backward;
    int nin, nout;
    dt_tensor **in, **out;
    const char *path, *where;
    /* ops */
    const dt_op *op;
    const void *attr;
    const dti_rule *rule;
    dt_array *saved_in, *saved_out; /* nin, nout entries; storage NULL where not saved; or NULL */
    dt_array extra[DT_OP_MAX_EXTRA];
    dti_again *again; /* nodes "recompute" (replay.c), else NULL */
    /* markers */
    bool is_marker, reached;
    int pair; /* begin markers: index of the end marker; else -1 */
    dt_marker marker;
    void *marker_arg;
};

struct dt_tape {
    dt_tape_options options;
    dt_mesh *mesh;
    dti_node **node;
    int64_t nnodes, node_capacity;
    int64_t walk_at;    /* node that the walk of backward is at */
    dt_tensor **tensor; /* every tensor it owns, in order of creation */
    int64_t ntensors, tensor_capacity;
    int64_t *scope; /* start of each open scope in `tensor` */
    int64_t nscopes, scope_capacity;
    const char **frame; /* paths of open module calls */
    int64_t nframes, frame_capacity;
    /* Dropouts so far, the last one first; never changed, so that a second run can go on from
     * where the first one began. */
    const struct dti_drawn {
        const char *path; /* of its module */
        int ordinal;
        const struct dti_drawn *before;
    } * drawn;
    struct dti_block *block, *spare; /* arena, newest first; blocks to use again */
    dt_tensor *failed;
    dt_status status;
    char *trace; /* of the first error */
    const char *where;
    bool walked, input_walked;
    dt_tape *parent; /* of a second run: the tape whose walk runs it; else NULL */
    bool unrecorded; /* first run of what will be recomputed: tensors are as ever, but no nodes */
    /* selective: where results go in a first run; where they come from in a second */
    dti_kept *keep, *take;
};

/* Zeroed memory that lives until the tape is reset; NULL when there is none. */
void *dti_alloc(dt_tape *t, size_t bytes);
/* A new tensor of the tape with an unset local array; NULL when there is no memory. */
dt_tensor *dti_tensor(dt_tape *t, const dt_layout *layout);
/* Append a node; NULL when there is no memory. */
dti_node *dti_append(dt_tape *t, const char *name, int nin, dt_tensor *const *in, int nout,
                     dt_tensor *const *out, dti_backward backward);
/* Fail the tape with the thread's trace and say which op it was; gives the failed tensor. */
dt_tensor *dti_fail(dt_tape *t, dt_status st, const char *op, int nin, dt_tensor *const *in);

/* tally.c: after an op's function, for the tape's tally. */
void dti_tally(dt_op_call *c, bool back);
/* The same for any place: "where in path: what: <status>", then the reason, "to mend: ..." where
 * the trace has it, and the place in the library that found it, each on its own line. */
dt_status dti_fail_at(dt_tape *t, dt_status st, const char *where, const char *path,
                      const char *what);
/* The thread's trace taken apart: what was wrong, without the status `st`, and "file:line function"
 * that said so ("" if none). */
typedef struct dti_reason_text {
    char text[3000];
    char *what;
    const char *place;
} dti_reason_text;
void dti_reason(dt_status st, dti_reason_text *reason);
/* DT_OK if x can be used; else the first error of its tape, or "<doing> a tensor that was dropped".
 */
dt_status dti_tensor_status(const dt_tensor *x, const char *doing);
/* True if the op can run: no operand failed, was dropped or is of another tape or mesh; else the
 * tape has failed. */
bool dti_usable(dt_tape *t, const char *op, int nin, dt_tensor *const *in);
bool dti_wants_grad(const dt_tape *t, int nin, dt_tensor *const *in, uint32_t no_grad_in);
/* Do nodes get appended now? */
static inline bool dti_records(const dt_tape *t)
{
    return !t->options.no_grad && !t->unrecorded;
}

/* Run an op under a rule that is already known (dt_op_apply_n looks it up; dt_local_map declares
 * it). */
void dti_run(dt_tape *t, const dt_op *op, const void *attr, const dti_rule *rule, int nin,
             dt_tensor *const *in, dt_tensor **out);

/* A call as ops see it, and what the dispatcher keeps behind it. */
enum { DTI_MAX_SCRATCH = 4 };
typedef struct dti_call {
    dt_op_call c; /* first: the functions for ops cast back */
    dt_mesh *mesh;
    dt_array scratch[DTI_MAX_SCRATCH];
    int nscratch;
} dti_call;
/* One type for all float operands, i32 for ids; and what the op makes of it. */
dt_status dti_result_dtype(const dt_op *op, const void *attr, int nin, dt_tensor *const *in,
                           dt_dtype *out);
/* Does this op see f32 in place of `dtype`? */
bool dti_widens(const dt_op *op, const dt_mesh *mesh, dt_dtype dtype);
/* Are its functions called there? On meta only for what they send; in a rehearsal not even so. */
bool dti_is_called(const dt_op *op, const dt_mesh *mesh);
/* Set the parts of a call that are read before they are written; the rest of the large struct
 * stays as it is. */
void dti_call_begin(dti_call *k, dt_tape *t, const dt_op *op, const void *attr, int nin, int nout);
/* DT_EXPLAIN's line of an op: layouts, path and where of `c`, as one write. */
void dti_explain(const dt_world *world, const dt_op_call *c, const char *name);
/* "layers.0.mlp at main.c:30": who asked for a move, for DT_EXPLAIN and time-outs. Returns buf. */
enum { DTI_LABEL_TEXT = 160 };
const char *dti_label(const char *path, const char *where, bool backward, char buf[DTI_LABEL_TEXT]);
void dti_call_release(dti_call *k); /* in, out, din, dout, extra, scratch */
dt_status dti_op_backward(dt_tape *t, dti_node *n, uint32_t need);
/* Input i as the gradients in `need` see it: saved, or made again; borrowed. Collective if made
 * again. */
dt_status dti_saved_input(dti_node *n, int i, uint32_t need, dt_array **out);

/* Most arrays of a call or a node are unset: skip those quickly. */
static inline void dti_release(dt_array *a)
{
    if (a->storage)
        dt_array_release(a);
}

/* Add a gradient to a tensor; takes g's reference over. R + P is P. */
dt_status dti_deliver(dt_tensor *x, dt_local *g);
/* The array in another dtype. */
dt_status dti_recast(dt_array *a, dt_dtype dtype, dt_tag tag);
/* R -> P on the axes of `partial` where x is not P yet: rank 0 keeps the value, others take zero.
 * */
dt_status dti_make_partial(dt_local *x, uint8_t partial, dt_tag tag);
/* Is this rank at 0 on every axis of `axes`? */
bool dti_holds_value(const dt_layout *layout, uint8_t axes);
void dti_local_release(dt_local *x);
/* Has a gradient arrived at one of its outputs? */
bool dti_has_gradient(const dti_node *n);
/* Visit all nodes from the last to the first. */
dt_status dti_walk(dt_tape *t, dt_walk walk);

/* ---- recomputation (replay.c) ---- */

/* The visit of a node "recompute". */
dt_status dti_visit_again(dt_tape *t, dti_node *n, dt_walk walk);
void dti_again_release(dti_again *a);
/* A selective first run keeps a result (extra: DT_OP_MAX_EXTRA arrays, or NULL); others do not. */
dt_status dti_keep(dt_tape *t, const char *name, const dt_layout *layout, const dt_array *out,
                   const dt_array *extra);
/* In its second run: the result kept of this place, whose arrays the caller takes over; otherwise
 * NULL: compute. */
dt_status dti_take(dt_tape *t, const char *name, const dt_layout *layout,
                   dti_kept_result **result_out);
void dti_kept_release(dti_kept *k);
