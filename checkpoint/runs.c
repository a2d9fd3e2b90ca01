/* checkpoint/runs.c - where the block of a tensor lies in the row-major order of the whole. Pure
 * arithmetic.
 *
 *     . . . . . .       a block of rows [1, 3) and columns [2, 5): two runs of three neighbours,
 *     . . x x x .       elements 8..10 and 14..16 of the whole, 0..2 and 3..5 of the block
 *     . . x x x .
 */
#include "checkpoint/checkpoint_internal.h"

int64_t dti_block_below(const dti_block *b, int64_t element)
{
    int64_t below = 0, inside = dt_shape_count(b->part), inner = dt_shape_count(b->whole);
    if (inside == 0 || element >= inner)
        return inside;
    for (int d = 0; d < b->whole.ndim; d++) {
        inner /= b->whole.dim[d];
        inside /= b->part.dim[d];
        const int64_t at = element / inner - b->offset[d];
        element %= inner;
        if (at < 0)
            return below;
        if (at >= b->part.dim[d])
            return below + b->part.dim[d] * inside;
        below += at * inside;
    }
    return below;
}

dti_runs dti_runs_of(const dti_block *b, int64_t lo, int64_t hi)
{
    int d = b->whole.ndim - 1; /* the innermost dim of which the block is a part */
    while (d > 0 && b->part.dim[d] == b->whole.dim[d])
        d--;
    const int64_t length = d < 0 ? 1 : b->part.dim[d] * dt_shape_inner(b->whole, d);
    return (dti_runs){b, d, length, dti_block_below(b, lo), dti_block_below(b, hi)};
}

bool dti_runs_next(dti_runs *r, dti_run *run_out)
{
    const dti_block *b = r->block;
    if (r->at >= r->end)
        return false;
    const int64_t into = r->at % r->length, left = r->length - into, all = r->end - r->at;
    int64_t rest = r->at / r->length, first = into;
    int64_t stride = r->dim < 0 ? 1 : dt_shape_inner(b->whole, r->dim);
    if (r->dim >= 0)
        first += b->offset[r->dim] * stride;
    for (int d = r->dim - 1; d >= 0; d--) {
        stride *= b->whole.dim[d + 1];
        first += (b->offset[d] + rest % b->part.dim[d]) * stride;
        rest /= b->part.dim[d];
    }
    *run_out = (dti_run){first, r->at, left < all ? left : all};
    r->at += run_out->count;
    return true;
}
