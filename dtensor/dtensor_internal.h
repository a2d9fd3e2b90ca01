/* dtensor/dtensor_internal.h - functions shared inside of this folder only. */
#pragma once

#include "dtensor/dt_rule.h"

/* A spec with its "..." written out: a letter a dim. */
typedef struct dti_words {
    int nterms;
    int term[DT_OP_MAX_IN];                 /* of each operand */
    char in[DT_OP_MAX_IN][DT_MAX_DIMS + 1]; /* undefined for operands left out */
    char out[DT_MAX_DIMS + 1];
} dti_words;

/* in[i]: layouts that fill the "..." of operand i; NULL: left out. Errors: DT_ERR_ARG for a
 * malformed spec, DT_ERR_SHAPE for a wrong number of dims. */
DT_NODISCARD dt_status dti_words_parse(const dt_rule *r, const dt_layout *const *in,
                                       const char *text, dti_words *words_out);

/* "operand 1 ([16, 8] [R])", for messages. Returns buf. */
enum { DTI_OPERAND_TEXT = DT_SHAPE_TEXT + DT_LAYOUT_TEXT + 32 };
const char *dti_rule_describe(const dt_rule *r, int i, char buf[DTI_OPERAND_TEXT]);

/* The rule of an op: `infer` where it has one, else its letters. */
DT_NODISCARD dt_status dti_rule_infer(dt_rule *r, dt_infer infer, const char *spec);

/* dti_rule_explain_fix - what would mend an application that dti_rule_infer refused, cheapest
 * first, at most two proposals: "redistribute operand 1 R -> S(1) on tp (forward 0 bytes,
 * backward all-gather 1.0 MB) or operand 0 ...".
 *   in   r            given back unchanged
 *        elem_bytes   of the operands, for the prices
 *   out  buf          "" where nothing helps that is tried
 * Tries every other placement of one operand on one axis, then pairs of such changes. Slow; only
 * after a failure.
 * The error trace is again that of the refusal when it returns.
 * Errors: DT_ERR_NOMEM. */
DT_NODISCARD dt_status dti_rule_explain_fix(const dt_rule *r, dt_infer infer, const char *spec,
                                            size_t elem_bytes, char *buf, size_t size_bytes);
