/* tests/dtensor/test_rule_brute.c - the rules against what they mean. For sums of products,
 * every layout of every operand on grids of two axes: where dt_rule_letters accepts, all ranks
 * are computed in this process on their local arrays of whole numbers (rule_sim.h), and the
 * gathered value and gradients must equal those of one rank. Wrong rules must be noticed. */
#include "tests/dtensor/rule_sim.h"
#include "tests/harness.h"

#include <string.h>

enum { MAX_LAYOUTS = 64, ALL = 0xff };

/* accepted: how many of all layouts on two axes the specification accepts (prototype, counted
 * once). */
typedef struct rule_case {
    const char *spec;
    int accepted;
} rule_case;

static const rule_case cases[] = {
    {"bsk,nk->bsn", 53}, {"bsk,nk+n->bsn", 128}, {"bk,kcn+cn->bcn", 128}, {"bsn+bsn->bsn", 52},
    {"bsn+sn->bsn", 52}, {"bsn,bsn->bsn", 39},   {"bn,n+b,b->bn", 123},   {"bsn,n->bs", 39},
    {"bsn->", 28},       {"bk,kn,nc->bc", 68},   {"bsn,bsn->", 39},       {"bk,k+bk->b", 66},
};

static const dt_grid grids[] = {
    {.naxes = 2, .size = {2, 3}, .name = {"a", "b"}},
    {.naxes = 2, .size = {2, 2}, .name = {"a", "b"}},
    {.naxes = 2, .size = {1, 3}, .name = {"a", "b"}},
};

/* The rules under test, or wrong ones. */
typedef struct rules {
    const char *what;
    dt_status (*infer)(dt_rule *r, const char *spec);
    sim_grad grad;
} rules;

/* ---- all layouts ---- */

/* Every layout of a shape on two axes: R, P, S(d) each, and both orders of a nest. */
static int all_layouts(const dt_grid *grid, dt_shape shape, dt_layout *out)
{
    int n = 0;
    for (int pa = -2; pa < shape.ndim; pa++) {
        for (int pb = -2; pb < shape.ndim; pb++) {
            for (int first = 0; first < (pa >= 0 && pa == pb ? 2 : 1); first++) {
                const int at[2] = {pa, pb};
                dt_layout l = dt_layout_replicated(grid, shape);
                l.partial = (uint8_t)((pa == -1) | (pb == -1) << 1);
                for (int k = 0; k < 2; k++) {
                    const int axis = first ^ k;
                    if (at[axis] >= 0)
                        dt_layout_shard(&l, axis, at[axis]);
                }
                out[n++] = l;
            }
        }
    }
    return n;
}

/* Counts accepted applications; stops at the first wrong one and says so. */
static bool check_case(const rule_case *c, const dt_grid *grid, const rules *u, int *accepted_out)
{
    const sim_op o = sim_parse(c->spec);
    static dt_layout layouts[SIM_MAX_IN][MAX_LAYOUTS];
    int n[SIM_MAX_IN], at[SIM_MAX_IN] = {0}, i = 0;
    *accepted_out = 0;
    for (int k = 0; k < o.n; k++)
        n[k] = all_layouts(grid, sim_shape(o.in[k]), layouts[k]);
    while (i < o.n) {
        dt_rule r = {.name = c->spec, .linear = ALL, .nin = o.n, .nout = 1};
        for (int k = 0; k < o.n; k++)
            r.in[k] = &layouts[k][at[k]];
        const dt_status st = u->infer(&r, c->spec);
        ck_assert(st == DT_OK || st == DT_ERR_PLACEMENT);
        *accepted_out += st == DT_OK;
        if (st == DT_OK && !sim_is_right(&o, &r, u->grad))
            return false;
        for (i = 0; i < o.n && ++at[i] == n[i]; i++)
            at[i] = 0;
    }
    dt_error_clear();
    return true;
}

static dt_status honest_infer(dt_rule *r, const char *spec)
{
    return dt_rule_letters(r, spec, NULL);
}

START_TEST(test_accepted_layouts_mean_the_same_as_one_rank)
{
    const rules honest = {"honest", honest_infer, dt_rule_grad};
    int accepted;
    for (int g = 0; g < DT_COUNT(grids); g++) {
        for (int i = 0; i < DT_COUNT(cases); i++) {
            ck_assert_msg(check_case(&cases[i], &grids[g], &honest, &accepted), "%s on grid %d",
                          cases[i].spec, g);
            ck_assert_msg(accepted == cases[i].accepted, "%s: %d accepted, specification has %d",
                          cases[i].spec, accepted, cases[i].accepted);
        }
    }
}
END_TEST

