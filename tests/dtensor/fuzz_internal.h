/* tests/dtensor/fuzz_internal.h - what draws a graph: fuzz_graph.c and fuzz_operands.c. */
#pragma once

#include "tests/dtensor/fuzz.h"

typedef struct fuzz_gen {
    fuzz_random r;
    fuzz_graph *g;
    const fuzz_subject *subject;
    fuzz_stats *stats;
    dt_mesh *mesh;
    dt_tape *tape;
} fuzz_gen;

/* A new leaf. */
dt_status fuzz_new_value(fuzz_gen *d, dt_layout layout, int64_t below, int *out);
/* Redistribute value *v; it becomes the result. */
dt_status fuzz_move(fuzz_gen *d, int *v, dt_layout layout);
/* Operands for s->op: values of the graph, moved if need be, or new leaves. */
dt_status fuzz_draw_operands(fuzz_gen *d, fuzz_step *s, fuzz_operands *o);
/* The size of the letter v: ids are below it. */
int64_t fuzz_ids_below(const fuzz_operands *o);
