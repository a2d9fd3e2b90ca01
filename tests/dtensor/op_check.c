/* tests/dtensor/op_check.c - every op against finite differences and against one rank. */
#include "tests/dtensor/op_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYOUTS = 128, DOUT = 100 /* + o: stands for the gradient of output o */ };

/* What one rank computed; read by the ranks of the meshes. */
typedef struct reference {
    const op_check_spec *spec;
    double *out[DT_OP_MAX_OUT];
    double *grad[DT_OP_MAX_IN];
} reference;

static int outputs(const op_check_spec *spec)
{
    return spec->nout ? spec->nout : 1;
}

static bool is_float(const op_check_spec *spec, int i)
{
    return i >= DOUT || spec->below[i] == 0;
}

/* ---- values ---- */

/* In (-1, 1), from three numbers (splitmix64). */
static double scramble(int64_t a, int64_t b, int64_t c)
{
    uint64_t z = (uint64_t)a * 0x9e3779b97f4a7c15u + (uint64_t)b * 0xd1b54a32d192ed03u + (uint64_t)c;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(int64_t)z * 0x1p-63;
}

double op_check_value(const op_check_spec *spec, int i, int64_t index)
{
    const double v = scramble(i + 1, index, 0);
    return is_float(spec, i) ? v : floor((v + 1) / 2 * (double)spec->below[i]);
}

/* Global index of the local element j of a part of shape `local` at `offset`. */
static int64_t global_index(int64_t j, dt_shape local, const int64_t *offset, dt_shape global)
{
    int64_t index = 0, stride = 1;
    for (int d = local.ndim - 1; d >= 0; d--) {
        index += (offset[d] + j % local.dim[d]) * stride;
        stride *= global.dim[d];
        j /= local.dim[d];
    }
    return index;
}

/* My corner among the axes that are P, row-major, and how many corners there are. */
static int partial_corner(const dt_layout *layout, const int *coord, int *ncorners_out)
{
    int corner = 0, n = 1;
    for (int a = 0; a < layout->grid->naxes; a++) {
        if (!(layout->partial >> a & 1u))
            continue;
        corner = corner * layout->grid->size[a] + coord[a];
        n *= layout->grid->size[a];
    }
    *ncorners_out = n;
    return corner;
}

/* The local array of operand i (or DOUT + o) under an interned layout. Ranks that differ only on R axes hold equal parts. */
static dt_status make_local(const op_check_spec *spec, int i, const dt_layout *layout, dt_array *out)
{
    dt_mesh *mesh = dt_layout_mesh(layout);
    int64_t offset[DT_MAX_DIMS];
    const dt_shape local = dt_mesh_local(layout, offset);
    const dt_dtype dtype = is_float(spec, i) ? DT_F64 : DT_I32;
    DT_TRY(dt_array_create(dt_mesh_heap(mesh), dtype, local, DT_TAG_ACTIVATION, out));
    int ncorners;
    const int corner = partial_corner(layout, dt_mesh_coord(mesh), &ncorners);
    for (int64_t j = 0; j < dt_shape_count(local); j++) {
        const int64_t index = global_index(j, local, offset, layout->shape);
        double v = corner == 0 ? op_check_value(spec, i, index) : scramble(i + 1, index, corner);
        for (int other = 1; corner == 0 && other < ncorners; other++)
            v -= scramble(i + 1, index, other);
        if (dtype == DT_F64)
            ((double *)dt_array_data(out))[j] = v;
        else
            ((int32_t *)dt_array_data(out))[j] = (int32_t)v;
    }
    return DT_OK;
}

dt_status op_check_operand(const op_check_spec *spec, int i, const dt_layout *layout, dt_tensor **out)
{
    dt_array local = {0};
    DT_TRY(make_local(spec, i, layout, &local));
    const dt_status st = dt_from_array(layout, &local, out);
    dt_array_release(&local);
    DT_TRY(st);
    if (is_float(spec, i))
        dt_tensor_set_requires_grad(*out, true);
    return DT_OK;
}

/* ---- comparisons ---- */

dt_status op_check_layout(const dt_tensor *x, const char *want)
{
    const dt_layout *got = dt_tensor_layout(x);
    dt_layout parsed;
    char text[DT_LAYOUT_TEXT];
    DT_TRY(dt_layout_parse(got->grid, got->shape, want, &parsed));
    TEST_THAT(dt_layout_equal(got, &parsed), "got %s, want %s",
              dt_layout_print(got, text, sizeof text), want);
    return DT_OK;
}

