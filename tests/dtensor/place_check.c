/* tests/dtensor/place_check.c - see tests/dtensor/place_check.h. */
#include "tests/dtensor/place_check.h"

#include <stdio.h>
#include <stdlib.h>

bool place_full(void)
{
    const char *full = getenv("DT_FULL");
    return full && *full == '1';
}

double place_value(uint64_t seed, int64_t index)
{
    uint64_t h =
        (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)index * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 29) * UINT64_C(0x94d049bb133111eb);
    return (double)(int64_t)((h >> 40) % 17) - 8.0;
}

/* Row-major number of this rank among the ranks of the P axes, and how many they are. */
static int part_number(const dt_layout *layout, int *parts_out)
{
    const int *coord = dt_mesh_coord(dt_layout_mesh(layout));
    int number = 0;
    *parts_out = 1;
    for (int axis = 0; axis < layout->grid->naxes; axis++) {
        if (!(layout->partial >> axis & 1))
            continue;
        number = number * layout->grid->size[axis] + coord[axis];
        *parts_out *= layout->grid->size[axis];
    }
    return number;
}

/* Global index of the i-th element of my block. */
static int64_t global_index(const dt_layout *layout, int64_t i)
{
    int64_t at[DT_MAX_DIMS];
    const dt_shape part = dt_layout_local(layout, dt_mesh_coord(dt_layout_mesh(layout)), at);
    int64_t index = 0, stride = 1;
    for (int d = part.ndim - 1; d >= 0; d--) {
        index += (at[d] + i % part.dim[d]) * stride;
        i /= part.dim[d];
        stride *= layout->shape.dim[d];
    }
    return index;
}

static double part_value(uint64_t seed, int64_t index, int number, int parts)
{
    if (number > 0)
        return place_value(seed + 1000 * (uint64_t)number, index);
    double rest = place_value(seed, index);
    for (int p = 1; p < parts; p++)
        rest -= place_value(seed + 1000 * (uint64_t)p, index);
    return rest;
}

dt_status place_leaf(const dt_layout *layout, dt_dtype dtype, uint64_t seed, dt_tensor **out)
{
    dt_tensor *x = NULL;
    dt_array exact = {0};
    DT_TRY(dt_tensor_create(layout, dtype, DT_TAG_ACTIVATION, &x));
    dt_array *local = dt_tensor_local(x);
    const int64_t n = dt_array_count(local);
    double *v = malloc((size_t)(n + 1) * sizeof *v);
    int parts = 1;
    const int number = part_number(layout, &parts);
    for (int64_t i = 0; v && i < n; i++)
        v[i] = part_value(seed, global_index(layout, i), number, parts);
    dt_status st = v ? DT_OK : DT_ERR_NOMEM;
    if (st == DT_OK)
        st = dt_array_create(local->storage->heap, DT_F64, local->shape, DT_TAG_WORKSPACE, &exact);
    if (st == DT_OK)
        st = dt_array_write(&exact, v, n);
    if (st == DT_OK)
        dt_array_cast(local, &exact);
    dt_array_release(&exact);
    free(v);
    if (st == DT_OK)
        *out = x;
    else
        dt_tensor_destroy(&x);
    return st;
}

/* My parts and those of the ranks on the P axes, added up. */
static dt_status sum_parts(const dt_layout *layout, double *value, int64_t count)
{
    uint8_t axis[DT_MAX_AXES];
    int n = 0;
    for (int a = 0; a < layout->grid->naxes; a++) {
        if ((layout->partial >> a & 1) && layout->grid->size[a] > 1)
            axis[n++] = (uint8_t)a;
    }
    if (n == 0 || count == 0)
        return DT_OK;
    dt_comm *comm = NULL;
    DT_TRY(dt_mesh_comm(dt_layout_mesh(layout), n, axis, 0, &comm));
    DT_TRY(dt_all_reduce_f64_sync(comm, value, (int)count, DT_REDUCE_SUM));
    return DT_OK;
}

dt_status place_holds(const dt_local *x, uint64_t seed, double factor, const char *what)
{
    const dt_shape want =
        dt_layout_local(x->layout, dt_mesh_coord(dt_layout_mesh(x->layout)), NULL);
    char text[DT_LAYOUT_TEXT], shape[DT_SHAPE_TEXT];
    dt_layout_print(x->layout, text, sizeof text);
    TEST_THAT(x->array.storage, "%s: no array at %s", what, text);
    TEST_THAT(dt_shape_equal(x->array.shape, want), "%s: local shape %s at %s", what,
              dt_shape_print(x->array.shape, shape, sizeof shape), text);
    dt_array exact = {0};
    DT_TRY(dt_array_create(x->array.storage->heap, DT_F64, want, DT_TAG_WORKSPACE, &exact));
    dt_array_cast(&exact, &x->array);
    const int64_t count = dt_array_count(&exact);
    double *v = malloc((size_t)(count + 1) * sizeof *v);
    TEST_THAT(v, "%s: no memory", what);
    DT_TRY(dt_array_read(&exact, v, count));
    dt_status st = sum_parts(x->layout, v, count);
    for (int64_t i = 0; i < count && st == DT_OK; i++) {
        const double right = factor * place_value(seed, global_index(x->layout, i));
        if (v[i] != right)
            st = DT_ERROR(DT_ERR_STATE, "%s: at %s local element %lld is %g, not %g", what, text,
                          (long long)i, v[i], right);
    }
    dt_array_release(&exact);
    free(v);
    DT_TRY(st);
    return DT_OK;
}

