/* dtensor/ops/rearrange.c - split, permute and merge dims by a pattern: "b s (h d) -> b h s d".
 *
 * forward    y = x with its letters in another order; a copy in runs as long as the pattern leaves
 *            neighbours, or x's own bytes where the order stays
 * backward   the same, backwards
 * rule       linear, P passes. Only the outermost letter of a group may be sharded, by the same
 *            axes on both sides, and on every rank the bounds of the dim must be whole numbers of
 *            that letter: the bounds the letter itself has.
 *                (h d), h = 6, d = 4: 2 ranks: rank 0 holds [0, 12) of 24 = heads [0, 3): legal
 *                                     4 ranks: rank 0 holds [0, 6), one and a half heads: refused
 * Read next: dtensor/ops/rearrange_pattern.c. Source: einops (Rogozhnikov, ICLR 2022) for the
 * notation. */
#include "dtensor/ops/rearrange_internal.h"

#include <string.h>

/* ---- rule ---- */

/* What one dim's bounds are compared with: letter `size`, split as the dim is, times `inner`. */
static dt_status check_bounds(const dt_rule *r, const dt_layout *whole, int dim, int64_t size,
                              int64_t inner)
{
    const dt_grid *grid = whole->grid;
    const dti_pattern *p = r->attr;
    dt_layout letter = {.grid = grid, .shape = DT_SHAPE(size)};
    letter.nsplit[0] = whole->nsplit[dim];
    memcpy(letter.split[0], whole->split[dim], sizeof letter.split[0]);
    int cases = 1;
    for (int k = 0; k < whole->nsplit[dim]; k++)
        cases *= grid->size[whole->split[dim][k]];
    for (int i = 0; i < cases; i++) {
        int coord[DT_MAX_AXES] = {0}, rest = i;
        for (int k = whole->nsplit[dim] - 1; k >= 0; k--) {
            const int axis = whole->split[dim][k];
            coord[axis] = rest % grid->size[axis];
            rest /= grid->size[axis];
        }
        int64_t lo, hi, first, last;
        char text[DT_LAYOUT_TEXT];
        dt_layout_range(whole, dim, coord, &lo, &hi);
        dt_layout_range(&letter, 0, coord, &first, &last);
        DT_REQUIRE(
            lo == first * inner && hi == last * inner, DT_ERR_PLACEMENT,
            "rearrange %s: dim %d of %s: rank %d would hold elements [%lld, %lld) of the dim but "
            "[%lld, %lld) of its outermost letter, of %lld elements each",
            p->text, dim, dt_layout_print(whole, text, sizeof text), dt_grid_rank(grid, coord),
            (long long)lo, (long long)hi, (long long)first, (long long)last, (long long)inner);
    }
    return DT_OK;
}

/* Where each letter is sharded: left dim + 1, 0 where it is not. Only outermost letters can be. */
static dt_status sharded_letters(const dt_rule *r, const int64_t *size, int *from)
{
    const dti_pattern *p = r->attr;
    const dt_layout *x = r->in[0];
    for (int g = 0; g < p->left.ngroups; g++) {
        char text[DT_LAYOUT_TEXT];
        const int first = p->left.begin[g];
        if (x->nsplit[g] == 0)
            continue;
        DT_REQUIRE(first < p->left.begin[g + 1], DT_ERR_PLACEMENT,
                   "rearrange %s: dim %d of %s has no letter and may not be sharded", p->text, g,
                   dt_layout_print(x, text, sizeof text));
        from[p->left.letter[first]] = g + 1;
        DT_TRY(check_bounds(r, x, g, size[p->left.letter[first]],
                            dti_pattern_inner(&p->left, g, size)));
    }
    return DT_OK;
}

