/* tests/dtensor/rule_sim.c - see tests/dtensor/rule_sim.h. */
#include "tests/dtensor/rule_sim.h"

#include <string.h>

enum { MAX_RANKS = 6, MAX_ELEMS = 64 };

/* ---- sums of products on small arrays ---- */

typedef double array[MAX_ELEMS];
typedef int64_t letter_sizes['z' + 1]; /* -1: not met */

sim_op sim_parse(const char *spec)
{
    sim_op o = {.nterms = 1};
    const char *p = spec;
    for (; *p != '-'; p++) {
        if (*p == ',' || *p == '+') {
            o.nterms += *p == '+';
            o.term[++o.n] = o.nterms - 1;
        } else {
            o.in[o.n][strlen(o.in[o.n])] = *p;
        }
    }
    o.n++;
    strcpy(o.out, p + 2);
    return o;
}

dt_shape sim_shape(const char *word)
{
    static const char letters[] = "bsnkc";
    static const int64_t sizes[] = {3, 2, 4, 5, 2};
    dt_shape s = {.ndim = (int)strlen(word)};
    for (int d = 0; d < s.ndim; d++)
        s.dim[d] = sizes[strchr(letters, word[d]) - letters];
    return s;
}

static int64_t offset(const char *word, const int64_t *size, const int64_t *at)
{
    int64_t x = 0;
    for (; *word; word++)
        x = x * size[(int)*word] + at[(int)*word];
    return x;
}

/* One term, for every assignment of its letters and the output's. which < 0: dst = the output.
 * Else dst = the gradient of operand `which`, of which dy takes the place. */
static void add_term(const sim_op *o, int term, const int64_t *size, array *in, const double *dy,
                     int which, double *dst)
{
    char letters[2 * DT_MAX_DIMS * SIM_MAX_IN] = "";
    letter_sizes at = {0};
    int64_t count = 1;
    strcpy(letters, o->out);
    for (int i = 0; i < o->n; i++) {
        for (const char *p = o->in[i]; *p && o->term[i] == term; p++) {
            if (!strchr(letters, *p))
                letters[strlen(letters)] = *p;
        }
    }
    for (const char *p = letters; *p; p++)
        count *= size[(int)*p];
    for (int64_t k = 0; k < count; k++) {
        double x = which < 0 ? 1 : dy[offset(o->out, size, at)];
        for (int i = 0; i < o->n; i++)
            x *= o->term[i] == term && i != which ? in[i][offset(o->in[i], size, at)] : 1;
        dst[offset(which < 0 ? o->out : o->in[which], size, at)] += x;
        for (const char *p = letters; *p && ++at[(int)*p] == size[(int)*p]; p++)
            at[(int)*p] = 0;
    }
}

static void forward(const sim_op *o, const int64_t *size, array *in, double *out)
{
    memset(out, 0, sizeof(array));
    for (int t = 0; t < o->nterms; t++)
        add_term(o, t, size, in, NULL, -1, out);
}

static void gradient(const sim_op *o, const int64_t *size, array *in, const double *dy, int i,
                     double *din)
{
    memset(din, 0, sizeof(array));
    add_term(o, o->term[i], size, in, dy, i, din);
}

/* False if a letter has two sizes. */
static bool add_sizes(const char *word, dt_shape shape, int64_t *size)
{
    for (int d = 0; word[d]; d++) {
        int64_t *s = &size[(int)word[d]];
        if (*s >= 0 && *s != shape.dim[d])
            return false;
        *s = shape.dim[d];
    }
    return true;
}

/* ---- what a layout means ---- */

/* A whole number in [-3, 3]. */
static double number(unsigned seed, unsigned i)
{
    unsigned x = (seed * 0x9e3779b9u) ^ (i * 0x85ebca6bu);
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return (double)((x ^ x >> 15) % 7u) - 3;
}

static int64_t global_index(const dt_layout *l, const int64_t *off, dt_shape local, int64_t k)
{
    int64_t index = 0, scale = 1;
    for (int d = local.ndim - 1; d >= 0; d--) {
        index += (off[d] + k % local.dim[d]) * scale;
        k /= local.dim[d];
        scale *= l->shape.dim[d];
    }
    return index;
}

/* The rank whose coordinates on the axes outside of `keep` are 0. */
static int project(const dt_grid *g, int rank, unsigned keep)
{
    int coord[DT_MAX_AXES];
    dt_grid_coord(g, rank, coord);
    for (int a = 0; a < g->naxes; a++)
        coord[a] = keep >> a & 1 ? coord[a] : 0;
    return dt_grid_rank(g, coord);
}

/* P: random parts that add up; equal on the ranks of R axes. */
static void scatter(const dt_layout *l, const double *global, unsigned seed, array *local)
{
    const int nranks = dt_grid_count(l->grid);
    for (int rank = 0; rank < nranks; rank++) {
        int coord[DT_MAX_AXES];
        int64_t off[DT_MAX_DIMS];
        dt_grid_coord(l->grid, rank, coord);
        const dt_shape shape = dt_layout_local(l, coord, off);
        const int corner = project(l->grid, rank, l->partial);
        for (int64_t k = 0; k < dt_shape_count(shape); k++) {
            const int64_t e = global_index(l, off, shape, k);
            double rest = global[e];
            for (int c = 1; c < nranks; c++) {
                if (project(l->grid, c, l->partial) == c)
                    rest -= number(seed + (unsigned)c, (unsigned)e);
            }
            local[rank][k] = corner ? number(seed + (unsigned)corner, (unsigned)e) : rest;
        }
    }
}

