/* dtensor/tape.c - the tape as an owner: its arena, tensors, scopes, module frames and errors.
 * Read next: dtensor/apply.c (how an op is run), dtensor/backward.c (the walk). */
#include "dtensor/tape_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 * 1024 };

typedef struct dti_block {
    struct dti_block *next;
    size_t used, bytes;
    _Alignas(16) char data[];
} dti_block;

void *dti_alloc(dt_tape *t, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    dti_block *b = t->block;
    if (!b || b->used + bytes > b->bytes) {
        b = t->spare;
        if (b && bytes <= b->bytes) {
            t->spare = b->next;
        } else {
            const size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
            b = malloc(sizeof *b + room);
            if (!b)
                return NULL;
            b->bytes = room;
        }
        b->used = 0;
        b->next = t->block;
        t->block = b;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    return memset(p, 0, bytes);
}

dt_tensor *dti_tensor(dt_tape *t, const dt_layout *layout)
{
    dt_tensor *x = dti_alloc(t, sizeof *x);
    if (!x || dt_grow((void **)&t->tensor, &t->tensor_capacity, t->ntensors + 1,
                      sizeof(dt_tensor *)) != DT_OK)
        return NULL;
    x->layout = layout;
    x->tape = t;
    t->tensor[t->ntensors++] = x;
    return x;
}

dti_node *dti_append(dt_tape *t, const char *name, int nin, dt_tensor *const *in, int nout,
                     dt_tensor *const *out, dti_backward backward)
{
    const size_t links = (size_t)(nin + nout) * sizeof(dt_tensor *);
    char *memory = dti_alloc(t, sizeof(dti_node) + links);
    if (!memory ||
        dt_grow((void **)&t->node, &t->node_capacity, t->nnodes + 1, sizeof(dti_node *)) != DT_OK) {
        return NULL;
    }
    dti_node *n = (dti_node *)(void *)memory;
    n->name = name;
    n->backward = backward;
    n->nin = nin;
    n->nout = nout;
    n->in = (dt_tensor **)(void *)(memory + sizeof(dti_node));
    n->out = n->in + nin;
    for (int i = 0; i < nin; i++)
        n->in[i] = in[i];
    for (int i = 0; i < nout; i++)
        n->out[i] = out[i];
    n->path = dt_tape_path(t);
    n->where = t->where;
    n->pair = -1;
    t->node[t->nnodes++] = n;
    return n;
}

/* ---- life ---- */

dt_status dt_tape_create(dt_mesh *mesh, const dt_tape_options *options, dt_tape **tape_out)
{
    dt_tape *t = calloc(1, sizeof *t);
    DT_REQUIRE(t, DT_ERR_NOMEM, "a tape");
    t->mesh = mesh;
    dt_tape_reset(t, options);
    *tape_out = t;
    return DT_OK;
}

static void release_node(dti_node *n)
{
    for (int i = 0; n->saved_in && i < n->nin; i++)
        dti_release(&n->saved_in[i]);
    for (int i = 0; n->saved_out && i < n->nout; i++)
        dti_release(&n->saved_out[i]);
    for (int k = 0; k < DT_OP_MAX_EXTRA; k++)
        dti_release(&n->extra[k]);
    if (n->again)
        dti_again_release(n->again);
}

void dt_tape_reset(dt_tape *t, const dt_tape_options *options)
{
    for (int64_t i = 0; i < t->nnodes; i++)
        release_node(t->node[i]);
    for (int64_t i = 0; i < t->ntensors; i++) {
        dti_release(&t->tensor[i]->local);
        dti_local_release(&t->tensor[i]->grad);
        t->tensor[i]->dropped = true; /* a handle that outlived the reset is told so */
    }
    while (t->nframes > 0)
        dt_tape_leave(t);
    t->drawn = NULL;
    while (t->block) {
        dti_block *b = t->block;
        t->block = b->next;
        b->next = t->spare;
        t->spare = b;
    }
    free(t->trace);
    t->trace = NULL;
    t->nnodes = t->ntensors = t->nscopes = 0;
    t->failed = NULL;
    t->status = DT_OK;
    t->walked = t->input_walked = t->unrecorded = false;
    t->parent = NULL;
    t->keep = t->take = NULL;
    t->where = "";
    t->options = options ? *options : (dt_tape_options){0};
}

static void free_blocks(dti_block *b)
{
    while (b) {
        dti_block *next = b->next;
        free(b);
        b = next;
    }
}

void dt_tape_destroy(dt_tape **tape)
{
    dt_tape *t = *tape;
    if (!t)
        return;
    dt_tape_reset(t, NULL);
    free_blocks(t->spare);
    free(t->node);
    free(t->tensor);
    free(t->scope);
    free(t->frame);
    free(t);
    *tape = NULL;
}

const dt_tape_options *dt_tape_get_options(const dt_tape *t)
{
    return &t->options;
}

dt_mesh *dt_tape_mesh(const dt_tape *t)
{
    return t->mesh;
}

int64_t dt_tape_nodes(const dt_tape *t)
{
    return t->nnodes;
}

dt_tape *(dt_tape_at)(dt_tape *t, const char *where)
{
    t->where = where;
    return t;
}

/* ---- errors ---- */

dt_status dt_tape_status(const dt_tape *t)
{
    if (t->status == DT_OK)
        return DT_OK;
    return dt_error_restore(t->status, t->trace ? t->trace : dt_status_string(t->status));
}

dt_status dt_tape_fail(dt_tape *t, dt_status st)
{
    if (t->status == DT_OK && st != DT_OK) {
        t->status = st;
        t->trace = strdup(dt_error_trace());
    }
    return st;
}

dt_tensor *dt_tape_failed(dt_tape *t)
{
    static dt_tensor out_of_memory = {.failed = true};
    if (!t->failed) {
        t->failed = dti_alloc(t, sizeof *t->failed);
        if (!t->failed)
            return &out_of_memory;
        t->failed->failed = true;
        t->failed->tape = t;
    }
    return t->failed;
}

bool dt_tensor_is_failed(const dt_tensor *x)
{
    return x->failed;
}

dt_status dti_tensor_status(const dt_tensor *x, const char *doing)
{
    if (x->failed && x->tape)
        DT_TRY(dt_tape_status(x->tape));
    DT_REQUIRE(!x->failed && !x->dropped, DT_ERR_STATE, "%s a tensor that %s", doing,
               x->failed ? "failed" : "was dropped");
    return DT_OK;
}

void dti_reason(dt_status st, dti_reason_text *reason)
{
    (void)snprintf(reason->text, sizeof reason->text, "%s", dt_error_trace());
    reason->what = reason->text;
    reason->place = "";
    char *end = strstr(reason->text, "\n  from ");
    if (end)
        *end = '\0';
    /* "file:line function: what"; other beginnings are of an op that failed inside of this one, or
     * of another rank, and say who it was. */
    char *colon = strstr(reason->text, ": "), *space = strchr(reason->text, ' ');
    if (colon && space && strcspn(reason->text, ":") < (size_t)(space - reason->text) &&
        strcspn(space + 1, " ") > (size_t)(colon - space - 1)) {
        *colon = '\0';
        reason->place = reason->text;
        reason->what = colon + 2;
    }
    char status[64];
    const int length = snprintf(status, sizeof status, " (%s)", dt_status_string(st));
    size_t used = strlen(reason->what);
    used -= used && reason->what[used - 1] == '\n';
    if (used >= (size_t)length && !memcmp(reason->what + used - length, status, (size_t)length))
        used -= (size_t)length;
    reason->what[used] = '\0';
}

dt_status dti_fail_at(dt_tape *t, dt_status st, const char *where, const char *path,
                      const char *what)
{
    dti_reason_text reason;
    dti_reason(st, &reason);
    char *text = NULL;
    if (asprintf(&text, "%s%s%s%s%s: %s\n  %s\n%s%s%s", where, *path ? " in " : "", path,
                 *where || *path ? ": " : "", what, dt_status_string(st), reason.what,
                 *reason.place ? "  from " : "", reason.place, *reason.place ? "\n" : "") < 0)
        return dt_tape_fail(t, st);
    (void)dt_error_restore(st, text);
    free(text);
    return dt_tape_fail(t, st);
}

dt_tensor *dti_fail(dt_tape *t, dt_status st, const char *op, int nin, dt_tensor *const *in)
{
    if (t->status != DT_OK)
        return dt_tape_failed(t);
    char operands[1024] = "", what[1200], text[DT_LAYOUT_TEXT], shape[DT_SHAPE_TEXT];
    size_t used = 0;
    for (int i = 0; i < nin && used < sizeof operands; i++) {
        if (in[i] && in[i]->layout)
            used +=
                (size_t)snprintf(operands + used, sizeof operands - used, "%s%s %s", i ? ", " : "",
                                 dt_shape_print(in[i]->layout->shape, shape, sizeof shape),
                                 dt_layout_print(in[i]->layout, text, sizeof text));
    }
    (void)snprintf(what, sizeof what, "op %s(%s)", op, operands);
    (void)dti_fail_at(t, st, t->where, dt_tape_path(t), what);
    return dt_tape_failed(t);
}

bool dti_usable(dt_tape *t, const char *op, int nin, dt_tensor *const *in)
{
    const dt_grid *grid = NULL;
    if (t->status != DT_OK)
        return false;
    for (int i = 0; i < nin; i++) {
        const dt_tensor *x = in[i];
        if (!x)
            continue;
        const char *wrong = NULL;
        if (x->failed) {
            wrong = x->tape && x->tape != t ? "failed on another tape, which has the error"
                                            : "is the failed tensor, though nothing failed";
        } else if (x->dropped) {
            wrong = "was dropped: its scope ended or its tape was reset; keep it";
        } else if (x->tape && x->tape != t) {
            wrong = "belongs to another tape";
        } else if (grid && x->layout->grid != grid) {
            wrong = "lives on another mesh than the operands before it";
        }
        if (wrong) {
            (void)dti_fail(t, DT_ERROR(DT_ERR_STATE, "operand %d %s", i, wrong), op, nin, in);
            return false;
        }
        grid = x->layout->grid;
    }
    return true;
}

bool dti_wants_grad(const dt_tape *t, int nin, dt_tensor *const *in, uint32_t no_grad_in)
{
    for (int i = 0; i < nin && !t->options.no_grad; i++) {
        if (in[i] && in[i]->requires_grad && !(no_grad_in >> i & 1))
            return true;
    }
    return false;
}

/* ---- scopes and module calls ---- */

void dt_scope_begin(dt_tape *t)
{
    if (dt_grow((void **)&t->scope, &t->scope_capacity, t->nscopes + 1, sizeof *t->scope) !=
        DT_OK) {
        (void)dt_tape_fail(t, DT_ERROR(DT_ERR_NOMEM, "a scope"));
        return;
    }
    t->scope[t->nscopes++] = t->ntensors;
}

void dt_tensor_drop(dt_tensor *x)
{
    if (!x->tape || x->failed)
        return;
    const dt_dtype dtype = x->local.dtype; /* backward still asks for it */
    dt_array_release(&x->local);
    x->local.dtype = dtype;
    x->dropped = true;
}

void dt_scope_end(dt_tape *t, int nkeep, dt_tensor *const *keep)
{
    if (t->nscopes == 0)
        return;
    for (int64_t i = t->scope[--t->nscopes]; i < t->ntensors; i++) {
        bool kept = false;
        for (int k = 0; k < nkeep; k++)
            kept = kept || keep[k] == t->tensor[i];
        if (!kept)
            dt_tensor_drop(t->tensor[i]);
    }
}

void dt_tape_enter(dt_tape *t, const char *path)
{
    if (dt_grow((void **)&t->frame, &t->frame_capacity, t->nframes + 1, sizeof *t->frame) !=
        DT_OK) {
        (void)dt_tape_fail(t, DT_ERROR(DT_ERR_NOMEM, "a module call"));
        return;
    }
    char *copy = dti_alloc(t, strlen(path) + 1); /* nodes keep pointing at it */
    t->frame[t->nframes++] = copy ? strcpy(copy, path) : NULL;
}

void dt_tape_leave(dt_tape *t)
{
    if (t->nframes > 0)
        t->nframes--;
}

const char *dt_tape_path(const dt_tape *t)
{
    const char *path = t->nframes > 0 ? t->frame[t->nframes - 1] : NULL;
    return path ? path : "";
}

int dt_tape_next_ordinal(dt_tape *t)
{
    const char *path = dt_tape_path(t);
    const struct dti_drawn *last = t->drawn;
    while (last && strcmp(last->path, path))
        last = last->before;
    struct dti_drawn *drawn = dti_alloc(t, sizeof *drawn);
    if (!drawn) {
        (void)dt_tape_fail(t, DT_ERROR(DT_ERR_NOMEM, "a dropout"));
        return 0;
    }
    *drawn = (struct dti_drawn){path, last ? last->ordinal + 1 : 0, t->drawn};
    t->drawn = drawn;
    return drawn->ordinal;
}
