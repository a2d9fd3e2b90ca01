/* dtensor/ops/rearrange_internal.h - a pattern such as "b s (h d) -> b h s d", parsed.
 *
 * A group is what makes one dim: a letter, several in parentheses (the first is the outermost), or
 * none ("1", "()": size 1). Letters are numbered as they come on the left:
 *     left   [b 0] [s 1] [h 2, d 3]       right   [0] [2] [1] [3] */
#pragma once

#include "dtensor/ops/ops_internal.h"

enum { DTI_LETTERS = DT_STRIDED_DIMS };

typedef struct dti_side {
    int ngroups;
    int begin[DT_MAX_DIMS + 2]; /* group g holds positions begin[g] .. begin[g + 1] - 1 ... */
    int letter[DTI_LETTERS];    /* ... and this is the letter at each */
} dti_side;

typedef struct dti_pattern {
    const char *text; /* the caller's: valid during the call of the op, for messages */
    uint64_t key;     /* of pattern and sizes */
    int nletters;
    dti_side left, right;
    int64_t size[DTI_LETTERS]; /* given sizes; -1: from the tensor's shape */
} dti_pattern;

/* Errors: DT_ERR_ARG says what is malformed. */
DT_NODISCARD dt_status dti_pattern_parse(const char *text, const char *sizes, dti_pattern *p_out);
/* Sizes of all letters of a tensor of this shape. Errors: DT_ERR_SHAPE. */
DT_NODISCARD dt_status dti_pattern_solve(const dti_pattern *p, dt_shape shape, int64_t *size_out);
/* Product of the sizes of a group's letters but the first. */
int64_t dti_pattern_inner(const dti_side *side, int group, const int64_t *size);
