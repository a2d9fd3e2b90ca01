/* tests/dtensor/test_ops_golden.c - every op golden of tests/golden/ops.json (PyTorch), outputs and
 * gradients, each role within its own tolerance. The folder is the program's argument. */
#include "base/dt_json.h"
#include "dtensor/ops/dt_ops.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROLES = 3 };

static const char *folder = "tests/golden";

/* ---- the tensors' file ---- */

typedef struct file {
    char *bytes;
    const char *data; /* first byte after the header */
    json_t *header, *cases;
} file;

static void read_files(file *f)
{
    char path[600];
    snprintf(path, sizeof path, "%s/ops.json", folder);
    ck_ok(dt_json_load(path, &f->cases));
    snprintf(path, sizeof path, "%s/ops.safetensors", folder);
    FILE *in = fopen(path, "rb");
    ck_assert_msg(in, "cannot read %s", path);
    ck_assert(fseek(in, 0, SEEK_END) == 0);
    const size_t size = (size_t)ftell(in);
    f->bytes = malloc(size);
    rewind(in);
    ck_assert(f->bytes && fread(f->bytes, 1, size, in) == size);
    fclose(in);
    uint64_t header;
    memcpy(&header, f->bytes, sizeof header);
    ck_ok(dt_json_parse(f->bytes + 8, header, path, &f->header));
    f->data = f->bytes + 8 + header;
}

/* One role of a case: its bytes and shape. */
typedef struct role {
    const void *data;
    dt_dtype dtype;
    dt_shape shape;
} role;

static role find_role(const file *f, const json_t *golden, const char *group, const char *name)
{
    const json_t *entry = json_object_get(json_object_get(golden, group), name);
    ck_assert_msg(entry, "no %s in %s", name, group);
    const json_t *tensor =
        json_object_get(f->header, json_string_value(json_object_get(entry, "tensor")));
    const json_t *shape = json_object_get(tensor, "shape"),
                 *at = json_object_get(tensor, "data_offsets");
    role r = {.data = f->data + json_integer_value(json_array_get(at, 0)),
              .shape.ndim = (int)json_array_size(shape)};
    ck_ok(dt_dtype_parse(json_string_value(json_object_get(tensor, "dtype")), &r.dtype));
    for (int d = 0; d < r.shape.ndim; d++)
        r.shape.dim[d] = json_integer_value(json_array_get(shape, (size_t)d));
    return r;
}

/* ---- the ops ---- */

typedef struct attributes {
    double eps, theta;
    int64_t valid;
} attributes;

typedef dt_tensor *(*call)(dt_tape *t, dt_tensor **in, const attributes *a);

static dt_tensor *call_rmsnorm(dt_tape *t, dt_tensor **in, const attributes *a)
{
    return dt_rmsnorm(t, in[0], in[1], a->eps);
}
static dt_tensor *call_layernorm(dt_tape *t, dt_tensor **in, const attributes *a)
{
    return dt_layernorm(t, in[0], in[1], in[2], a->eps);
}
static dt_tensor *call_softmax(dt_tape *t, dt_tensor **in, const attributes *a)
{
    (void)a;
    return dt_softmax(t, in[0]);
}
static dt_tensor *call_silu(dt_tape *t, dt_tensor **in, const attributes *a)
{
    (void)a;
    return dt_silu(t, in[0]);
}
static dt_tensor *call_gelu(dt_tape *t, dt_tensor **in, const attributes *a)
{
    (void)a;
    return dt_gelu(t, in[0], DT_GELU_TANH);
}
static dt_tensor *call_swiglu(dt_tape *t, dt_tensor **in, const attributes *a)
{
    (void)a;
    return dt_swiglu(t, in[0], in[1]);
}
static dt_tensor *call_rope(dt_tape *t, dt_tensor **in, const attributes *a)
{
    return dt_rope(t, in[0], in[1], &(dt_rope_options){.theta = a->theta});
}
static dt_tensor *call_attention(dt_tape *t, dt_tensor **in, const attributes *a)
{
    (void)a;
    return dt_attention(t, in[0], in[1], in[2], NULL);
}
static dt_tensor *call_embedding(dt_tape *t, dt_tensor **in, const attributes *a)
{
    (void)a;
    return dt_embedding(t, in[0], in[1]);
}
static dt_tensor *call_cross_entropy(dt_tape *t, dt_tensor **in, const attributes *a)
{
    return dt_cross_entropy(t, in[0], in[1], &(dt_cross_entropy_options){.valid = a->valid});
}
static dt_tensor *call_linear(dt_tape *t, dt_tensor **in, const attributes *a)
{
    (void)a;
    return dt_linear(t, in[0], in[1], in[2]);
}
static dt_tensor *call_conv1d(dt_tape *t, dt_tensor **in, const attributes *a)
{
    (void)a;
    return dt_linear_in_out(t, in[0], in[1], in[2]);
}

