/* tests/dtensor/test_ops_product.c - sums of products: linear, matmul, product. Expected
 * counts of accepted rows: tests/dtensor/RULES.txt. */
#include "tests/dtensor/op_check.h"

/* ---- linear ---- */

static void linear(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    const bool *bias = arg;
    out[0] = dt_linear(t, in[0], in[1], *bias ? in[2] : NULL);
}

/* x [3, 2, 5], w [6, 5], b [6] */
static void linear_naive(const double *const *in, double *const *out, const void *arg)
{
    const bool *bias = arg;
    for (int r = 0; r < 6; r++)
        for (int n = 0; n < 6; n++) {
            double sum = *bias ? in[2][n] : 0;
            for (int k = 0; k < 5; k++)
                sum += in[0][r * 5 + k] * in[1][n * 5 + k];
            out[0][r * 6 + n] = sum;
        }
}

static void linear_in_out(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_linear_in_out(t, in[0], in[1], in[2]);
}

/* x [3, 5], w [5, N], b [N], N = 6 however it is shaped */
static void linear_in_out_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int r = 0; r < 3; r++)
        for (int n = 0; n < 6; n++) {
            double sum = in[2][n];
            for (int k = 0; k < 5; k++)
                sum += in[0][r * 5 + k] * in[1][k * 6 + n];
            out[0][r * 6 + n] = sum;
        }
}

START_TEST(linear_rows)
{
    const bool no = false, yes = true;
    op_check(&(op_check_spec){.name = "linear",
                              .call = linear,
                              .naive = linear_naive,
                              .arg = &no,
                              .nin = 2,
                              .shape = {DT_SHAPE(3, 2, 5), DT_SHAPE(6, 5)},
                              .accept = 7});
    op_check(&(op_check_spec){.name = "linear",
                              .call = linear,
                              .naive = linear_naive,
                              .arg = &yes,
                              .nin = 3,
                              .shape = {DT_SHAPE(3, 2, 5), DT_SHAPE(6, 5), DT_SHAPE(6)},
                              .accept = 11});
}
END_TEST

START_TEST(linear_in_out_rows)
{
    op_check_spec spec = {.name = "linear_in_out",
                          .call = linear_in_out,
                          .naive = linear_in_out_naive,
                          .nin = 3,
                          .shape = {DT_SHAPE(3, 5), DT_SHAPE(5, 6), DT_SHAPE(6)},
                          .accept = 10};
    op_check(&spec);
    spec.shape[1] = DT_SHAPE(5, 2, 3);
    spec.shape[2] = DT_SHAPE(2, 3);
    spec.accept = 11;
    op_check(&spec);
    spec.shape[1] = DT_SHAPE(5, 1, 3, 2);
    spec.shape[2] = DT_SHAPE(1, 3, 2);
    spec.accept = 12;
    op_check(&spec);
}
END_TEST

/* ---- matmul ---- */

typedef struct matmul_sizes {
    int batch_a, batch_b; /* outermost; 0: lacking. Both: they agree */
    int m, k, n;
} matmul_sizes;

static void matmul(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_matmul(t, in[0], in[1]);
}

static void matmul_naive(const double *const *in, double *const *out, const void *arg)
{
    const matmul_sizes *s = arg;
    const int batch = s->batch_a > s->batch_b ? s->batch_a : s->batch_b;
    for (int o = 0; o < (batch ? batch : 1); o++)
        for (int m = 0; m < s->m; m++)
            for (int n = 0; n < s->n; n++) {
                const double *a = in[0] + (s->batch_a ? o * s->m * s->k : 0) + m * s->k;
                const double *b = in[1] + (s->batch_b ? o * s->k * s->n : 0) + n;
                double sum = 0;
                for (int k = 0; k < s->k; k++)
                    sum += a[k] * b[k * s->n];
                out[0][(o * s->m + m) * s->n + n] = sum;
            }
}

static dt_shape matmul_shape(int batch, int rows, int cols)
{
    return batch ? DT_SHAPE(batch, rows, cols) : DT_SHAPE(rows, cols);
}

