/* dtensor/dt_rule.h - placement rules in letters: what an op accepts, where its result and its
 * gradients live.
 *
 * A rule is a sum of products of operands, such as linear with bias: "...k,nk+n->...n". Lower-case
 * letters may be sharded, upper-case ones not. Each dim of "..." is a letter of its own, aligned on
 * the right. Per mesh axis:
 *   1. all operands R: output R
 *   2. some operands sharded on letter l: in the same product every operand with l is sharded on
 *      it, the others are R; output S at l's place, or P if l is summed over; terms without l are R
 *      (if l is summed: rule 4)
 *   3. one operand P in which the op is linear: output P; P + P is P
 *   4. if one term is P, R terms become P: rank 0 of the axis keeps the value, the others use zero
 * Source: the project's design; tests compare with the printed table tests/dtensor/RULES.txt. */
#pragma once

#include "mesh/dt_mesh.h"

enum { DT_OP_MAX_IN = 8, DT_OP_MAX_OUT = 8 };

/* What inference sees and fills. */
typedef struct dt_rule {
    const char *name;                     /* of the op, for messages */
    const void *attr;
    uint32_t linear;                      /* bit i: linear in operand i */
    /* bit i: operand i has no gradient (ids); for the prices of fixes only */
    uint32_t no_grad;
    int nin, nout;
    const dt_layout *in[DT_OP_MAX_IN];    /* NULL: optional operand left out */
    dt_layout out[DT_OP_MAX_OUT];         /* filled; grid and global shape too */
    /* filled: bit a: in forward, ranks other than 0 of axis a use zero (rule 4) */
    uint8_t zeroed[DT_OP_MAX_IN];
    /* Hand-written rows may fill: bit a: the gradient of operand i is P on axis a, though the
     * operand and the output are R:
     * the op itself sums over the axis (linear_cross_entropy with a split vocabulary). */
    uint8_t summed[DT_OP_MAX_IN];
} dt_rule;

/* Options of dt_rule_letters; all-zero is the default. */
typedef struct dt_letters {
    const char *loose;                    /* letters whose axis order is checked by the caller */
    /* Another spec for some axes (rows of attention); NULL: the same everywhere. */
    const char *(*spec_of_axis)(const dt_rule *r, int axis);
    /* operands as inference shall see them; NULL: as they are */
    const dt_layout *seen[DT_OP_MAX_IN];
} dt_letters;

/* dt_rule_letters - infer r->out[0] and r->zeroed from a spec. Operands left out drop out of the
 * spec with their term ("...k,nk+n->...n" without a bias is "...k,nk->...n").
 * Errors: DT_ERR_PLACEMENT says operand, axis and what would be legal; DT_ERR_SHAPE for letters of
 * different sizes. */
DT_NODISCARD dt_status dt_rule_letters(dt_rule *r, const char *spec, const dt_letters *options);

/* dt_rule_grad - where the gradient of an operand arises: S -> S; P -> R; R -> as dy where the
 * output is R, R where its term was zeroed, else P. dy is the layout of the gradient of output
 * `out`. */
dt_layout dt_rule_grad(const dt_layout *operand, uint8_t zeroed, const dt_layout *out,
                       const dt_layout *dy);

/* dt_rules_print - the table of an op: every accepted row of placements on one axis of size 2 with
 * its gradients, in the form of tests/dtensor/RULES.txt. Shapes come from the words of `spec`
 * ("bsk,nk->bsn"), a fixed size a letter.
 *   in   infer   NULL: the letters of `spec` */
typedef dt_status (*dt_infer)(dt_rule *r);
DT_NODISCARD dt_status dt_rules_print(const char *name, const char *spec, uint32_t linear,
                                      dt_infer infer, const void *attr,
                                      void (*print)(void *arg, const char *line), void *arg);