static const struct {
    const char *op;
    call call;
    const char *input[MAX_ROLES]; /* roles of the operands, in order */
    const char *output;
    int cases;
} ops[] = {
    {"rmsnorm", call_rmsnorm, {"x", "weight"}, "y", 4},
    {"layernorm", call_layernorm, {"x", "weight", "bias"}, "y", 3},
    {"softmax", call_softmax, {"x"}, "y", 3},
    {"silu", call_silu, {"x"}, "y", 2},
    {"gelu_tanh", call_gelu, {"x"}, "y", 2},
    {"swiglu", call_swiglu, {"gate", "up"}, "y", 2},
    {"rope", call_rope, {"x", "positions"}, "y", 4},
    {"attention", call_attention, {"q", "k", "v"}, "y", 8},
    {"embedding", call_embedding, {"ids", "weight"}, "y", 1},
    {"cross_entropy", call_cross_entropy, {"logits", "targets"}, "loss", 4},
    {"linear", call_linear, {"x", "weight", "bias"}, "y", 3},
    {"linear_nobias", call_linear, {"x", "weight"}, "y", 1},
    {"conv1d", call_conv1d, {"x", "weight", "bias"}, "y", 1},
    {"adamw", NULL, {NULL}, NULL, 2},          /* in tests/optim */
    {"clip_grad_norm", NULL, {NULL}, NULL, 2}, /* in tests/optim */
};

/* ---- one case ---- */

typedef struct context {
    const file *f;
    const json_t *golden; /* the case at hand */
    int index;            /* of its op in `ops` */
    bool swap;            /* stored as [B, T, H, D], the ops take [B, H, T, D] */
    dt_mesh *mesh;
    dt_tape *tape;
} context;

/* Exchange dims 1 and 2; elements of 4 bytes. The caller frees. */
static void *swapped(const void *src, dt_shape s)
{
    const uint32_t *in = src;
    uint32_t *out = malloc((size_t)dt_shape_count(s) * sizeof *out);
    int64_t at = 0;
    for (int64_t b = 0; b < s.dim[0]; b++)
        for (int64_t j = 0; j < s.dim[2]; j++)
            for (int64_t i = 0; i < s.dim[1]; i++)
                for (int64_t d = 0; d < s.dim[3]; d++)
                    out[at++] = in[((b * s.dim[1] + i) * s.dim[2] + j) * s.dim[3] + d];
    return out;
}

static dt_status make_leaf(const context *x, const role *r, dt_tensor **out)
{
    const bool swap = x->swap && r->shape.ndim == 4;
    dt_shape shape = r->shape;
    if (swap) {
        shape.dim[1] = r->shape.dim[2];
        shape.dim[2] = r->shape.dim[1];
    }
    const dt_layout *layout;
    DT_TRY(dt_mesh_layout_text(x->mesh, shape, "", &layout));
    void *copy = swap ? swapped(r->data, r->shape) : NULL;
    const dt_status st = dt_distribute(layout, r->dtype, swap ? copy : r->data, out);
    free(copy);
    DT_TRY(st);
    if (dt_dtype_is_float(r->dtype))
        dt_tensor_set_requires_grad(*out, true);
    return DT_OK;
}

static dt_status compare(const context *x, const char *group, const char *name, dt_array *got)
{
    const role want = find_role(x->f, x->golden, group, name);
    const double tolerance =
        json_number_value(json_object_get(json_object_get(x->golden, "tolerance"), name));
    const bool swap = x->swap && want.shape.ndim == 4;
    const int64_t n = dt_shape_count(want.shape);
    TEST_THAT(got->storage && dt_array_count(got) == n && tolerance > 0, "%s", name);
    void *copy = swap ? swapped(want.data, want.shape) : NULL;
    const double worst = test_max_diff(test_look(got), swap ? copy : want.data, n);
    free(copy);
    TEST_THAT(worst <= tolerance, "%s %s: differs by %g, limit %g",
              json_string_value(json_object_get(x->golden, "id")), name, worst, tolerance);
    return DT_OK;
}

