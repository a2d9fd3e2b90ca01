/* bench/limits.h - what the machine can do, measured where and when it is compared with: matrix
 * products and copies on the threads of the caller. */
#pragma once

#include "base/dt_types.h"

double limits_now_s(void);

/* Operands and room for the probes. */
typedef struct limits {
    dt_dtype dtype; /* of the products */
    void *a, *b, *c;
    char *from, *to;
    double flops_per_s, bytes_per_s; /* best so far; bytes are those read plus those written */
} limits;

DT_NODISCARD dt_status limits_create(dt_dtype dtype, limits *out);
void limits_destroy(limits *l);
/* Once more, thrice: a product of 1024 x 4096 x 1024, and a copy of 128 MB by memcpy. */
DT_NODISCARD dt_status limits_probe(limits *l);
/* Refuses (DT_ERR_STATE) when this process may run on fewer cores than `threads`. */
DT_NODISCARD dt_status limits_check_cores(int threads);
