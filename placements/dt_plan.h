/* placements/dt_plan.h - how to get from one layout to another: a list of steps of least cost.
 *
 * An axis may be split off a dim only as its innermost axis and gathered only if innermost. A step
 * names one axis, or several neighbours of a nest merged into one collective. Merging is legal at
 * any sizes: an innermost run of a nest, such as tp>dp, cuts one contiguous range into pieces that
 * ascend in the order of the run (row-major over tp, dp), some of them empty; so gathering the run
 * is one concatenation, and scattering it is one cut, at the bounds that dt_layout_range gives.
 *
 *     SLICE          R -> S(d)    local, keep my piece          adjoint: all-gather or nothing
 *     KEEP           R -> P       local, rank 0 keeps the value, the others hold zero
 *     PAD            S(d) -> P    local, zeros around my piece
 *     ALL_GATHER     S(d) -> R
 *     REDUCE_SCATTER P -> S(d)
 *     ALL_REDUCE     P -> R
 *     ALL_TO_ALL     S(i) -> S(j)  a run a>b of dim i becomes the same run of dim j
 *     RELABEL        local, the arrays stay: the layouts differ only on axes of size 1
 *
 * Source: Dijkstra's algorithm over layouts, alpha-beta cost of a ring per step. */
#pragma once

#include "placements/dt_layout.h"

#define DT_STEP_TABLE(X)                 \
    X(SLICE, "slice", false)             \
    X(KEEP, "keep", false)               \
    X(PAD, "pad", false)                 \
    X(ALL_GATHER, "all-gather", true)    \
    X(REDUCE_SCATTER, "reduce-scatter", true) \
    X(ALL_REDUCE, "all-reduce", true)    \
    X(ALL_TO_ALL, "all-to-all", true)    \
    X(RELABEL, "relabel", false)

typedef enum dt_step_kind {
#define X(name, text, moves) DT_STEP_##name,
    DT_STEP_TABLE(X)
#undef X
    DT_NSTEP_KINDS
} dt_step_kind;

const char *dt_step_name(dt_step_kind kind);
bool dt_step_moves(dt_step_kind kind); /* is it a collective? */

typedef struct dt_step {
    dt_step_kind kind;
    int naxes; /* merged axes, outermost of the nest first (where there is no nest: mesh order) */
    uint8_t axis[DT_MAX_AXES];
    int dim_from, dim_to; /* S(dim_from) before, S(dim_to) after; -1 where it is R or P */
    dt_layout before, after;
    int64_t bytes; /* a rank of a ring sends (k-1)/k of the largest array; ALL_REDUCE twice that */
} dt_step;

typedef struct dt_plan {
    int nsteps;
    dt_step *step;
    int ncollectives;
    int64_t bytes;
    double cost_s;
} dt_plan;

/* A link: seconds per collective and seconds per byte of one axis. All-zero means the defaults, 10
 * microseconds and 10 GB/s. A collective over several axes runs at the worst link among them. */
typedef struct dt_link {
    double latency_s, byte_s;
} dt_link;

/* dt_plan_create - the least-cost plan from src to dst (same grid and global shape).
 *   in   elem_bytes   bytes of one element
 *        link         one an axis, or NULL for equal defaults
 * An axis only takes the placements it has in src or dst, or R; R or P in both is left alone.
 * Within that, the plan is optimal if up to 3 axes change; if more do, it is the best of those in
 * which the order of each dim always begins src's or dst's.
 * Equal costs: fewer collectives, then fewer steps, then local steps first.
 * Axes of size 1 are in no step but RELABEL; they change along with the first and the last step.
 * Equal layouts give 0 steps. Total: every pair of legal layouts has a plan. Deterministic: same
 * inputs, same plan, on every rank.
 * Cost: at most a few thousand layouts are visited, a handful in practice; dt_mesh_plan caches.
 * Errors: DT_ERR_ARG for different grids, DT_ERR_SHAPE for different shapes, those of
 * dt_layout_check, DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_plan_create(const dt_layout *src, const dt_layout *dst, size_t elem_bytes,
                                      const dt_link *link, dt_plan **plan_out);
void dt_plan_destroy(dt_plan **plan);
/* "all-gather dim 0 @tp>dp 4.2 MB; slice dim 1 @tp; all-to-all dim 0 -> 1 @cp 8 B", "nothing" for
 * 0 steps; cut off where buf ends. Returns buf. */
const char *dt_plan_print(const dt_plan *plan, char *buf, size_t size_bytes);
