/* tests/fsdp/test_clip.c - norms of order 1, 2, 3 and infinity of sharded gradients, and clipping
 * by them: the total is one rank's, as the formula has it; one all-reduce whatever the mesh
 * (PyTorch has one for each dim of the mesh); afterwards no local shard exceeds the maximum. (F13
 * of the tests that PyTorch has for fully_shard.) */
#include "comm/comm_internal.h"
#include "tests/fsdp/net.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 64, NORDERS = 4 };
#define MAX_NORM 1.0

static const double orders[NORDERS] = {1, 2, 3, INFINITY};

/* The norm as it is defined, of n numbers, joined to `sum` (the power, or the largest). */
static double joined(double order, double sum, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double size = fabs((double)x[i]);
        sum = !isinf(order) ? sum + pow(size, order) : sum > size ? sum : size;
    }
    return sum;
}

static double rooted(double order, double sum)
{
    return isinf(order) ? sum : pow(sum, 1 / order);
}

typedef struct totals {
    const net_case *c;
    double made[NORDERS], formula[NORDERS]; /* of the whole gradient */
} totals;

/* Gradients times the factor: each shard is at most as large as the maximum. */
static dt_status clipped(int np, dt_local grads[], double order, double total)
{
    const double factor = dt_clip_factor(total, MAX_NORM);
    TEST_THAT(total > 1.1 * MAX_NORM && factor < 1, "order %g: %g is nothing to clip", order,
              total);
    for (int i = 0; i < np; i++) {
        const int64_t n = dt_array_count(&grads[i].array);
        float *host = calloc((size_t)n + 1, sizeof *host);
        TEST_THAT(host, "memory");
        DT_TRY(dt_array_read(&grads[i].array, host, n));
        for (int64_t k = 0; k < n; k++)
            host[k] *= (float)factor;
        const double norm = rooted(order, joined(order, 0, host, n));
        free(host);
        TEST_THAT(norm <= MAX_NORM, "order %g: shard %d has %g", order, i, norm);
    }
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    totals *t = arg;
    dt_local grads[MOST];
    double loss = 0, made[NORDERS], formula[NORDERS];
    float *whole = NULL;
    int64_t count = 0;
    int np = 0;
    net n;
    dt_comm *all = dt_world_comm(world);
    DT_TRY(net_open(t->c, world, &n));
    DT_TRY(net_gradients(&n, 0, &loss));
    dt_param *const *p = dt_module_params(n.root, &np);
    TEST_THAT(np <= MOST, "%d parameters", np);
    for (int i = 0; i < np; i++) {
        dt_local *g = dt_tensor_grad(p[i]->tensor);
        dt_array_scale(&g->array, 64); /* so that there is something to clip */
        grads[i] = *g;
    }
    DT_TRY(net_grads(&n, &count, &whole));
    for (int k = 0; k < NORDERS; k++) {
        formula[k] = rooted(orders[k], joined(orders[k], 0, whole, count));
        const int64_t before = all->collectives; /* dt_counts has not those of host values */
        DT_TRY(dt_global_norm_of_order_sync(orders[k], np, grads, all, &made[k], NULL));
        TEST_THAT(all->collectives - before == (dt_world_size(world) > 1), "order %g: %lld calls",
                  orders[k], (long long)(all->collectives - before));
        DT_TRY(clipped(np, grads, orders[k], made[k]));
    }
    for (int k = 0; k < NORDERS && dt_world_rank(world) == 0; k++) {
        t->made[k] = made[k];
        t->formula[k] = formula[k];
    }
    free(whole);
    net_close(&n);
    return DT_OK;
}

/* Shards; replicas; with tensor parallelism; all three. Rows that do not divide. */
START_TEST(norms_are_those_of_one_rank)
{
    static const int mesh[][3] = {{2, 1, 1}, {4, 1, 1}, {3, 1, 1}, {2, 2, 1},
                                  {2, 1, 2}, {3, 1, 2}, {2, 2, 2}};
    net_case one = {.blocks = 3, .n = _i % 2 ? 17 : 16, .hidden = 10, .batch = 8, .plain = true};
    net_case c = one;
    c.plain = false;
    c.shard = mesh[_i / 2][0];
    c.replicate = mesh[_i / 2][1];
    c.tp = mesh[_i / 2][2];
    totals a = {.c = &c}, b = {.c = &one};
    test_ranks(1, body, &b);
    test_ranks(net_ranks(&c), body, &a);
    for (int k = 0; k < NORDERS; k++) {
        ck_assert_msg(fabs(a.made[k] - a.formula[k]) <= 1e-12 * a.formula[k],
                      "order %g: %.17g, formula %.17g", orders[k], a.made[k], a.formula[k]);
        ck_assert_msg(fabs(a.made[k] - b.made[k]) <= 2e-6 * b.made[k],
                      "order %g: %.9g, one rank %.9g", orders[k], a.made[k], b.made[k]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard norms");
    TCase *tc = tcase_create("clip");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, norms_are_those_of_one_rank, 0, 14);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
