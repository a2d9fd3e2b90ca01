/* tests/dtensor/op_sweep.c - an op under every placement of its operands, against one rank.
 * Read first: tests/dtensor/op_check.h. */
#include "tests/dtensor/op_check_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYOUTS = 128 };

/* One operand under every layout of the mesh. */
typedef struct candidates {
    int n;
    dt_tensor *leaf[MAX_LAYOUTS];
    int at[MAX_LAYOUTS][2];    /* number of the placement on each axis */
    bool nested[MAX_LAYOUTS];  /* a dim is split by both axes ... */
    bool flipped[MAX_LAYOUTS]; /* ... the inner axis of the mesh outermost */
} candidates;

typedef struct sweep {
    op_reference *ref;
    dt_mesh *mesh;
    dt_tape *tape;
    candidates operand[DT_OP_MAX_IN];
    int skipped;
    int accepted, nested, flipped; /* without flips; of these nested; all nested operands flipped */
} sweep;

/* Placement number k of an axis: R, S(0), S(1), ..., P. */
static void place(dt_layout *layout, int axis, int k)
{
    if (k == layout->shape.ndim + 1)
        layout->partial = (uint8_t)(layout->partial | 1u << axis);
    else if (k > 0)
        dt_layout_shard(layout, axis, k - 1);
}

/* Placements of operand i on one axis. */
static int placements(const op_check_spec *spec, int i)
{
    return spec->shape[i].ndim + (op_is_float(spec, i) ? 2 : 1);
}

/* a on axis 0, b on axis 1; flipped: axis 1 is placed first, so that it is outermost in a dim that
 * both split. */
static dt_status add_candidate(sweep *s, int i, int a, int b, bool flipped)
{
    candidates *c = &s->operand[i];
    const dt_grid *grid = dt_mesh_grid(s->mesh);
    const dt_layout *interned;
    dt_layout layout = dt_layout_replicated(grid, s->ref->spec->shape[i]);
    TEST_THAT(c->n < MAX_LAYOUTS, "too many layouts of operand %d", i);
    if (flipped)
        place(&layout, 1, b);
    place(&layout, 0, a);
    if (grid->naxes > 1 && !flipped)
        place(&layout, 1, b);
    DT_TRY(dt_mesh_layout(s->mesh, &layout, &interned));
    DT_TRY(op_check_operand(s->ref->spec, i, interned, &c->leaf[c->n]));
    c->at[c->n][0] = a;
    c->at[c->n][1] = b;
    c->nested[c->n] = grid->naxes > 1 && a == b && a > 0 && a <= layout.shape.ndim;
    c->flipped[c->n++] = flipped;
    return DT_OK;
}

static dt_status make_candidates(sweep *s, int i)
{
    const int choices = placements(s->ref->spec, i);
    const bool two = dt_mesh_grid(s->mesh)->naxes > 1;
    for (int a = 0; a < choices; a++)
        for (int b = 0; b < (two ? choices : 1); b++) {
            DT_TRY(add_candidate(s, i, a, b, false));
            if (s->operand[i].nested[s->operand[i].n - 1])
                DT_TRY(add_candidate(s, i, a, b, true));
        }
    return DT_OK;
}

/* "add([S(0)@axisA], [R])" */
static void describe(const sweep *s, dt_tensor *const *in, char *text, size_t size_bytes)
{
    const op_check_spec *spec = s->ref->spec;
    size_t n = (size_t)snprintf(text, size_bytes, "%s(", spec->name);
    for (int i = 0; i < spec->nin && n < size_bytes; i++) {
        char layout[DT_LAYOUT_TEXT];
        n += (size_t)snprintf(text + n, size_bytes - n, "%s%s", i ? ", " : "",
                              dt_layout_print(dt_tensor_layout(in[i]), layout, sizeof layout));
    }
    if (n < size_bytes)
        snprintf(text + n, size_bytes - n, ")");
}

static dt_status check_grad(dt_tensor *leaf, const double *want, double tol, const char *what)
{
    const dt_local *grad = dt_tensor_grad(leaf);
    TEST_THAT(grad->array.storage, "%s: no gradient arrived", what);
    dt_tensor *g;
    DT_TRY(dt_from_array(grad->layout, &grad->array, &g));
    const dt_status st = op_check_equal(g, want, tol, what);
    dt_tensor_destroy(&g);
    DT_TRY(st);
    return DT_OK;
}