dt_status place_tensor_holds(dt_tensor *x, uint64_t seed, const char *what)
{
    TEST_THAT(!dt_tensor_is_failed(x), "%s: failed tensor", what);
    const dt_local local = {dt_tensor_layout(x), *dt_tensor_local(x)};
    DT_TRY(place_holds(&local, seed, 1, what));
    return DT_OK;
}

/* Placements as digits of `code` in base ndim + 2; axes are placed in the order given. */
static dt_status add_layout(dt_mesh *mesh, dt_shape shape, int code, const int *order,
                            const dt_layout **list, int *n)
{
    const int naxes = dt_mesh_grid(mesh)->naxes, choices = shape.ndim + 2;
    dt_layout layout = dt_layout_replicated(dt_mesh_grid(mesh), shape);
    for (int i = 0; i < naxes; i++) {
        int k = code;
        for (int a = 0; a < order[i]; a++)
            k /= choices;
        k %= choices;
        if (k == choices - 1)
            layout.partial = (uint8_t)(layout.partial | 1u << order[i]);
        else if (k > 0)
            dt_layout_shard(&layout, order[i], k - 1);
    }
    const dt_layout *interned = NULL;
    DT_TRY(dt_mesh_layout(mesh, &layout, &interned));
    for (int i = 0; i < *n; i++) {
        if (list[i] == interned)
            return DT_OK;
    }
    TEST_THAT(*n < PLACE_MAX_LAYOUTS, "more than %d layouts", PLACE_MAX_LAYOUTS);
    list[(*n)++] = interned;
    return DT_OK;
}

dt_status place_layouts(dt_mesh *mesh, dt_shape shape, const dt_layout **list, int *n_out)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const int naxes = dt_mesh_grid(mesh)->naxes;
    int codes = 1, n = 0;
    for (int a = 0; a < naxes; a++)
        codes *= shape.ndim + 2;
    for (int code = 0; code < codes; code++) {
        for (int o = 0; o < DT_COUNT(orders); o++) {
            int order[3], m = 0;
            for (int i = 0; i < 3; i++) {
                if (orders[o][i] < naxes)
                    order[m++] = orders[o][i];
            }
            DT_TRY(add_layout(mesh, shape, code, order, list, &n));
        }
    }
    *n_out = n;
    return DT_OK;
}

dt_status place_mesh(dt_world *world, const dt_axis *axes, int naxes, dt_mesh **mesh_out)
{
    dt_mesh_options options = {0};
    for (int a = 0; a < naxes; a++)
        options.axes[a] = axes[a];
    DT_TRY(dt_mesh_create(world, test_device(world), &options, mesh_out));
    return DT_OK;
}

dt_status place_open(place_bench *b, dt_world *world)
{
    b->world = world;
    DT_TRY(place_mesh(world, (dt_axis[]){{"tp", dt_world_size(world)}}, 1, &b->mesh));
    DT_TRY(dt_world_heap(world, test_device(world), &b->heap));
    DT_TRY(dt_tape_create(b->mesh, NULL, &b->t));
    return DT_OK;
}

void place_close(place_bench *b)
{
    dt_tape_destroy(&b->t);
    dt_mesh_destroy(&b->mesh);
}

dt_status place_grad_leaf(place_bench *b, dt_shape shape, const char *text, dt_dtype dtype,
                          uint64_t seed, dt_tensor **out)
{
    const dt_layout *layout = NULL;
    DT_TRY(dt_mesh_layout_text(b->mesh, shape, text, &layout));
    DT_TRY(place_leaf(layout, dtype, seed, out));
    dt_tensor_set_requires_grad(*out, true);
    return DT_OK;
}

dt_status place_dual_leaf(const dt_layout *y, bool partial, uint64_t seed, dt_tensor **out)
{
    dt_layout layout = dt_layout_dual(y);
    const dt_layout *interned = NULL;
    for (int a = 0; a < y->grid->naxes; a++) {
        if (partial && dt_layout_at(y, a).kind == DT_REPLICATE)
            layout.partial = (uint8_t)(layout.partial | 1u << a);
    }
    DT_TRY(dt_mesh_layout(dt_layout_mesh(y), &layout, &interned));
    DT_TRY(place_leaf(interned, DT_F32, seed, out));
    return DT_OK;
}

const char *place_text(const dt_layout *a, const dt_layout *b, char *buf, size_t size_bytes)
{
    char x[DT_LAYOUT_TEXT], y[DT_LAYOUT_TEXT], shape[DT_SHAPE_TEXT];
    (void)snprintf(buf, size_bytes, "%s -> %s of %s", dt_layout_print(a, x, sizeof x),
                   dt_layout_print(b, y, sizeof y), dt_shape_print(a->shape, shape, sizeof shape));
    return buf;
}
