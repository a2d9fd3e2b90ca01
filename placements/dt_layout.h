/* placements/dt_layout.h - where a global tensor lives on a mesh. Pure arithmetic.
 *
 * Words: an AXIS is a mesh axis, a DIM is a tensor dimension. On each axis a tensor is
 *     R      replicated: the ranks of the axis hold equal local arrays
 *     S(d)   sharded along dim d
 *     P      partial: the value is the sum over the ranks of the axis
 * A dim may be sharded by several axes; their order, outermost first, is explicit:
 * "S(0)@tp>dp" splits dim 0 by tp, then every piece by dp. Read next: placements/dt_plan.h. */
#pragma once

#include "base/dt_types.h"

/* Named axes over ranks, row-major, outermost axis first. Names are unique. */
typedef struct dt_grid {
    int naxes;
    int size[DT_MAX_AXES];
    char name[DT_MAX_AXES][DT_NAME_SIZE];
} dt_grid;

typedef enum dt_placement_kind { DT_REPLICATE, DT_SHARD, DT_PARTIAL } dt_placement_kind;

/* Placement on one axis; dim is 0 unless kind is DT_SHARD. */
typedef struct dt_placement {
    dt_placement_kind kind;
    int dim;
} dt_placement;

/* A layout. Plain value; equal layouts are equal bytes (every unused field is 0). */
typedef struct dt_layout {
    const dt_grid *grid;
    dt_shape shape;                          /* global */
    uint8_t partial;                         /* bit a: axis a is P */
    uint8_t nsplit[DT_MAX_DIMS];             /* how many axes shard dim d ... */
    uint8_t split[DT_MAX_DIMS][DT_MAX_AXES]; /* ... and which, outermost first */
} dt_layout;

/* The one uneven rule: c = ceil(n / k); part r of k owns [min(n, r*c), min(n, (r+1)*c)). */
void dt_chunk(int64_t n, int k, int r, int64_t *lo_out, int64_t *hi_out);

int dt_grid_axis(const dt_grid *grid, const char *name); /* index, or -1 */
int dt_grid_count(const dt_grid *grid);                  /* ranks */
/* Coordinates of a rank (row-major), and back. */
void dt_grid_coord(const dt_grid *grid, int rank, int coord_out[DT_MAX_AXES]);
int dt_grid_rank(const dt_grid *grid, const int coord[DT_MAX_AXES]);

/* Everything R. */
dt_layout dt_layout_replicated(const dt_grid *grid, dt_shape shape);

/* dt_layout_parse - from text such as "S(0)@tp>dp, P@cp"; with or without [ ].
 * Axes not named are R. Negative dims count from the end. "S(1)@dp, S(1)@tp" nests as written.
 * Errors: DT_ERR_PLACEMENT for an unknown axis, an axis named twice, a dim out of range, and any
 * text that is no layout (the message says what was expected where). */
DT_NODISCARD dt_status dt_layout_parse(const dt_grid *grid, dt_shape shape, const char *text,
                                       dt_layout *layout_out);
/* "[S(0)@tp>dp, P@cp]", "[R]" when all axes are R. Parses back to the same layout. Returns buf. */
enum { DT_LAYOUT_TEXT = 400 };
const char *dt_layout_print(const dt_layout *layout, char *buf, size_t size_bytes);

dt_placement dt_layout_at(const dt_layout *layout, int axis);
bool dt_layout_equal(const dt_layout *a, const dt_layout *b);
uint64_t dt_layout_hash(const dt_layout *layout);
/* Errors: DT_ERR_PLACEMENT: axis placed twice, dim out of range, nonzero unused field ... */
DT_NODISCARD dt_status dt_layout_check(const dt_layout *layout);

/* Edits on values. `shard` appends the axis (it is R) as the innermost split of the dim; `clear`
 * makes the axis R. */
void dt_layout_shard(dt_layout *layout, int axis, int dim);
void dt_layout_clear(dt_layout *layout, int axis);
/* Position of an axis in the order of the dim it shards, 0 = outermost; -1 if it shards none. */
int dt_layout_depth(const dt_layout *layout, int axis);
/* The placements that the adjoint of a redistribute returns: R -> R, S -> S, P -> R. */
dt_layout dt_layout_dual(const dt_layout *layout);

/* The part of dim `dim` owned by the rank at `coord`: [lo, hi). */
void dt_layout_range(const dt_layout *layout, int dim, const int coord[DT_MAX_AXES],
                     int64_t *lo_out, int64_t *hi_out);
/* Local shape of the rank at `coord`, and (if not NULL) the global index of its first element. */
dt_shape dt_layout_local(const dt_layout *layout, const int coord[DT_MAX_AXES],
                         int64_t offset_out[DT_MAX_DIMS]);