/* R on an axis means equal arrays on its ranks, also where the tensor is P or S on other axes. */
static dt_status check_replicas(dt_tensor *x, const char *what)
{
    const dt_layout *layout = dt_tensor_layout(x);
    const dt_array *local = dt_tensor_local(x);
    for (uint8_t a = 0; layout->partial && a < layout->grid->naxes; a++) {
        if (dt_layout_at(layout, a).kind != DT_REPLICATE)
            continue;
        dt_comm *comm;
        DT_TRY(dt_mesh_comm(dt_layout_mesh(layout), 1, &a, 0, &comm));
        const double *mine = dt_array_data(local);
        for (int64_t j = 0; j < dt_array_count(local); j++) {
            double largest = mine[j];
            DT_TRY(dt_all_reduce_f64_sync(comm, &largest, 1, DT_REDUCE_MAX));
            TEST_THAT(fabs(largest - mine[j]) <= 1e-12, "%s: replicas differ on axis %d", what, a);
        }
    }
    return DT_OK;
}

dt_status op_check_equal(dt_tensor *x, const double *want, double tol, const char *what)
{
    const int64_t n = dt_shape_count(dt_tensor_shape(x));
    double *got = malloc((size_t)(n + 1) * sizeof *got);
    TEST_THAT(got, "memory");
    dt_status st = dt_tensor_read_sync(x, got);
    double worst = 0, largest = 1e-300;
    int64_t at = 0;
    for (int64_t j = 0; st == DT_OK && j < n; j++) {
        const double diff = fabs(got[j] - want[j]);
        if (!(diff <= worst)) {
            worst = diff;
            at = j;
        }
        largest = fmax(largest, fabs(want[j]));
    }
    if (st == DT_OK && !(worst <= tol * largest))
        st = DT_ERROR(DT_ERR_STATE, "%s: element %lld is %.17g, want %.17g", what, (long long)at,
                      got[at], want[at]);
    free(got);
    DT_TRY(st);
    return check_replicas(x, what);
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

/* ---- running the op ---- */

static dt_status call_op(const op_check_spec *spec, dt_tape *tape, bool no_grad, dt_tensor *const *in,
                         dt_tensor **out)
{
    dt_tape_reset(tape, &(dt_tape_options){.no_grad = no_grad});
    spec->call(tape, in, out, spec->arg);
    return dt_tape_status(tape);
}

/* Backward from gradients of the outputs that are R where they may be, or P where the outputs are R. */
static dt_status call_backward(const op_check_spec *spec, dt_tape *tape, bool partial, dt_tensor **out)
{
    dt_local grads[DT_OP_MAX_OUT] = {{0}};
    dt_status st = DT_OK;
    for (int o = 0; o < outputs(spec) && st == DT_OK; o++) {
        const dt_layout *y = dt_tensor_layout(out[o]);
        dt_layout dy = dt_layout_dual(y);
        for (int a = 0; partial && a < y->grid->naxes; a++)
            if (dt_layout_at(y, a).kind == DT_REPLICATE)
                dy.partial = (uint8_t)(dy.partial | 1u << a);
        st = dt_mesh_layout(dt_layout_mesh(y), &dy, &grads[o].layout);
        if (st == DT_OK)
            st = make_local(spec, DOUT + o, grads[o].layout, &grads[o].array);
    }
    if (st == DT_OK)
        st = dt_backward_from(tape, outputs(spec), out, grads);
    for (int o = 0; o < outputs(spec); o++)
        dt_array_release(&grads[o].array);
    return st;
}

static void clear_grads(const op_check_spec *spec, dt_tensor *const *in)
{
    for (int i = 0; i < spec->nin; i++)
        dt_tensor_clear_grad(in[i]);
}

/* ---- part 1: one rank ---- */

/* sum over outputs of dy * y, at the operands as they are now. */
static dt_status weighted(const op_check_spec *spec, dt_tape *tape, dt_tensor *const *in, double *sum_out)
{
    dt_tensor *out[DT_OP_MAX_OUT];
    DT_TRY(call_op(spec, tape, true, in, out));
    double sum = 0;
    for (int o = 0; o < outputs(spec); o++) {
        const double *y = dt_array_data(dt_tensor_local(out[o]));
        for (int64_t j = 0; j < dt_array_count(dt_tensor_local(out[o])); j++)
            sum += y[j] * op_check_value(spec, DOUT + o, j);
    }
    *sum_out = sum;
    return DT_OK;
}

static dt_status check_differences(const reference *ref, dt_tape *tape, dt_tensor *const *in, int i)
{
    const double h = 1e-5;
    double *x = dt_array_data(dt_tensor_local(in[i]));
    for (int64_t j = 0; j < dt_array_count(dt_tensor_local(in[i])); j++) {
        const double was = x[j];
        double above, below;
        x[j] = was + h;
        DT_TRY(weighted(ref->spec, tape, in, &above));
        x[j] = was - h;
        DT_TRY(weighted(ref->spec, tape, in, &below));
        x[j] = was;
        const double want = (above - below) / (2 * h);
        TEST_THAT(fabs(ref->grad[i][j] - want) <= 1e-8 * fmax(1, fabs(want)),
                  "%s: d(operand %d)[%lld] is %.12g, finite differences say %.12g", ref->spec->name, i,
                  (long long)j, ref->grad[i][j], want);
    }
    return DT_OK;
}

static double *copy_of(const dt_array *a)
{
    const size_t bytes = dt_array_bytes(a);
    double *copy = malloc(bytes + sizeof *copy);
    if (copy && bytes)
        memcpy(copy, dt_array_data(a), bytes);
    return copy;
}

static dt_status run_one_rank(reference *ref, dt_mesh *mesh, dt_tape *tape)
{
    const op_check_spec *spec = ref->spec;
    dt_tensor *in[DT_OP_MAX_IN], *out[DT_OP_MAX_OUT];
    for (int i = 0; i < spec->nin; i++) {
        const dt_layout *layout;
        DT_TRY(dt_mesh_layout_text(mesh, spec->shape[i], "", &layout));
        DT_TRY(op_check_operand(spec, i, layout, &in[i]));
    }
    DT_TRY(call_op(spec, tape, false, in, out));
    for (int o = 0; o < outputs(spec); o++)
        ref->out[o] = copy_of(dt_tensor_local(out[o]));
    DT_TRY(call_backward(spec, tape, false, out));
    for (int i = 0; i < spec->nin; i++) {
        if (!is_float(spec, i))
            continue;
        TEST_THAT(dt_tensor_grad(in[i])->array.storage, "%s: operand %d has no gradient", spec->name, i);
        ref->grad[i] = copy_of(&dt_tensor_grad(in[i])->array);
    }
    for (int i = 0; i < spec->nin; i++)
        if (is_float(spec, i))
            DT_TRY(check_differences(ref, tape, in, i));
    for (int i = 0; i < spec->nin; i++)
        dt_tensor_destroy(&in[i]);
    return DT_OK;
}

static dt_status one_rank_body(dt_world *world, void *arg)
{
    dt_mesh *mesh;
    dt_tape *tape;
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0},
                          &(dt_mesh_options){.axes = {{"axisA", 1}}}, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(run_one_rank(arg, mesh, tape));
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* ---- part 2: every placement ---- */

/* One operand under every layout of the mesh. */
typedef struct candidates {
    int n;
    dt_tensor *leaf[MAX_LAYOUTS];
    bool nested[MAX_LAYOUTS];  /* a dim is split by both axes ... */
    bool flipped[MAX_LAYOUTS]; /* ... the inner axis of the mesh outermost */
} candidates;

typedef struct sweep {
    const reference *ref;
    dt_mesh *mesh;
    dt_tape *tape;
    candidates operand[DT_OP_MAX_IN];
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

static dt_status add_candidate(sweep *s, int i, const dt_layout *layout, bool nested, bool flipped)
{
    candidates *c = &s->operand[i];
    const dt_layout *interned;
    TEST_THAT(c->n < MAX_LAYOUTS, "too many layouts of operand %d", i);
    DT_TRY(dt_mesh_layout(s->mesh, layout, &interned));
    DT_TRY(op_check_operand(s->ref->spec, i, interned, &c->leaf[c->n]));
    c->nested[c->n] = nested;
    c->flipped[c->n++] = flipped;
    return DT_OK;
}

static dt_status make_candidates(sweep *s, int i)
{
    const op_check_spec *spec = s->ref->spec;
    const dt_grid *grid = dt_mesh_grid(s->mesh);
    const int choices = spec->shape[i].ndim + (is_float(spec, i) ? 2 : 1);
    for (int a = 0; a < choices; a++) {
        for (int b = 0; b < (grid->naxes > 1 ? choices : 1); b++) {
            dt_layout layout = dt_layout_replicated(grid, spec->shape[i]);
            const bool nested = a > 0 && a == b && a <= spec->shape[i].ndim;
            place(&layout, 0, a);
            if (grid->naxes > 1)
                place(&layout, 1, b);
            DT_TRY(add_candidate(s, i, &layout, nested, false));
            if (!nested)
                continue;
            layout = dt_layout_replicated(grid, spec->shape[i]);
            place(&layout, 1, b);
            place(&layout, 0, a);
            DT_TRY(add_candidate(s, i, &layout, true, true));
        }
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

static dt_status check_accepted(sweep *s, dt_tensor *const *in, dt_tensor **out, bool partial)
{
    const op_check_spec *spec = s->ref->spec;
    char text[1024], what[1100];
    describe(s, in, text, sizeof text);
    const dt_status st = call_backward(spec, s->tape, partial, out);
    if (st != DT_OK && partial && spec->communicates) {
        TEST_THAT(strstr(dt_error_trace(), spec->name), "%s", text);
        dt_error_clear();
        clear_grads(spec, in);
        return DT_OK;
    }
    DT_TRY(st);
    const int64_t moved = dt_world_counts(dt_mesh_world(s->mesh)).total_calls;
    TEST_THAT(moved == 0 || spec->communicates, "%s moved data", text);
    for (int o = 0; o < outputs(spec); o++) {
        snprintf(what, sizeof what, "output %d of %s", o, text);
        DT_TRY(op_check_equal(out[o], s->ref->out[o], 1e-10, what));
    }
    for (int i = 0; i < spec->nin; i++) {
        snprintf(what, sizeof what, "gradient of operand %d of %s, dy %s", i, text, partial ? "P" : "R");
        if (is_float(spec, i))
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
        if (call_op(spec, s->tape, false, in, out) != DT_OK) {
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
    DT_TRY(check_placement(s, in, &accepted));
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
    TEST_THAT(s->accepted == want, "%s accepts %d placements, want %d", spec->name, s->accepted, want);
    TEST_THAT(s->flipped == s->nested, "%s accepts %d nests in mesh order, %d in the other", spec->name,
              s->nested, s->flipped);
    for (int i = 0; i < spec->nin; i++)
        for (int k = 0; k < s->operand[i].n; k++)
            dt_tensor_destroy(&s->operand[i].leaf[k]);
    return DT_OK;
}

static dt_status sweep_mesh(dt_world *world, const reference *ref, int axis_a, int axis_b, int want)
{
    const dt_mesh_options options = {.axes = {{"axisA", axis_a}, {axis_b ? "axisB" : NULL, axis_b}}};
    sweep *s = calloc(1, sizeof *s);
    TEST_THAT(s, "memory");
    s->ref = ref;
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &options, &s->mesh));
    DT_TRY(dt_tape_create(s->mesh, NULL, &s->tape));
    DT_TRY(run_sweep(s, want));
    dt_tape_destroy(&s->tape);
    dt_mesh_destroy(&s->mesh);
    free(s);
    return DT_OK;
}

static dt_status ranks_body(dt_world *world, void *arg)
{
    const reference *ref = arg;
    const op_check_spec *spec = ref->spec;
    if (dt_world_size(world) == 2)
        return sweep_mesh(world, ref, 2, 0, spec->accept);
    DT_TRY(sweep_mesh(world, ref, 4, 0, spec->accept_4 ? spec->accept_4 : spec->accept));
    return sweep_mesh(world, ref, 2, 2,
                      spec->accept_2x2 ? spec->accept_2x2 : spec->accept * spec->accept);
}

/* ---- both ---- */

static void release(reference *ref)
{
    for (int o = 0; o < DT_OP_MAX_OUT; o++)
        free(ref->out[o]);
    for (int i = 0; i < DT_OP_MAX_IN; i++)
        free(ref->grad[i]);
}

void op_check_gradients(const op_check_spec *spec)
{
    reference ref = {.spec = spec};
    test_ranks(1, one_rank_body, &ref);
    release(&ref);
}

void op_check(const op_check_spec *spec)
{
    reference ref = {.spec = spec};
    test_ranks(1, one_rank_body, &ref);
    test_ranks(2, ranks_body, &ref);
    test_ranks(4, ranks_body, &ref);
    release(&ref);
}
