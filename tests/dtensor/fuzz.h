/* tests/dtensor/fuzz.h - random graphs of ops with random placements, against one rank.
 *
 * A case is a seed. The graph is drawn once, outside of the ranks, on a meta mesh of a fake world:
 * each op is tried there and joins the graph if its rule accepts the placements. The graph is then
 * data: one rank runs it with every tensor R, the ranks of the mesh run it with the layouts drawn.
 * Every value, every leaf's gradient and every layout must agree: an op that accepts placements
 * and gives a wrong number is found.
 *
 * Read in this order: fuzz_ops.c (what is drawn), fuzz_graph.c and fuzz_operands.c (how),
 * fuzz_run.c (running and comparing), test_fuzz.c, test_fuzz_mutants.c.
 * Source: the fuzzer of the letters' executable specification. */
#pragma once

#include "dtensor/dt_op.h"
#include "dtensor/ops/dt_ops.h"
#include "tests/harness.h"

enum {
    FUZZ_VALUES = 400,
    FUZZ_STEPS = 400,
    FUZZ_ELEMENTS = 1000, /* of a value */
    FUZZ_ROWS = 80,       /* of a table of ops */
    FUZZ_BATCH = 16       /* seeds 16 k .. 16 k + 15 share a mesh and a world */
};

/* ---- random numbers (splitmix64) ---- */

typedef struct fuzz_random {
    uint64_t state;
} fuzz_random;

int fuzz_below(fuzz_random *r, int n); /* 0 .. n - 1 */
bool fuzz_chance(fuzz_random *r, int percent);

void fuzz_append(char *word, char letter); /* there must be room */

/* ---- ops ---- */

typedef struct fuzz_op fuzz_op;

/* One call in a graph. Operands and results are numbers of values. Attributes: as the op says. */
typedef struct fuzz_step {
    const fuzz_op *op;
    int nin, in[DT_OP_MAX_IN];
    int nout, out; /* values out .. out + nout - 1 */
    int64_t n[DT_OP_MAX_OUT];
    char text[96], sizes[32];
} fuzz_step;

/* Operands as drawn: a letter a dim; equal letters have equal sizes. */
typedef struct fuzz_operands {
    int n;
    char word[DT_OP_MAX_IN][DT_MAX_DIMS + 1];
    bool ids[DT_OP_MAX_IN], nonlinear[DT_OP_MAX_IN];
    dt_shape shape[DT_OP_MAX_IN];
} fuzz_operands;

typedef struct fuzz_call {
    dt_tape *tape;
    const fuzz_step *step;
    dt_tensor *in[DT_OP_MAX_IN], *out[DT_OP_MAX_OUT];
    const dt_layout *to; /* of redistribute */
} fuzz_call;

/* A row of the table. words: an operand each, in letters; * the same 0 to 2 letters in all
 * operands, ~ the last few of these, . no letter. Upper case is not sharded by the rule (E: an
 * even size; p: at least s; g divides h). Before a word: # ids (i32 below v), ! not linear,
 * ? may be left out (the last one only). */
struct fuzz_op {
    const char *name, *words;
    void (*call)(fuzz_call *c);
    void (*draw)(fuzz_random *r, fuzz_step *s, const fuzz_operands *o); /* attributes; NULL: none */
    const char *pattern;                                                /* of rearrange */
    bool split_vocabulary; /* a split vocabulary makes its gradient be R: redistribute behind it */
};

extern const fuzz_op fuzz_table[];
extern const int fuzz_table_rows;
extern const fuzz_op fuzz_op_redistribute, fuzz_op_mul, fuzz_op_sum,
    fuzz_op_add; /* of every graph */
/* Words of a random sum of products; the spec goes to s->text. */
void fuzz_draw_spec(fuzz_random *r, fuzz_step *s, char *words, size_t size_bytes);

/* ---- graphs ---- */

typedef struct fuzz_value {
    dt_shape shape;
    const dt_layout *layout; /* of the meta mesh */
    int64_t below;           /* > 0: ids */
    bool leaf, wants_grad, parameter, used;
    int seed; /* of a leaf's numbers */
} fuzz_value;

typedef struct fuzz_graph {
    uint64_t seed;
    int nvalues, nsteps, loss;
    bool two_walks; /* backward as gradients of inputs, then of parameters */
    fuzz_value value[FUZZ_VALUES];
    fuzz_step step[FUZZ_STEPS];
} fuzz_graph;

/* How often, by row of the table. */
typedef struct fuzz_stats {
    long cases, values, gradients;
    long placed[FUZZ_ROWS], replicated[FUZZ_ROWS],
        refused[FUZZ_ROWS]; /* accepted with S or P, all R */
    long refused_backward;  /* a split vocabulary's P gradient */
} fuzz_stats;

/* What is fuzzed. All-zero but the table: honest. */
typedef struct fuzz_subject {
    const fuzz_op *table;
    int nrows;
    const char *forward_fault, *backward_fault; /* DT_FAULT while ops run; NULL: none */
} fuzz_subject;

/* Draw the graph of a seed. `meta` is a meta mesh; the layouts live with it. */
dt_status fuzz_draw(dt_mesh *meta, const fuzz_subject *subject, uint64_t seed, fuzz_graph *g,
                    fuzz_stats *stats);
/* To stdout: a line a value or op, with layouts. */
void fuzz_print(const fuzz_graph *g);

/* Run n <= FUZZ_BATCH seeds from `first` on (of one mesh); `loud`: print the seed, mesh and graph
 * of a failing case. Gives its number in the batch, or -1. */
dt_status fuzz_batch(const fuzz_subject *subject, uint64_t first, int n, bool loud,
                     fuzz_stats *stats, int *failing_out);