START_TEST(matmul_rows)
{
    const matmul_sizes cases[] = {{3, 3, 2, 5, 4}, {3, 0, 2, 5, 4},   {0, 3, 2, 5, 4},
                                  {0, 0, 3, 5, 2}, {0, 0, 12, 8, 16}, {0, 0, 12, 0, 4},
                                  {2, 2, 3, 0, 2}};
    for (int i = 0; i < DT_COUNT(cases); i++) {
        const matmul_sizes *s = &cases[i];
        op_check(&(op_check_spec){
            .name = "matmul",
            .call = matmul,
            .naive = matmul_naive,
            .arg = s,
            .nin = 2,
            .shape = {matmul_shape(s->batch_a, s->m, s->k), matmul_shape(s->batch_b, s->k, s->n)},
            .accept = s->batch_a || s->batch_b ? 7 : 6});
    }
}
END_TEST

/* a [2, 3, 2, 5] and b [3, 5, 2]: an inner batch of 3, an outer one of 2. */
static void nested_naive(const double *const *in, double *const *out, const void *arg)
{
    const matmul_sizes s = {3, 3, 2, 5, 2};
    (void)arg;
    for (int o = 0; o < 2; o++) {
        const double *const part[2] = {in[0] + o * 30, in[1]};
        double *const y[1] = {out[0] + o * 12};
        matmul_naive(part, y, &s);
    }
}

START_TEST(matmul_broadcasts_the_outer_of_two_batch_dims)
{
    op_check(&(op_check_spec){.name = "matmul",
                              .call = matmul,
                              .naive = nested_naive,
                              .nin = 2,
                              .shape = {DT_SHAPE(2, 3, 2, 5), DT_SHAPE(3, 5, 2)},
                              .accept = 8});
}
END_TEST

/* ---- product ---- */

typedef struct product_arg {
    const char *spec;
    int n;
} product_arg;

static void product(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    const product_arg *a = arg;
    out[0] = dt_product(t, a->spec, a->n, in);
}

/* "bk,kn,nc->bc" with b 3, k 5, n 2, c 3 */
static void chain_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int b = 0; b < 3; b++)
        for (int c = 0; c < 3; c++)
            for (int k = 0; k < 5; k++)
                for (int n = 0; n < 2; n++)
                    out[0][b * 3 + c] += in[0][b * 5 + k] * in[1][k * 2 + n] * in[2][n * 3 + c];
}

/* "bn,n+b,b->bn" with b 3, n 5 */
static void two_terms_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int b = 0; b < 3; b++)
        for (int n = 0; n < 5; n++)
            out[0][b * 5 + n] = in[0][b * 5 + n] * in[1][n] + in[2][b] * in[3][b];
}

static void dots_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    linear_naive(in, out, &(const bool){true});
}

START_TEST(product_rows)
{
    const product_arg chain = {"bk,kn,nc->bc", 3}, two = {"bn,n+b,b->bn", 4},
                      dot = {"bsn,n->bs", 2}, all = {"bsn,bsn->", 2}, dots = {"...k,nk+n->...n", 3};
    op_check_spec spec = {.name = "product", .call = product, .arg = &chain, .nin = 3};
    spec.naive = chain_naive;
    spec.shape[0] = DT_SHAPE(3, 5);
    spec.shape[1] = DT_SHAPE(5, 2);
    spec.shape[2] = DT_SHAPE(2, 3);
    spec.accept = 8;
    op_check(&spec);
    op_check(&(op_check_spec){.name = "product",
                              .call = product,
                              .naive = two_terms_naive,
                              .arg = &two,
                              .nin = 4,
                              .shape = {DT_SHAPE(3, 5), DT_SHAPE(5), DT_SHAPE(3), DT_SHAPE(3)},
                              .accept = 11});
    op_check(&(op_check_spec){.name = "product",
                              .call = product,
                              .arg = &dot,
                              .nin = 2,
                              .shape = {DT_SHAPE(3, 2, 5), DT_SHAPE(5)},
                              .accept = 6});
    op_check(&(op_check_spec){.name = "product",
                              .call = product,
                              .arg = &all,
                              .nin = 2,
                              .shape = {DT_SHAPE(3, 2, 5), DT_SHAPE(3, 2, 5)},
                              .accept = 6});
    op_check(&(op_check_spec){.name = "product",
                              .call = product,
                              .naive = dots_naive,
                              .arg = &dots,
                              .nin = 3,
                              .shape = {DT_SHAPE(3, 2, 5), DT_SHAPE(6, 5), DT_SHAPE(6)},
                              .accept = 11});
}
END_TEST

