/* dtensor/rule_print.c - the table of an op's rules: every accepted row of placements on one
 * axis, with its gradients.
 * Read first: dtensor/dt_rule.h.
 *
 *     linear    bsk,nk->bsn
 *         S(2) S(1)            -> P      grad R     -> S(2) S(1)
 *         operands                output      of dy    of the operands' gradients */
#include "dtensor/dtensor_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 256, PLACEMENT_TEXT = 16 };

/* The size of a letter's dim. Some are odd or prime, so that the table shows where uneven bounds
 * forbid a row; heads h are a multiple of groups g, and the other letters divide by 2. */
static int64_t letter_size(char letter)
{
    static const char letters[] = "bsnkmvhgdc";
    static const int sizes[] = {3, 5, 4, 6, 2, 7, 4, 2, 4, 3};
    const char *p = strchr(letters, tolower((unsigned char)letter));
    return p ? sizes[p - letters] : 4;
}

typedef void (*line_printer)(void *arg, const char *line);

static const char *placement_text(const dt_layout *layout, char buf[PLACEMENT_TEXT])
{
    const dt_placement p = dt_layout_at(layout, 0);
    if (p.kind == DT_SHARD)
        (void)snprintf(buf, PLACEMENT_TEXT, "S(%d)", p.dim);
    else
        (void)snprintf(buf, PLACEMENT_TEXT, "%s", p.kind == DT_PARTIAL ? "P" : "R");
    return buf;
}

/* "S(0) R P" */
static const char *row_text(int n, const dt_layout *layouts, char buf[LINE_BYTES])
{
    char one[PLACEMENT_TEXT];
    int used = 0;
    buf[0] = 0;
    for (int i = 0; i < n; i++)
        used += snprintf(buf + used, (size_t)(LINE_BYTES - used), "%s%s", i ? " " : "",
                         placement_text(&layouts[i], one));
    return buf;
}

/* Shapes of the operands, one a word; all R. */
static dt_status read_words(const char *name, const char *spec, const dt_grid *grid, dt_layout *in,
                            int *nin_out)
{
    int n = 0;
    const char *p = spec;
    for (;; p++) {
        dt_shape shape = {0};
        DT_REQUIRE(n < DT_OP_MAX_IN, DT_ERR_ARG, "%s: '%s' has more than %d operands", name, spec,
                   DT_OP_MAX_IN);
        for (; isalpha((unsigned char)*p) && shape.ndim < DT_MAX_DIMS; p++)
            shape.dim[shape.ndim++] = letter_size(*p);
        in[n++] = dt_layout_replicated(grid, shape);
        if (*p != ',' && *p != '+')
            break;
    }
    DT_REQUIRE(p[0] == '-' && p[1] == '>', DT_ERR_ARG,
               "%s: '%s' is not words of letters before '->'", name, spec);
    *nin_out = n;
    return DT_OK;
}

/* The next placement in the order R, P, S(0), S(1) ...; false after the last, which is R again. */
static bool advance(dt_layout *layout)
{
    const dt_placement p = dt_layout_at(layout, 0);
    const int next = p.kind == DT_SHARD ? p.dim + 1 : 0;
    dt_layout_clear(layout, 0);
    if (p.kind == DT_REPLICATE)
        layout->partial = 1;
    else if (next < layout->shape.ndim)
        dt_layout_shard(layout, 0, next);
    else
        return false;
    return true;
}

static void print_row(const dt_rule *r, const dt_layout *in, const dt_layout *dy,
                      line_printer print, void *arg)
{
    dt_layout grad[DT_OP_MAX_IN];
    char a[LINE_BYTES], b[PLACEMENT_TEXT], c[PLACEMENT_TEXT], d[LINE_BYTES], line[3 * LINE_BYTES];
    for (int i = 0; i < r->nin; i++) {
        grad[i] = dt_rule_grad(r->in[i], r->zeroed[i], &r->out[0], dy);
        grad[i].partial |= r->summed[i];
    }
    (void)snprintf(line, sizeof line, "    %-20s -> %-5s  grad %-5s -> %s", row_text(r->nin, in, a),
             placement_text(&r->out[0], b), placement_text(dy, c), row_text(r->nin, grad, d));
    print(arg, line);
}

static void print_rows(const dt_rule *r, const dt_layout *in, line_printer print, void *arg)
{
    dt_layout dy = dt_layout_dual(&r->out[0]);
    print_row(r, in, &dy, print, arg);
    if (dt_layout_at(&r->out[0], 0).kind == DT_REPLICATE) {
        dy.partial = 1;
        print_row(r, in, &dy, print, arg);
    }
}

dt_status dt_rules_print(const char *name, const char *spec, uint32_t linear, dt_infer infer,
                         const void *attr, line_printer print, void *arg)
{
    const dt_grid grid = {.naxes = 1, .size = {2}, .name = {"a"}};
    dt_rule r = {.name = name, .attr = attr, .linear = linear, .nout = 1};
    dt_layout in[DT_OP_MAX_IN];
    char header[LINE_BYTES];
    DT_TRY(read_words(name, spec, &grid, in, &r.nin));
    for (int i = 0; i < r.nin; i++)
        r.in[i] = &in[i];
    (void)snprintf(header, sizeof header, "%s    %s", name, spec);
    print(arg, header);
    for (;;) {
        memset(r.summed, 0, sizeof r.summed);
        const dt_status st = dti_rule_infer(&r, infer, spec);
        if (st != DT_OK && st != DT_ERR_PLACEMENT)
            return dt_error_push(st, __FILE__, __LINE__, __func__);
        dt_error_clear();
        if (st == DT_OK)
            print_rows(&r, in, print, arg);
        int i = r.nin - 1; /* an odometer, the last operand fastest */
        while (i >= 0 && !advance(&in[i]))
            i--;
        if (i < 0)
            return DT_OK;
    }
}