static attributes read_attributes(const context *x)
{
    const json_t *a = json_object_get(x->golden, "attrs");
    attributes out = {.eps = json_number_value(json_object_get(a, "eps")),
                      .theta = json_number_value(json_object_get(a, "theta"))};
    if (strcmp(ops[x->index].output, "loss") == 0) {
        const role targets = find_role(x->f, x->golden, "inputs", "targets");
        for (int64_t i = 0; i < dt_shape_count(targets.shape); i++)
            out.valid += ((const int32_t *)targets.data)[i] != -100;
    }
    return out;
}

static dt_status run_backward(const context *x, dt_tensor *y)
{
    if (json_object_size(json_object_get(x->golden, "grad_outputs")) == 0)
        return dt_backward(x->tape, y);
    const role dy = find_role(x->f, x->golden, "grad_outputs", "dy");
    dt_tensor *grad;
    DT_TRY(make_leaf(x, &dy, &grad));
    const dt_local local = {dt_tensor_layout(grad), *dt_tensor_local(grad)};
    const dt_status st = dt_backward_from(x->tape, 1, &y, &local);
    dt_tensor_destroy(&grad);
    return st;
}

static dt_status run_case(const context *x)
{
    dt_tensor *in[MAX_ROLES] = {NULL};
    dt_tape_reset(x->tape, NULL);
    for (int i = 0; i < MAX_ROLES && ops[x->index].input[i]; i++) {
        const role r = find_role(x->f, x->golden, "inputs", ops[x->index].input[i]);
        DT_TRY(make_leaf(x, &r, &in[i]));
    }
    const attributes a = read_attributes(x);
    dt_tensor *y = ops[x->index].call(x->tape, in, &a);
    DT_TRY(dt_tape_status(x->tape));
    DT_TRY(compare(x, "outputs", ops[x->index].output, dt_tensor_local(y)));
    DT_TRY(run_backward(x, y));
    for (int i = 0; i < MAX_ROLES && in[i]; i++) {
        char name[32];
        snprintf(name, sizeof name, "d%s", ops[x->index].input[i]);
        if (dt_tensor_requires_grad(in[i]))
            DT_TRY(compare(x, "grads", name, &dt_tensor_grad(in[i])->array));
        dt_tensor_destroy(&in[i]);
    }
    return DT_OK;
}

static dt_status run_all(dt_world *world, void *arg)
{
    context x = {.f = arg};
    int seen[DT_COUNT(ops)] = {0};
    size_t at;
    json_t *golden;
    DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", 1}}},
                          &x.mesh));
    DT_TRY(dt_tape_create(x.mesh, NULL, &x.tape));
    json_array_foreach(json_object_get(x.f->cases, "ops"), at, golden)
    {
        const char *op = json_string_value(json_object_get(golden, "op"));
        const char *layout =
            json_string_value(json_object_get(json_object_get(golden, "attrs"), "layout"));
        x.golden = golden;
        x.swap = layout && strcmp(layout, "B,T,H,D") == 0;
        for (x.index = 0; x.index < DT_COUNT(ops) && strcmp(ops[x.index].op, op) != 0; x.index++)
            ;
        TEST_THAT(x.index < DT_COUNT(ops), "no test of golden op %s", op);
        seen[x.index]++;
        if (ops[x.index].call)
            DT_TRY(run_case(&x));
    }
    for (int i = 0; i < DT_COUNT(ops); i++) {
        TEST_THAT(seen[i] == ops[i].cases, "%s: %d cases, want %d", ops[i].op, seen[i],
                  ops[i].cases);
        printf("%-15s %d cases%s\n", ops[i].op, seen[i], ops[i].call ? "" : " (in tests/optim)");
    }
    dt_tape_destroy(&x.tape);
    dt_mesh_destroy(&x.mesh);
    return DT_OK;
}

START_TEST(test_every_golden)
{
    file f = {0};
    read_files(&f);
    test_ranks(1, run_all, &f);
    json_decref(f.header);
    json_decref(f.cases);
    free(f.bytes);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1)
        folder = argv[1];
    Suite *suite = suite_create("op goldens");
    TCase *tc = tcase_create("golden");
    tcase_add_test(tc, test_every_golden);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