static void clear_grads(const op_check_spec *spec, dt_tensor *const *in)
{
    for (int i = 0; i < spec->nin; i++)
        dt_tensor_clear_grad(in[i]);
}

static dt_status check_accepted(sweep *s, dt_tensor *const *in, dt_tensor **out, bool partial)
{
    const op_check_spec *spec = s->ref->spec;
    char text[1024], what[1100];
    describe(s, in, text, sizeof text);
    const dt_status st = op_check_backward(spec, s->tape, partial, out);
    if (st != DT_OK && partial && spec->communicates) {
        TEST_THAT(strstr(dt_error_trace(), spec->name), "%s", text);
        dt_error_clear();
        clear_grads(spec, in);
        return DT_OK;
    }
    DT_TRY(st);
    const int64_t moved = dt_world_counts(dt_mesh_world(s->mesh)).total_calls;
    TEST_THAT(moved == 0 || spec->communicates, "%s moved data", text);
    for (int o = 0; o < op_outputs(spec); o++) {
        snprintf(what, sizeof what, "output %d of %s", o, text);
        DT_TRY(op_check_equal(out[o], s->ref->out[o], 1e-10, what));
    }
    for (int i = 0; i < spec->nin; i++) {
        snprintf(what, sizeof what, "gradient of operand %d of %s, dy %s", i, text,
                 partial ? "P" : "R");
        if (op_is_float(spec, i))
            DT_TRY(check_grad(in[i], s->ref->grad[i], 1e-10, what));
    }
    clear_grads(spec, in);
    return DT_OK;
}

static dt_status check_placement(sweep *s, dt_tensor *const *in, bool *accepted_out)
{
    const op_check_spec *spec = s->ref->spec;
    dt_tensor *out[DT_OP_MAX_OUT];
    for (int partial = 0; partial < 2; partial++) {
        dt_world_reset_counts(dt_mesh_world(s->mesh));
        if (op_check_run(spec, s->tape, false, in, out) != DT_OK) {
            char text[1024];
            describe(s, in, text, sizeof text);
            TEST_THAT(dt_tensor_is_failed(out[0]), "%s", text);
            TEST_THAT(strstr(dt_error_trace(), spec->name) && strstr(dt_error_trace(), "axis"),
                      "%s: the refusal names no op or axis: %s", text, dt_error_trace());
            dt_error_clear();
            *accepted_out = false;
            return DT_OK;
        }
        DT_TRY(check_accepted(s, in, out, partial));
    }
    *accepted_out = true;
    return DT_OK;
}

/* The operands' placements on one axis as one number. */
static int code(const sweep *s, const int *choice, int axis)
{
    int n = 0;
    for (int i = 0; i < s->ref->spec->nin; i++)
        n = n * placements(s->ref->spec, i) + s->operand[i].at[choice[i]][axis];
    return n;
}

static bool skip(sweep *s, const int *choice)
{
    const bool two = dt_mesh_grid(s->mesh)->naxes > 1;
    const bool legal =
        !two || (s->ref->legal[code(s, choice, 0)] && s->ref->legal[code(s, choice, 1)]);
    return !legal && s->skipped++ % (getenv("DT_FULL") ? 16 : 256) != 0;
}

static dt_status check_choice(sweep *s, const int *choice)
{
    dt_tensor *in[DT_OP_MAX_IN];
    bool any_nested = false, any_flipped = false, all_flipped = true, accepted;
    for (int i = 0; i < s->ref->spec->nin; i++) {
        const candidates *c = &s->operand[i];
        in[i] = c->leaf[choice[i]];
        any_nested |= c->nested[choice[i]];
        any_flipped |= c->flipped[choice[i]];
        all_flipped &= c->nested[choice[i]] == c->flipped[choice[i]];
    }
    if (skip(s, choice))
        return DT_OK;
    DT_TRY(check_placement(s, in, &accepted));
    if (dt_mesh_size(s->mesh) == 2 && dt_mesh_rank(s->mesh) == 0)
        s->ref->legal[code(s, choice, 0)] = accepted;
    s->accepted += accepted && !any_flipped;
    s->nested += accepted && !any_flipped && any_nested;
    s->flipped += accepted && any_flipped && all_flipped;
    return DT_OK;
}