/* ---- wrong rules ---- */

/* Infer from edited operands. */
static dt_status infer_seen(dt_rule *r, const char *spec, const dt_layout *seen)
{
    dt_rule other = *r;
    for (int i = 0; i < r->nin; i++)
        other.in[i] = &seen[i];
    DT_TRY(dt_rule_letters(&other, spec, NULL));
    r->out[0] = other.out[0];
    memcpy(r->zeroed, other.zeroed, sizeof r->zeroed);
    return DT_OK;
}

static dt_status product_of_sums(dt_rule *r, const char *spec)
{
    const sim_op o = sim_parse(spec);
    dt_layout seen[SIM_MAX_IN];
    uint8_t partial[SIM_MAX_IN] = {0}; /* of each term so far */
    for (int i = 0; i < r->nin; i++) {
        seen[i] = *r->in[i];
        seen[i].partial &= (uint8_t)~partial[o.term[i]];
        partial[o.term[i]] |= seen[i].partial;
    }
    return infer_seen(r, spec, seen);
}

static dt_status any_order(dt_rule *r, const char *spec)
{
    dt_layout seen[SIM_MAX_IN];
    for (int i = 0; i < r->nin; i++) {
        seen[i] = *r->in[i];
        for (int d = 0; d < seen[i].shape.ndim; d++) {
            if (seen[i].nsplit[d] == 2) {
                seen[i].split[d][0] = 0;
                seen[i].split[d][1] = 1;
            }
        }
    }
    return infer_seen(r, spec, seen);
}

static dt_status no_rule_4(dt_rule *r, const char *spec)
{
    DT_TRY(dt_rule_letters(r, spec, NULL));
    memset(r->zeroed, 0, sizeof r->zeroed);
    return DT_OK;
}

static dt_status summed_letter_gives_r(dt_rule *r, const char *spec)
{
    DT_TRY(dt_rule_letters(r, spec, NULL));
    for (int i = 0; i < r->nin; i++) {
        for (int a = 0; a < r->in[i]->grid->naxes; a++) {
            if (dt_layout_at(r->in[i], a).kind == DT_SHARD)
                r->out[0].partial &= (uint8_t) ~(1u << a);
        }
    }
    return DT_OK;
}

static dt_layout grad_forgets_zeroed(const dt_layout *operand, uint8_t zeroed, const dt_layout *out,
                                     const dt_layout *dy)
{
    (void)zeroed;
    return dt_rule_grad(operand, 0, out, dy);
}

static dt_layout grad_of_r_is_r(const dt_layout *operand, uint8_t zeroed, const dt_layout *out,
                                const dt_layout *dy)
{
    (void)zeroed, (void)out, (void)dy;
    return dt_layout_dual(operand);
}

static dt_layout grad_forgets_dy(const dt_layout *operand, uint8_t zeroed, const dt_layout *out,
                                 const dt_layout *dy)
{
    const dt_layout dual = dt_layout_dual(dy);
    return dt_rule_grad(operand, zeroed, out, &dual);
}

START_TEST(test_wrong_rules_are_noticed)
{
    static const rules wrong[] = {
        {"a product of two P is P", product_of_sums, dt_rule_grad},
        {"axes may nest in any order", any_order, dt_rule_grad},
        {"R terms beside P stay R", no_rule_4, dt_rule_grad},
        {"a summed sharded letter gives R", summed_letter_gives_r, dt_rule_grad},
        {"zeroed terms get a P gradient", honest_infer, grad_forgets_zeroed},
        {"R operands get an R gradient", honest_infer, grad_of_r_is_r},
        {"a P gradient of an R output counts as R", honest_infer, grad_forgets_dy},
    };
    for (int w = 0; w < DT_COUNT(wrong); w++) {
        int noticed = 0, accepted;
        for (int i = 0; i < DT_COUNT(cases); i++)
            noticed += !check_case(&cases[i], &grids[0], &wrong[w], &accepted);
        ck_assert_msg(noticed > 0, "not noticed: %s", wrong[w].what);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rules by brute force");
    TCase *tc = tcase_create("brute");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_accepted_layouts_mean_the_same_as_one_rank);
    tcase_add_test(tc, test_wrong_rules_are_noticed);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