/* Do the local arrays mean this global array? R: equal on the ranks of the axis, also where it
 * is P on another. */
static bool means(const dt_layout *l, array *local, const double *global)
{
    array sum = {0};
    unsigned varies = 0;
    for (int a = 0; a < l->grid->naxes; a++)
        varies |= (unsigned)(dt_layout_at(l, a).kind != DT_REPLICATE) << a;
    for (int rank = 0; rank < dt_grid_count(l->grid); rank++) {
        int coord[DT_MAX_AXES];
        int64_t off[DT_MAX_DIMS];
        dt_grid_coord(l->grid, rank, coord);
        const dt_shape shape = dt_layout_local(l, coord, off);
        const int first = project(l->grid, rank, varies);
        for (int64_t k = 0; k < dt_shape_count(shape); k++) {
            if (local[rank][k] != local[first][k])
                return false;
            sum[global_index(l, off, shape, k)] += first == rank ? local[rank][k] : 0;
        }
    }
    return !memcmp(sum, global, (size_t)dt_shape_count(l->shape) * sizeof *sum);
}

/* ---- one application ---- */

typedef struct trial {
    const sim_op *o;
    const dt_rule *r;
    letter_sizes whole, part[MAX_RANKS]; /* sizes of letters: global, of each rank */
    array global[SIM_MAX_IN];
    array local[SIM_MAX_IN][MAX_RANKS];
} trial;

static void inputs_of_rank(const trial *t, int rank, bool zero, array *in)
{
    int coord[DT_MAX_AXES];
    dt_grid_coord(t->r->out[0].grid, rank, coord);
    for (int i = 0; i < SIM_MAX_IN; i++) {
        bool keep = true;
        for (int a = 0; a < t->r->out[0].grid->naxes; a++)
            keep &= !(t->r->zeroed[i] >> a & 1) || coord[a] == 0;
        memset(in[i], 0, sizeof(array));
        if (keep || !zero)
            memcpy(in[i], t->local[i][rank], sizeof(array));
    }
}

static bool place_inputs(trial *t)
{
    memset(t->whole, -1, sizeof t->whole);
    memset(t->part, -1, sizeof t->part);
    for (int i = 0; i < t->o->n; i++) {
        const dt_layout *l = t->r->in[i];
        (void)add_sizes(t->o->in[i], l->shape, t->whole);
        for (int k = 0; k < MAX_ELEMS; k++)
            t->global[i][k] = number(1000u * (unsigned)(i + 1), (unsigned)k);
        scatter(l, t->global[i], 100u * (unsigned)(i + 1), t->local[i]);
    }
    for (int rank = 0; rank < dt_grid_count(t->r->out[0].grid); rank++) {
        int coord[DT_MAX_AXES];
        dt_grid_coord(t->r->out[0].grid, rank, coord);
        bool agree =
            add_sizes(t->o->out, dt_layout_local(&t->r->out[0], coord, NULL), t->part[rank]);
        for (int i = 0; i < t->o->n; i++)
            agree &=
                add_sizes(t->o->in[i], dt_layout_local(t->r->in[i], coord, NULL), t->part[rank]);
        if (!agree)
            return false;
    }
    return true;
}

static bool value_is_right(const trial *t)
{
    const dt_layout *out = &t->r->out[0];
    array want, got[MAX_RANKS], in[SIM_MAX_IN];
    memcpy(in, t->global, sizeof in);
    forward(t->o, t->whole, in, want);
    for (int rank = 0; rank < dt_grid_count(out->grid); rank++) {
        inputs_of_rank(t, rank, true, in);
        forward(t->o, t->part[rank], in, got[rank]);
    }
    return means(out, got, want);
}

/* Gradients of all operands for one layout of the output's gradient. */
static bool gradients_are_right(const trial *t, const dt_layout *dy_at, sim_grad grad)
{
    array dy, dy_local[MAX_RANKS], want, got[MAX_RANKS], in[SIM_MAX_IN];
    for (int k = 0; k < MAX_ELEMS; k++)
        dy[k] = number(77, (unsigned)k);
    scatter(dy_at, dy, 900, dy_local);
    for (int i = 0; i < t->o->n; i++) {
        memcpy(in, t->global, sizeof in);
        gradient(t->o, t->whole, in, dy, i, want);
        for (int rank = 0; rank < dt_grid_count(dy_at->grid); rank++) {
            inputs_of_rank(t, rank, false, in);
            gradient(t->o, t->part[rank], in, dy_local[rank], i, got[rank]);
        }
        const dt_layout at = grad(t->r->in[i], t->r->zeroed[i], &t->r->out[0], dy_at);
        if (!means(&at, got, want))
            return false;
    }
    return true;
}

bool sim_is_right(const sim_op *o, const dt_rule *r, sim_grad grad)
{
    static trial t;
    t.o = o;
    t.r = r;
    if (!place_inputs(&t) || !value_is_right(&t))
        return false;
    unsigned replicated = 0;
    const dt_layout dual = dt_layout_dual(&r->out[0]);
    for (int a = 0; a < dual.grid->naxes; a++)
        replicated |= (unsigned)(dt_layout_at(&r->out[0], a).kind == DT_REPLICATE) << a;
    for (unsigned p = 0; p <= replicated; p++) {
        dt_layout dy = dual;
        dy.partial = (uint8_t)p;
        if (!(p & ~replicated) && !gradients_are_right(&t, &dy, grad))
            return false;
    }
    return true;
}
