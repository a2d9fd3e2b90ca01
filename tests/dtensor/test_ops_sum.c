/* tests/dtensor/test_ops_sum.c - element by element, and over dims: add, mul, sum, scale. Expected
 * counts of accepted rows: tests/dtensor/RULES.txt. */
#include "tests/dtensor/op_check.h"

/* ---- add and mul ---- */

static void add(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_add(t, in[0], in[1]);
}

static void mul(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_mul(t, in[0], in[1]);
}

/* counts of the operands; the smaller one repeats */
typedef struct counts {
    int x, y;
} counts;

static void add_naive(const double *const *in, double *const *out, const void *arg)
{
    const counts *n = arg;
    for (int i = 0; i < (n->x > n->y ? n->x : n->y); i++)
        out[0][i] = in[0][i % n->x] + in[1][i % n->y];
}

static void mul_naive(const double *const *in, double *const *out, const void *arg)
{
    const counts *n = arg;
    for (int i = 0; i < (n->x > n->y ? n->x : n->y); i++)
        out[0][i] = in[0][i % n->x] * in[1][i % n->y];
}

START_TEST(add_and_mul_rows)
{
    const dt_shape shapes[][2] = {{DT_SHAPE(3, 2, 5), DT_SHAPE(3, 2, 5)},
                                  {DT_SHAPE(3, 2, 5), DT_SHAPE(2, 5)},
                                  {DT_SHAPE(5), DT_SHAPE(3, 2, 5)},
                                  {DT_SHAPE(3, 2, 5), DT_SCALAR}};
    for (int i = 0; i < DT_COUNT(shapes); i++) {
        const counts n = {(int)dt_shape_count(shapes[i][0]), (int)dt_shape_count(shapes[i][1])};
        op_check_spec spec = {.name = "add",
                              .call = add,
                              .naive = add_naive,
                              .arg = &n,
                              .nin = 2,
                              .shape = {shapes[i][0], shapes[i][1]},
                              .accept = 7};
        op_check(&spec);
        spec.name = "mul";
        spec.call = mul;
        spec.naive = mul_naive;
        spec.accept = 6;
        op_check(&spec);
    }
}
END_TEST

/* ---- sum and scale ---- */

static void sum(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    const uint32_t *dims = arg;
    out[0] = dt_sum(t, in[0], *dims);
}

/* x [3, 2, 5] */
static void sum_naive(const double *const *in, double *const *out, const void *arg)
{
    const uint32_t dims = *(const uint32_t *)arg ? *(const uint32_t *)arg : 7;
    const int size[3] = {3, 2, 5};
    for (int j = 0; j < 30; j++) {
        const int index[3] = {j / 10, j / 5 % 2, j % 5};
        int at = 0;
        for (int d = 0; d < 3; d++)
            at = dims >> d & 1 ? at : at * size[d] + index[d];
        out[0][at] += in[0][j];
    }
}

START_TEST(sum_rows)
{
    for (uint32_t dims = 0; dims < 8; dims++)
        op_check(&(op_check_spec){.name = "sum",
                                  .call = sum,
                                  .naive = sum_naive,
                                  .arg = &dims,
                                  .nin = 1,
                                  .shape = {DT_SHAPE(3, 2, 5)},
                                  .accept = 5});
}
END_TEST

static void scale(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    out[0] = dt_scale(t, in[0], *(const double *)arg);
}

static void scale_naive(const double *const *in, double *const *out, const void *arg)
{
    for (int j = 0; j < 30; j++)
        out[0][j] = in[0][j] * *(const double *)arg;
}

START_TEST(scale_rows)
{
    const double factor = -2.5;
    op_check(&(op_check_spec){.name = "scale",
                              .call = scale,
                              .naive = scale_naive,
                              .arg = &factor,
                              .nin = 1,
                              .shape = {DT_SHAPE(3, 2, 5)},
                              .accept = 5});
}
END_TEST

/* ---- placements of results and gradients: O6 of the map of PyTorch's tests ---- */

#define S0 "S(0)@axisA"
#define P  "P@axisA"

START_TEST(placements_of_sum)
{
    static const uint32_t dims[] = {0, 1, 2, 4, 3, 5, 6, 7};
    static const char *const out[] = {P, P, S0, S0, P, P, S0, P};
    op_check_spec spec[DT_COUNT(dims)];
    op_check_row rows[DT_COUNT(dims)] = {{0}};
    for (int i = 0; i < DT_COUNT(dims); i++) {
        spec[i] = (op_check_spec){
            .name = "sum", .call = sum, .arg = &dims[i], .nin = 1, .shape = {DT_SHAPE(12, 8, 8)}};
        rows[i] = (op_check_row){&spec[i], {S0}, out[i], {S0}};
    }
    op_check_rows(rows, DT_COUNT(dims));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ops: sums");
    TCase *tc = tcase_create("rules");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, add_and_mul_rows);
    tcase_add_test(tc, sum_rows);
    tcase_add_test(tc, scale_rows);
    tcase_add_test(tc, placements_of_sum);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