static dt_status infer(dt_rule *r)
{
    const dti_pattern *p = r->attr;
    const dt_layout *x = r->in[0];
    int64_t size[DTI_LETTERS];
    int from[DTI_LETTERS] = {0};
    char text[DT_LAYOUT_TEXT];
    DT_TRY(dti_pattern_solve(p, x->shape, size));
    DT_TRY(sharded_letters(r, size, from));
    dt_layout out = {.grid = x->grid, .partial = x->partial};
    out.shape.ndim = p->right.ngroups;
    for (int g = 0; g < p->right.ngroups; g++) {
        const int begin = p->right.begin[g], end = p->right.begin[g + 1];
        for (int k = begin + 1; k < end; k++)
            DT_REQUIRE(
                !from[p->right.letter[k]], DT_ERR_PLACEMENT,
                "rearrange %s: dim %d of %s would be an inner letter of dim %d of the result; only "
                "the outermost one may be sharded",
                p->text, from[p->right.letter[k]] - 1, dt_layout_print(x, text, sizeof text), g);
        const int64_t first = begin < end ? size[p->right.letter[begin]] : 1;
        out.shape.dim[g] = first * dti_pattern_inner(&p->right, g, size);
        const int d = begin < end ? from[p->right.letter[begin]] - 1 : -1;
        if (d < 0)
            continue;
        out.nsplit[g] = x->nsplit[d];
        memcpy(out.split[g], x->split[d], sizeof out.split[g]);
        DT_TRY(check_bounds(r, &out, g, first, dti_pattern_inner(&p->right, g, size)));
    }
    r->out[0] = out;
    return DT_OK;
}

static uint64_t key(const void *attr)
{
    return ((const dti_pattern *)attr)->key;
}

/* ---- copy ---- */

/* dst's letters in the order of side `to`, src's in that of `from`. `left` is x's or dx's local
 * shape. */
static dt_status permute(const dt_op_call *c, dt_shape left, const dti_side *from,
                         const dti_side *to, const dt_array *src, dt_array *dst)
{
    const dti_pattern *p = c->attr;
    int64_t size[DTI_LETTERS], stride[DTI_LETTERS], step = 1;
    if (!dt_array_data(dst))
        return DT_OK;
    DT_TRY(dti_pattern_solve(p, c->in_layout[0]->shape, size));
    for (int g = 0; g < p->left.ngroups; g++)
        if (p->left.begin[g] < p->left.begin[g + 1])
            size[p->left.letter[p->left.begin[g]]] =
                left.dim[g] / dti_pattern_inner(&p->left, g, size);
    for (int k = p->nletters - 1; k >= 0; k--) {
        stride[from->letter[k]] = step;
        step *= size[from->letter[k]];
    }
    dt_strided_args a = {.elem_bytes = (int64_t)dt_dtype_size(dst->dtype),
                         .ndim = p->nletters,
                         .src = dt_array_data(src),
                         .dst = dt_array_data(dst)};
    for (int k = 0; k < p->nletters; k++) {
        a.size[k] = size[to->letter[k]];
        a.stride[k] = stride[to->letter[k]];
    }
    dti_math(c)->strided(&a);
    return DT_OK;
}

static bool keeps_order(const dti_pattern *p)
{
    return !memcmp(p->left.letter, p->right.letter, sizeof p->left.letter[0] * (size_t)p->nletters);
}

/* y: x under the shape of y. */
static void same_bytes(dt_array *y, const dt_array *x)
{
    const dt_array shared = dt_array_reshape(x, y->shape);
    dt_array_release(y);
    *y = shared;
}

static dt_status forward(dt_op_call *c)
{
    const dti_pattern *p = c->attr;
    if (keeps_order(p)) {
        same_bytes(&c->out[0], &c->in[0]);
        return DT_OK;
    }
    return permute(c, c->in[0].shape, &p->left, &p->right, &c->in[0], &c->out[0]);
}

static dt_status backward(dt_op_call *c)
{
    const dti_pattern *p = c->attr;
    if (keeps_order(p)) {
        same_bytes(&c->din[0], &c->dout[0]);
        return DT_OK;
    }
    return permute(c, c->din[0].shape, &p->right, &p->left, &c->dout[0], &c->din[0]);
}

const dt_op dt_op_rearrange = {.name = "rearrange",
                               .nin = 1,
                               .nout = 1,
                               .linear = 1,
                               .infer = infer,
                               .key = key,
                               .attr_bytes = sizeof(dti_pattern),
                               .any_dtype = true,
                               .forward = forward,
                               .backward = backward,
                               .handles_half = true,
                               .shares = true};

dt_tensor *(dt_rearrange)(dt_tape *t, dt_tensor *x, const char *pattern, const char *sizes)
{
    dti_pattern p;
    const dt_status st = dti_pattern_parse(pattern, sizes, &p);
    if (st != DT_OK) {
        dt_tape_fail(t, st);
        return dt_tape_failed(t);
    }
    return dt_op_apply1(t, &dt_op_rearrange, &p, x);
}