/* ---- placements of results and gradients: O1, O2, O4 and O5 of the map of PyTorch's tests ---- */

static void linear_add(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_add(t, dt_linear(t, in[0], in[1], NULL), in[2]);
}

#define S0 "S(0)@axisA"
#define S1 "S(1)@axisA"
#define S2 "S(2)@axisA"
#define P  "P@axisA"
#define R  "R@axisA"

START_TEST(placements_of_matmul)
{
    const op_check_spec mm = {
        .name = "matmul", .call = matmul, .nin = 2, .shape = {DT_SHAPE(12, 8), DT_SHAPE(8, 16)}};
    const op_check_spec bmm = {.name = "matmul",
                               .call = matmul,
                               .nin = 2,
                               .shape = {DT_SHAPE(8, 3, 4), DT_SHAPE(8, 4, 5)}};
    const op_check_row rows[] = {
        {&mm, {S0, R}, S0, {S0, P}},  {&mm, {R, S1}, S1, {P, S1}},    {&mm, {S1, S0}, P, {S1, S0}},
        {&mm, {R, R}, R, {R, R}},     {&bmm, {S0, S0}, S0, {S0, S0}}, {&bmm, {S1, R}, S1, {S1, P}},
        {&bmm, {R, S2}, S2, {P, S2}}, {&bmm, {S2, S1}, P, {S2, S1}},
    };
    op_check_rows(rows, DT_COUNT(rows));
}
END_TEST

START_TEST(placements_of_linear_with_biases)
{
    const bool bias = true;
    const op_check_spec vector = {.name = "linear",
                                  .call = linear,
                                  .arg = &bias,
                                  .nin = 3,
                                  .shape = {DT_SHAPE(12, 8), DT_SHAPE(4, 8), DT_SHAPE(4)}};
    op_check_spec matrix = vector, scalar = vector;
    matrix.call = scalar.call = linear_add;
    matrix.shape[2] = DT_SHAPE(12, 4);
    scalar.shape[2] = DT_SCALAR;
    const op_check_row rows[] = {
        /* rows of x sharded; column parallel (dx is P: O5); row parallel: R biases count once */
        {&vector, {S0, R, R}, S0, {S0, P, P}},   {&matrix, {S0, R, S0}, S0, {S0, P, S0}},
        {&scalar, {S0, R, R}, S0, {S0, P, P}},   {&vector, {R, S0, S0}, S1, {P, S0, S0}},
        {&matrix, {R, S0, S1}, S1, {P, S0, S1}}, {&scalar, {R, S0, R}, S1, {P, S0, P}},
        {&vector, {S1, S1, R}, P, {S1, S1, R}},  {&matrix, {S1, S1, R}, P, {S1, S1, R}},
        {&scalar, {S1, S1, R}, P, {S1, S1, R}},  {&vector, {S1, S1, P}, P, {S1, S1, R}},
    };
    op_check_rows(rows, DT_COUNT(rows));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ops: sums of products");
    TCase *c = tcase_create("rules");
    tcase_set_timeout(c, 100);
    tcase_add_test(c, linear_rows);
    tcase_add_test(c, linear_in_out_rows);
    tcase_add_test(c, matmul_rows);
    tcase_add_test(c, matmul_broadcasts_the_outer_of_two_batch_dims);
    tcase_add_test(c, product_rows);
    tcase_add_test(c, placements_of_matmul);
    tcase_add_test(c, placements_of_linear_with_biases);
    suite_add_tcase(suite, c);
    return test_main(suite);
}
