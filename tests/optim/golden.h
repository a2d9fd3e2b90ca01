/* tests/optim/golden.h - the op goldens of the optimizer: tensors by name, numbers by key. */
#pragma once

#include "base/dt_json.h"
#include "checkpoint/dt_safetensors.h"
#include "mesh/dt_mesh.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

enum { GOLDEN_MOST = 256 }; /* elements of the largest tensor */

typedef struct golden {
    json_t *cases;
    dt_safetensors *tensors;
    dt_heap *heap; /* says that host memory is on the CPU */
} golden;

static inline void golden_open(golden *g, const char *folder)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/ops.json", folder);
    ck_ok(dt_json_load(path, &g->cases));
    (void)snprintf(path, sizeof path, "%s/ops.safetensors", folder);
    ck_ok(dt_safetensors_open(path, &g->tensors));
    ck_ok(dt_heap_create((dt_device){DT_CPU, 0}, NULL, &g->heap));
}

static inline void golden_close(golden *g)
{
    json_decref(g->cases);
    dt_safetensors_close(&g->tensors);
    dt_heap_destroy(&g->heap);
}

static inline double golden_number(const json_t *one, const char *group, const char *key)
{
    return json_number_value(json_object_get(json_object_get(one, group), key));
}

/* Tensor "<id>.<role>" into `out`; its shape. */
static inline dt_status golden_read(golden *g, const json_t *one, const char *role,
                                    float out[GOLDEN_MOST], dt_shape *shape_out)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s.%s", json_string_value(json_object_get(one, "id")), role);
    const dt_safetensors_entry *e = dt_safetensors_find(g->tensors, name);
    TEST_THAT(e && dt_shape_count(e->shape) <= GOLDEN_MOST, "%s", name);
    dt_storage host = {
        .heap = g->heap, .data = out, .bytes = sizeof(float) * GOLDEN_MOST, .refs = 1};
    dt_array array = {&host, 0, e->shape, DT_F32};
    DT_TRY(dt_safetensors_read(g->tensors, e, e->shape, (int64_t[DT_MAX_DIMS]){0}, &array));
    *shape_out = e->shape;
    return DT_OK;
}

/* One case, on a mesh of one rank with the axes x and y. */
typedef dt_status golden_case(golden *g, const json_t *one, dt_mesh *mesh);

typedef struct golden_op {
    golden g;
    const char *op;
    golden_case *run;
} golden_op;

static inline dt_status golden_body(dt_world *world, void *arg)
{
    golden_op *o = arg;
    dt_mesh *mesh = NULL;
    json_t *one;
    size_t i;
    int seen = 0;
    DT_TRY(dt_mesh_create(world, test_device(world),
                          &(dt_mesh_options){.axes = {{"x", 1}, {"y", 1}}}, &mesh));
    json_array_foreach(json_object_get(o->g.cases, "ops"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "op")), o->op) != 0)
            continue;
        DT_TRY(o->run(&o->g, one, mesh));
        seen++;
    }
    TEST_THAT(seen == 2, "%d cases", seen);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* Both cases of an op. */
static inline void golden_run(const char *folder, const char *op, golden_case *run)
{
    golden_op o = {.op = op, .run = run};
    golden_open(&o.g, folder);
    test_ranks(1, golden_body, &o);
    golden_close(&o.g);
}