static dt_status run_sweep(sweep *s, int want)
{
    const op_check_spec *spec = s->ref->spec;
    int choice[DT_OP_MAX_IN + 1] = {0};
    for (int i = 0; i < spec->nin; i++)
        DT_TRY(make_candidates(s, i));
    while (choice[spec->nin] == 0) {
        DT_TRY(check_choice(s, choice));
        int i = 0;
        while (i < spec->nin && ++choice[i] == s->operand[i].n)
            choice[i++] = 0;
        choice[spec->nin] = i == spec->nin;
    }
    TEST_THAT(s->accepted == want, "%s accepts %d placements, want %d", spec->name, s->accepted,
              want);
    TEST_THAT(s->flipped == s->nested, "%s accepts %d nests in mesh order, %d in the other",
              spec->name, s->nested, s->flipped);
    for (int i = 0; i < spec->nin; i++)
        for (int k = 0; k < s->operand[i].n; k++)
            dt_tensor_destroy(&s->operand[i].leaf[k]);
    return DT_OK;
}

static dt_status sweep_mesh(dt_world *world, op_reference *ref, int axis_a, int axis_b, int want)
{
    const dt_mesh_options options = {
        .axes = {{"axisA", axis_a}, {axis_b ? "axisB" : NULL, axis_b}}};
    sweep *s = calloc(1, sizeof *s);
    TEST_THAT(s, "memory");
    s->ref = ref;
    DT_TRY(dt_mesh_create(world, test_device(world), &options, &s->mesh));
    DT_TRY(dt_tape_create(s->mesh, NULL, &s->tape));
    DT_TRY(run_sweep(s, want));
    dt_tape_destroy(&s->tape);
    dt_mesh_destroy(&s->mesh);
    free(s);
    return DT_OK;
}

dt_status op_sweep_body(dt_world *world, void *arg)
{
    op_reference *ref = arg;
    const op_check_spec *spec = ref->spec;
    if (dt_world_size(world) == 2)
        return sweep_mesh(world, ref, 2, 0, spec->accept);
    DT_TRY(sweep_mesh(world, ref, 4, 0, spec->accept_4 ? spec->accept_4 : spec->accept));
    return sweep_mesh(world, ref, 2, 2,
                      spec->accept_2x2 ? spec->accept_2x2 : spec->accept * spec->accept);
}

/* ---- single rows ---- */

typedef struct row_list {
    const op_check_row *row;
    int n;
} row_list;

static dt_status check_row(dt_mesh *mesh, dt_tape *tape, const op_check_row *row)
{
    const op_check_spec *spec = row->spec;
    dt_tensor *in[DT_OP_MAX_IN], *out[DT_OP_MAX_OUT];
    for (int i = 0; i < spec->nin; i++) {
        const dt_layout *layout;
        DT_TRY(dt_mesh_layout_text(mesh, spec->shape[i], row->in[i], &layout));
        DT_TRY(op_check_operand(spec, i, layout, &in[i]));
    }
    dt_world_reset_counts(dt_mesh_world(mesh));
    DT_TRY(op_check_run(spec, tape, false, in, out));
    if (row->out)
        DT_TRY(op_check_layout(dt_tensor_layout(out[0]), row->out));
    DT_TRY(op_check_backward(spec, tape, false, out));
    TEST_THAT(dt_world_counts(dt_mesh_world(mesh)).total_calls == 0, "%s moved data", spec->name);
    for (int i = 0; i < spec->nin; i++) {
        if (row->grad[i])
            DT_TRY(op_check_layout(dt_tensor_grad(in[i])->layout, row->grad[i]));
        dt_tensor_destroy(&in[i]);
    }
    return DT_OK;
}

static dt_status rows_body(dt_world *world, void *arg)
{
    const row_list *list = arg;
    dt_mesh *mesh;
    dt_tape *tape;
    DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"axisA", 4}}},
                          &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    for (int k = 0; k < list->n; k++) {
        const dt_status st = check_row(mesh, tape, &list->row[k]);
        TEST_THAT(st == DT_OK, "row %d of %s: %s", k, list->row[k].spec->name, dt_error_trace());
    }
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

void op_check_rows(const op_check_row *rows, int n)
{
    test_ranks(4, rows_body, &(row_list){rows, n});
}
