/* dtensor/ops/ring_internal.h - pieces of a sequence that go round the ranks of an axis, or of a
 * nest of axes, while products are computed. They travel in the type of the op's tensors; `use` and
 * `make` see f32 for 16 bits. On meta these are not called, but what would be sent is counted. */
#pragma once

#include "dtensor/dt_op.h"
#include "dtensor/ops/dt_ops.h"

typedef struct dti_ring {
    dt_op_call *c;
    dt_comm *comm;
    int size, rank;
    int naxes, extent[DT_MAX_AXES]; /* of the nest of axes, outermost first */
    int64_t batch, sequence;        /* of the whole on this rank: [batch, sequence, ...] */
} dti_ring;

/* Positions [lo, hi) of every sequence of the batch: what S(1) on the axes gives one rank. */
typedef struct dti_piece {
    int64_t lo, hi;
} dti_piece;

typedef dt_status (*dti_use_piece)(void *arg, dti_piece p, dt_array *array);

DT_NODISCARD dt_status dti_ring_open(dt_op_call *c, const dt_overlap_options *axes, int64_t batch,
                                     int64_t sequence, dti_ring *ring_out);
/* use(every rank's piece of x, starting with mine), the next one being under way meanwhile. mine:
 * [batch, my piece, width]. Cost: sends (t-1)/t of the whole. */
DT_NODISCARD dt_status dti_ring_gather(const dti_ring *g, const dt_array *mine, dti_use_piece use,
                                       void *arg);
/* out = the sum over ranks of what make() puts out for my piece; while it makes one piece, the sum
 * for the piece before is under way. Sums start at the rank after the owner. Cost: the same. */
DT_NODISCARD dt_status dti_ring_scatter(const dti_ring *g, dti_use_piece make, void *arg,
                                        dt_array *out);
