/* dtensor/tally.c - what ops did: FLOPs of their matrix products, and, where asked, the first of
 * their results that is not finite. See dt_tally in dtensor/dt_tape.h. */
#include "dtensor/tape_internal.h"

#include "array/dt_matmul.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dt_status dt_op_multiply(dt_op_call *c, const dt_matmul_args *args)
{
    c->flops += 2.0 * (double)args->batch * (double)args->m * (double)args->n * (double)args->k;
    dt_matmul_args there = *args;
    there.device = dt_heap_device(dt_op_heap(c)).kind;
    return dt_matmul_run(&there);
}

/* Ranks that do exactly what this one does: those of axes on which everything is R. */
static double alike(const dt_op_call *c)
{
    const dt_grid *grid = c->out_layout[0]->grid;
    double ranks = 1;
    for (int axis = 0; axis < grid->naxes; axis++) {
        bool same = true;
        for (int i = 0; i < c->nin; i++)
            same = same &&
                   (!c->in_layout[i] || dt_layout_at(c->in_layout[i], axis).kind == DT_REPLICATE);
        for (int j = 0; j < c->nout; j++)
            same = same && dt_layout_at(c->out_layout[j], axis).kind == DT_REPLICATE;
        ranks *= same ? grid->size[axis] : 1;
    }
    return ranks;
}

/* ---- what is not finite ---- */

static bool is_bad(dt_dtype dtype, const void *data, int64_t i)
{
    uint64_t bits = 0, mask = 0;
    if (dtype == DT_F64) {
        bits = ((const uint64_t *)data)[i];
        mask = UINT64_C(0x7FF0000000000000);
    } else if (dtype == DT_F32) {
        bits = ((const uint32_t *)data)[i];
        mask = 0x7F800000;
    } else if (dtype == DT_BF16 || dtype == DT_F16) {
        bits = ((const uint16_t *)data)[i];
        mask = dtype == DT_BF16 ? 0x7F80 : 0x7C00;
    }
    return mask != 0 &&
           (bits & mask) == mask; /* all bits of the exponent: infinite, or no number */
}

static int64_t first_bad(const dt_array *a)
{
    const int64_t n = a->storage ? dt_array_count(a) : 0;
    void *copy;
    const void *data = n > 0 ? dt_array_look(a, &copy) : NULL;
    int64_t at = data ? 0 : n;
    while (at < n && !is_bad(a->dtype, data, at))
        at++;
    if (data)
        free(copy);
    return at < n ? at : -1;
}

/* Is what is found now before what was found, in the order of the model? */
static bool comes_first(const dt_tally *y, const dt_tape_options *now, bool back)
{
    if (y->bad_at == 0)
        return true;
    if (now->first_sample != y->bad_sample)
        return now->first_sample < y->bad_sample;
    if (back != y->bad_backward)
        return !back;
    return back ? now->stage > y->bad_stage : now->stage < y->bad_stage;
}

static void note(dt_tally *y, const dt_op_call *c, const char *what, int i, const dt_array *a,
                 int64_t at)
{
    char shape[DT_SHAPE_TEXT];
    const dt_tape_options *now = dt_tape_get_options(c->tape);
    y->bad_at = y->seen;
    y->bad_sample = now->first_sample;
    y->bad_stage = now->stage;
    (void)snprintf(y->bad, sizeof y->bad,
                   "%s %d of %s in '%s' (%s): element %lld of this rank's %s", what, i, c->op->name,
                   c->path ? c->path : "", c->where ? c->where : "", (long long)at,
                   dt_shape_print(a->shape, shape, sizeof shape));
}

/* The first result that is bad; or the operand that it was bad in already, which no op has made: a
 * parameter, or what came from elsewhere. */
static void look(dt_tally *y, const dt_op_call *c, bool back)
{
    const dt_array *result = back ? c->din : c->out;
    const int n = back ? c->nin : c->nout;
    const dt_tape_options *now = dt_tape_get_options(c->tape);
    for (int j = 0; j < n; j++) {
        y->seen++;
        const bool wanted = comes_first(y, now, back) && (!back || c->need >> j & 1);
        const int64_t at = wanted ? first_bad(&result[j]) : -1;
        if (at < 0)
            continue;
        note(y, c, back ? "the gradient of operand" : "result", j, &result[j], at);
        y->bad_backward = back;
        for (int i = 0; i < c->nin; i++) {
            const int64_t before = back ? -1 : first_bad(&c->in[i]);
            if (before >= 0) {
                note(y, c, "operand", i, &c->in[i], before);
                return;
            }
        }
    }
}

void dti_tally(dt_op_call *c, bool back)
{
    dt_tally *y = c->tape->options.tally;
    if (!y)
        return;
    const bool again = !back && dt_tape_origin(c->tape) != c->tape;
    if (c->flops > 0) {
        const double mine = again ? 0 : c->flops / alike(c);
        y->flops += mine;
        y->flops_again += c->flops - mine + c->flops_again;
    }
    if (y->watch)
        look(y, c, back);
}
