/* dtensor/dtensor_internal.h - functions shared inside of this folder only. */
#pragma once

#include "dtensor/dt_rule.h"

/* dt_rule_explain_fix - what would mend a refused application, cheapest first, at most two proposals:
 * "redistribute operand 1 R -> S(1) on tp (forward 0 bytes, backward all-gather 1.0 MB) or operand 0 ...".
 *   in   r           the application that `infer` refused; given back unchanged
 *        elem_bytes  of the operands, for the prices
 * Tries every other placement of one operand on one axis, then pairs of such changes. Slow; only after a failure.
 * buf is "" where no such change helps. The error trace is again that of infer(r) at the end.
 * Errors: DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_rule_explain_fix(const dt_rule *r, dt_status (*infer)(dt_rule *),
                                           size_t elem_bytes, char *buf, size_t size);
