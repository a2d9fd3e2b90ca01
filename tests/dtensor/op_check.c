/* tests/dtensor/op_check.c - operands, comparisons, and gradients against finite differences on one
 * rank.
 * Read next: tests/dtensor/op_sweep.c. */
#include "tests/dtensor/op_check_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPLICA_MAX = 1024 }; /* elements of a tensor whose replicas are compared */

/* ---- values ---- */

/* In (-1, 1), from three numbers (splitmix64). */
static double scramble(int64_t a, int64_t b, int64_t c)
{
    uint64_t z =
        (uint64_t)a * 0x9e3779b97f4a7c15u + (uint64_t)b * 0xd1b54a32d192ed03u + (uint64_t)c;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(int64_t)z * 0x1p-63;
}

double op_check_value(const op_check_spec *spec, int i, int64_t index)
{
    const double v = scramble(i + 1, index, 0);
    return op_is_float(spec, i) ? v : floor((v + 1) / 2 * (double)spec->below[i]);
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

/* The local array of operand i (or OP_DOUT + o) under an interned layout. Ranks that differ only on
 * R axes hold equal parts. */
static dt_status make_local(const op_check_spec *spec, int i, const dt_layout *layout,
                            dt_array *out)
{
    dt_mesh *mesh = dt_layout_mesh(layout);
    int64_t offset[DT_MAX_DIMS];
    const dt_shape local = dt_mesh_local(layout, offset);
    const dt_dtype dtype = op_is_float(spec, i) ? DT_F64 : DT_I32;
    DT_TRY(dt_array_create(dt_mesh_heap(mesh), dtype, local, DT_TAG_ACTIVATION, out));
    int ncorners;
    const int corner = partial_corner(layout, dt_mesh_coord(mesh), &ncorners);
    void *host = (void *)(uintptr_t)test_look(out);
    for (int64_t j = 0; j < dt_shape_count(local); j++) {
        const int64_t index = global_index(j, local, offset, layout->shape);
        double v = corner == 0 ? op_check_value(spec, i, index) : scramble(i + 1, index, corner);
        for (int other = 1; corner == 0 && other < ncorners; other++)
            v -= scramble(i + 1, index, other);
        if (dtype == DT_F64)
            ((double *)host)[j] = v;
        else
            ((int32_t *)host)[j] = (int32_t)v;
    }
    return dt_array_write(out, host, dt_shape_count(local));
}

dt_status op_check_operand(const op_check_spec *spec, int i, const dt_layout *layout,
                           dt_tensor **out)
{
    dt_array local = {0};
    DT_TRY(make_local(spec, i, layout, &local));
    const dt_status st = dt_from_array(layout, &local, out);
    dt_array_release(&local);
    DT_TRY(st);
    if (op_is_float(spec, i))
        dt_tensor_set_requires_grad(*out, true);
    return DT_OK;
}

/* ---- comparisons ---- */

dt_status op_check_layout(const dt_layout *got, const char *want)
{
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
    const bool compare = layout->partial && dt_array_count(local) > 0;
    for (uint8_t a = 0; compare && a < layout->grid->naxes; a++) {
        if (dt_layout_at(layout, a).kind != DT_REPLICATE)
            continue;
        dt_comm *comm;
        DT_TRY(dt_mesh_comm(dt_layout_mesh(layout), 1, &a, 0, &comm));
        const int n = (int)dt_array_count(local);
        const double *mine = test_look(local);
        double largest[REPLICA_MAX];
        TEST_THAT(n <= REPLICA_MAX, "%s: %d elements, limit %d", what, n, REPLICA_MAX);
        for (int j = 0; j < n; j++)
            largest[j] = mine[j];
        DT_TRY(dt_all_reduce_f64_sync(comm, largest, n, DT_REDUCE_MAX));
        for (int j = 0; j < n; j++)
            TEST_THAT(fabs(largest[j] - mine[j]) <= 1e-12, "%s: replicas differ on axis %d", what,
                      a);
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
        if (!(diff <= worst) && !isnan(worst)) {
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

/* ---- running the op ---- */

dt_status op_check_run(const op_check_spec *spec, dt_tape *tape, bool no_grad, dt_tensor *const *in,
                       dt_tensor **out)
{
    dt_tape_reset(tape, &(dt_tape_options){.no_grad = no_grad});
    spec->call(tape, in, out, spec->arg);
    return dt_tape_status(tape);
}

/* Backward from gradients of the outputs that are R where they may be, or P where the outputs are
 * R. */
dt_status op_check_backward(const op_check_spec *spec, dt_tape *tape, bool partial, dt_tensor **out)
{
    dt_local grads[DT_OP_MAX_OUT] = {{0}};
    dt_status st = DT_OK;
    for (int o = 0; o < op_outputs(spec) && st == DT_OK; o++) {
        const dt_layout *y = dt_tensor_layout(out[o]);
        dt_layout dy = dt_layout_dual(y);
        for (int a = 0; partial && a < y->grid->naxes; a++)
            if (dt_layout_at(y, a).kind == DT_REPLICATE)
                dy.partial = (uint8_t)(dy.partial | 1u << a);
        st = dt_mesh_layout(dt_layout_mesh(y), &dy, &grads[o].layout);
        if (st == DT_OK)
            st = make_local(spec, OP_DOUT + o, grads[o].layout, &grads[o].array);
    }
    if (st == DT_OK)
        st = dt_backward_from(tape, op_outputs(spec), out, grads);
    for (int o = 0; o < op_outputs(spec); o++)
        dt_array_release(&grads[o].array);
    return st;
}

/* ---- part 1: one rank ---- */

/* sum over outputs of dy * y, at the operands as they are now. */
static dt_status weighted(const op_check_spec *spec, dt_tape *tape, dt_tensor *const *in,
                          double *sum_out)
{
    dt_tensor *out[DT_OP_MAX_OUT];
    DT_TRY(op_check_run(spec, tape, true, in, out));
    double sum = 0;
    for (int o = 0; o < op_outputs(spec); o++) {
        const double *y = test_look(dt_tensor_local(out[o]));
        for (int64_t j = 0; j < dt_array_count(dt_tensor_local(out[o])); j++)
            sum += y[j] * op_check_value(spec, OP_DOUT + o, j);
    }
    *sum_out = sum;
    return DT_OK;
}

static dt_status set_element(const dt_array *a, int64_t at, double value)
{
    dt_array one = {a->storage, a->offset + at, DT_SHAPE(1), DT_F64};
    return dt_array_write(&one, &value, 1);
}

static dt_status check_differences(const op_reference *ref, dt_tape *tape, dt_tensor *const *in,
                                   int i)
{
    const double h = 1e-5;
    dt_array *x = dt_tensor_local(in[i]);
    for (int64_t j = 0; j < dt_array_count(x); j++) {
        const double was = ((const double *)test_look(x))[j];
        double above, below;
        DT_TRY(set_element(x, j, was + h));
        DT_TRY(weighted(ref->spec, tape, in, &above));
        DT_TRY(set_element(x, j, was - h));
        DT_TRY(weighted(ref->spec, tape, in, &below));
        DT_TRY(set_element(x, j, was));
        const double want = (above - below) / (2 * h);
        TEST_THAT(fabs(ref->grad[i][j] - want) <= 1e-8 * fmax(1, fabs(want)),
                  "%s: d(operand %d)[%lld] is %.12g, finite differences say %.12g", ref->spec->name,
                  i, (long long)j, ref->grad[i][j], want);
    }
    return DT_OK;
}

static double *copy_of(const dt_array *a)
{
    const size_t bytes = dt_array_bytes(a);
    double *copy = malloc(bytes + sizeof *copy);
    if (copy && bytes)
        memcpy(copy, test_look(a), bytes);
    return copy;
}

static dt_status check_naive(const op_reference *ref, dt_tensor *const *out)
{
    const op_check_spec *spec = ref->spec;
    double *in[DT_OP_MAX_IN] = {0}, *want[DT_OP_MAX_OUT] = {0};
    dt_status st = DT_OK;
    for (int i = 0; i < spec->nin; i++) {
        const int64_t n = dt_shape_count(spec->shape[i]);
        in[i] = calloc((size_t)n + 1, sizeof(double));
        for (int64_t j = 0; in[i] && j < n; j++)
            in[i][j] = op_check_value(spec, i, j);
    }
    for (int o = 0; o < op_outputs(spec); o++)
        want[o] = calloc((size_t)dt_shape_count(dt_tensor_shape(out[o])) + 1, sizeof(double));
    spec->naive((const double *const *)in, want, spec->arg);
    for (int o = 0; o < op_outputs(spec) && st == DT_OK; o++)
        st = op_check_equal(out[o], want[o], 1e-12, spec->name);
    for (int i = 0; i < DT_OP_MAX_IN; i++)
        free(in[i]);
    for (int o = 0; o < DT_OP_MAX_OUT; o++)
        free(want[o]);
    return st;
}

/* With only operand i wanting a gradient: what backward saves for the others must not be needed. */
static dt_status check_alone(const op_reference *ref, dt_tape *tape, dt_tensor *const *in, int i)
{
    const op_check_spec *spec = ref->spec;
    dt_tensor *out[DT_OP_MAX_OUT];
    for (int j = 0; j < spec->nin; j++) {
        dt_tensor_clear_grad(in[j]);
        dt_tensor_set_requires_grad(in[j], j == i);
    }
    DT_TRY(op_check_run(spec, tape, false, in, out));
    DT_TRY(op_check_backward(spec, tape, false, out));
    TEST_THAT(dt_tensor_grad(in[i])->array.storage, "%s: operand %d alone has no gradient",
              spec->name, i);
    const double *got = test_look(&dt_tensor_grad(in[i])->array);
    for (int64_t j = 0; j < dt_shape_count(spec->shape[i]); j++)
        TEST_THAT(got[j] == ref->grad[i][j],
                  "%s: d(operand %d)[%lld] alone is %.12g, with others %.12g", spec->name, i,
                  (long long)j, got[j], ref->grad[i][j]);
    return DT_OK;
}

static dt_status run_one_rank(op_reference *ref, dt_mesh *mesh, dt_tape *tape)
{
    const op_check_spec *spec = ref->spec;
    dt_tensor *in[DT_OP_MAX_IN], *out[DT_OP_MAX_OUT];
    for (int i = 0; i < spec->nin; i++) {
        const dt_layout *layout;
        DT_TRY(dt_mesh_layout_text(mesh, spec->shape[i], "", &layout));
        DT_TRY(op_check_operand(spec, i, layout, &in[i]));
    }
    DT_TRY(op_check_run(spec, tape, false, in, out));
    for (int o = 0; o < op_outputs(spec); o++)
        ref->out[o] = copy_of(dt_tensor_local(out[o]));
    if (spec->naive)
        DT_TRY(check_naive(ref, out));
    DT_TRY(op_check_backward(spec, tape, false, out));
    for (int i = 0; i < spec->nin; i++) {
        if (!op_is_float(spec, i))
            continue;
        TEST_THAT(dt_tensor_grad(in[i])->array.storage, "%s: operand %d has no gradient",
                  spec->name, i);
        ref->grad[i] = copy_of(&dt_tensor_grad(in[i])->array);
    }
    for (int i = 0; i < spec->nin; i++) {
        if (!op_is_float(spec, i))
            continue;
        DT_TRY(check_differences(ref, tape, in, i));
        DT_TRY(check_alone(ref, tape, in, i));
    }
    for (int i = 0; i < spec->nin; i++)
        dt_tensor_destroy(&in[i]);
    return DT_OK;
}

static dt_status one_rank_body(dt_world *world, void *arg)
{
    dt_mesh *mesh;
    dt_tape *tape;
    DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"axisA", 1}}},
                          &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(run_one_rank(arg, mesh, tape));
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* ---- both parts ---- */

static void release(op_reference *ref)
{
    for (int o = 0; o < DT_OP_MAX_OUT; o++)
        free(ref->out[o]);
    for (int i = 0; i < DT_OP_MAX_IN; i++)
        free(ref->grad[i]);
    free(ref->legal);
}

void op_check_gradients(const op_check_spec *spec)
{
    op_reference ref = {.spec = spec};
    test_ranks(1, one_rank_body, &ref);
    release(&ref);
}

void op_check(const op_check_spec *spec)
{
    op_reference ref = {.spec = spec};
    size_t choices = 1;
    for (int i = 0; i < spec->nin; i++)
        choices *= (size_t)spec->shape[i].ndim + 2;
    ref.legal = calloc(choices, sizeof *ref.legal);
    ck_assert_ptr_nonnull(ref.legal);
    test_ranks(1, one_rank_body, &ref);
    test_ranks(2, op_sweep_body, &ref);
    test_ranks(4, op_sweep_body, &ref);
    release(&ref);
}
