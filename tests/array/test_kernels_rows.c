/* tests/array/test_kernels_rows.c - norms, activations and element-wise sums in every type they are
 * stored in: f32 against formulas in f64, 16 bits against f32 rounded once; the same bits on any
 * number of threads. */
#include "array/dt_half.h"
#include "array/dt_kernels_math.h"
#include "array/dt_kernels_nn.h"
#include "base/dt_random.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 1100, COLS = 133, MOST = ROWS * COLS, INPUTS = 4, OUTPUTS = 3 };

static const dt_dtype half[] = {DT_BF16, DT_F16};

/* in: what is in `narrow`, exactly. */
static struct {
    float in[INPUTS][MOST], out[OUTPUTS][MOST];
    uint16_t narrow[INPUTS][MOST], narrow_out[OUTPUTS][MOST];
    double work[2 * DT_NORM_BLOCKS * COLS + 2 * ROWS], exact[OUTPUTS][MOST];
} m;

static void fill(dt_dtype dtype, int64_t n)
{
    for (int k = 0; k < INPUTS; k++) {
        dt_uniform_fill(dt_key_make(7, (uint64_t)k, (uint64_t)n), 0, n, m.in[k]);
        for (int64_t i = 0; i < n; i++)
            m.in[k][i] = 8 * m.in[k][i] - 3.5f;
        if (dtype != DT_F32) {
            dt_store_f32(dtype, m.in[k], m.narrow[k], n);
            dt_load_f32(dtype, m.narrow[k], m.in[k], n);
        }
    }
    memset(m.out, 0xff, sizeof m.out);
    memset(m.narrow_out, 0xff, sizeof m.narrow_out);
}

static void near_exact(const char *what, int k, int64_t n, double tolerance)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(m.exact[k][i]));
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)m.out[k][i] - m.exact[k][i]) <= tolerance * most,
                      "%s: output %d, element %d of %d is %g, not %g", what, k, (int)i, (int)n,
                      (double)m.out[k][i], m.exact[k][i]);
}

static void rounded_once(dt_dtype dtype, const char *what, int k, int64_t n)
{
    static uint16_t want[MOST];
    dt_store_f32(dtype, m.out[k], want, n);
    ck_assert_msg(n == 0 || memcmp(want, m.narrow_out[k], (size_t)n * 2) == 0,
                  "%s in %s: output %d of %d elements", what, dt_dtype_name(dtype), k, (int)n);
}

/* ---- norms ---- */

typedef struct norm_case {
    int64_t rows, n;
    bool centred, w, b;
    double shift; /* added to x in f32 */
} norm_case;

static void run_norm(const norm_case *c, dt_dtype dtype)
{
    const bool f32 = dtype == DT_F32;
    void *in[INPUTS], *out[OUTPUTS];
    for (int k = 0; k < INPUTS; k++)
        in[k] = f32 ? (void *)m.in[k] : m.narrow[k];
    for (int k = 0; k < OUTPUTS; k++)
        out[k] = f32 ? (void *)m.out[k] : m.narrow_out[k];
    const dt_norm_args a = {.dtype = dtype,
                            .rows = c->rows,
                            .n = c->n,
                            .eps = 1e-5,
                            .centred = c->centred,
                            .x = in[0],
                            .dy = in[1],
                            .w = c->w ? in[2] : NULL,
                            .b = c->b ? in[3] : NULL,
                            .work = m.work};
    memset(m.work, 0xff, sizeof m.work);
    dt_nn_kernels_of(DT_CPU)->norm_backward(&a, out[0], out[1], out[2]);
}

/* dx, dw, db from the formulas in dtensor/ops/layernorm.c. */
static void define_norm(const norm_case *c)
{
    const double n = (double)c->n;
    memset(m.exact, 0, sizeof m.exact);
    for (int64_t r = 0; r < c->rows; r++) {
        const float *x = m.in[0] + r * c->n, *dy = m.in[1] + r * c->n;
        double mean = 0, square = 0, g_sum = 0, gu_sum = 0;
        for (int64_t i = 0; i < c->n; i++)
            mean += c->centred ? (double)x[i] / n : 0;
        for (int64_t i = 0; i < c->n; i++)
            square += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
        const double inv = 1 / sqrt(square + 1e-5);
        for (int64_t i = 0; i < c->n; i++) {
            const double g = (double)dy[i] * (c->w ? (double)m.in[2][i] : 1);
            const double u = ((double)x[i] - mean) * inv;
            g_sum += c->centred ? g / n : 0;
            gu_sum += g * u / n;
            m.exact[1][i] += (double)dy[i] * u;
            m.exact[2][i] += (double)dy[i];
        }
        for (int64_t i = 0; i < c->n; i++) {
            const double g = (double)dy[i] * (c->w ? (double)m.in[2][i] : 1);
            m.exact[0][r * c->n + i] = inv * (g - g_sum - ((double)x[i] - mean) * inv * gu_sum);
        }
    }
}

static void check_norm(const norm_case *c)
{
    fill(DT_F32, c->rows * c->n);
    for (int64_t i = 0; i < c->rows * c->n; i++)
        m.in[0][i] += (float)c->shift;
    run_norm(c, DT_F32);
    define_norm(c);
    if (c->n > 1) /* of one element rounding errors are left */
        near_exact("norm", 0, c->rows * c->n, 2e-6);
    near_exact("norm", 1, c->n, 1e-6);
    near_exact("norm", 2, c->n, 1e-6);
    for (int d = 0; d < DT_COUNT(half); d++) {
        fill(half[d], c->rows * c->n);
        run_norm(c, DT_F32);
        run_norm(c, half[d]);
        for (int k = 0; k < OUTPUTS; k++)
            rounded_once(half[d], "norm", k, k == 0 ? c->rows * c->n : c->n);
    }
}

START_TEST(norms_are_their_formulas)
{
    static const int64_t rows[] = {0, 1, 8, 9, 64, 513, 1100}, cols[] = {1, 5, 31, 32, 33, 133};
    for (int r = 0; r < DT_COUNT(rows); r++)
        for (int n = 0; n < DT_COUNT(cols); n++)
            check_norm(&(norm_case){rows[r], cols[n], n != 0 && (r + n) % 2, r % 3 != 0, false, 0});
    check_norm(&(norm_case){70, 133, true, true, false, 1000});
}
END_TEST

/* In f64, where nothing is rounded away. */
START_TEST(norms_ignore_threads)
{
    static double x[MOST], dy[MOST], one[OUTPUTS][MOST];
    const int before = dt_compute_threads_get();
    const dt_norm_args a = {.dtype = DT_F64,
                            .rows = ROWS,
                            .n = COLS,
                            .eps = 1e-5,
                            .centred = true,
                            .x = x,
                            .dy = dy,
                            .work = m.work};
    fill(DT_F32, MOST);
    for (int i = 0; i < MOST; i++) {
        x[i] = (double)m.in[0][i];
        dy[i] = (double)m.in[1][i] / 3;
    }
    for (int threads = 1; threads <= 5; threads++) {
        memset(m.exact, 0xff, sizeof m.exact);
        dt_compute_threads_set(threads);
        dt_nn_kernels_of(DT_CPU)->norm_backward(&a, m.exact[0], m.exact[1], m.exact[2]);
        if (threads == 1)
            memcpy(one, m.exact, sizeof one);
        ck_assert_msg(memcmp(one, m.exact, sizeof one) == 0, "%d threads", threads);
    }
    dt_compute_threads_set(before);
}
END_TEST

/* ---- one element at a time ---- */

/* What kernel `kind` makes of n elements, from inputs 0 to 2. */
typedef enum element_kind { ADD, ADD_INTO, MUL, SCALE, ACT, SWIGLU = ACT + 3, KINDS } element_kind;

static void run_elements(int kind, bool back, dt_dtype dtype, int64_t n, void *const in[INPUTS],
                         void *const out[OUTPUTS])
{
    const dt_math_kernels *math = dt_math_kernels_of(DT_CPU);
    const dt_nn_kernels *nn = dt_nn_kernels_of(DT_CPU);
    const dt_activation act = (dt_activation)(kind - ACT);
    const int64_t outer = n % 7 == 0 ? 7 : 1; /* y repeats */
    if (kind == ADD)
        math->add(dtype, outer, n / outer, in[0], in[1], out[0]);
    else if (kind == ADD_INTO)
        math->add(dtype, 1, n, out[0], in[1], out[0]);
    else if (kind == MUL)
        math->mul(dtype, outer, n / outer, in[0], in[1], out[0]);
    else if (kind == SCALE)
        math->scale(dtype, n, 1.7, in[0], out[0]);
    else if (kind == SWIGLU && back)
        nn->swiglu_backward(dtype, n, in[0], in[1], in[2], out[0], out[1]);
    else if (kind == SWIGLU)
        nn->swiglu(dtype, n, in[0], in[1], out[0]);
    else if (back)
        nn->activation_dx(dtype, act, n, in[0], in[1], out[0]);
    else
        nn->activation(dtype, act, n, in[0], out[0]);
}

static double act_of(int kind, double x)
{
    const double cubic = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    return kind == ACT + DT_ACT_GELU_ERF    ? 0.5 * x * erfc(-x * M_SQRT1_2)
           : kind == ACT + DT_ACT_GELU_TANH ? x / (1 + exp(-2 * cubic))
                                            : x / (1 + exp(-x));
}

static double slope_of(int kind, double x)
{
    return (act_of(kind, x + 1e-5) - act_of(kind, x - 1e-5)) / 2e-5;
}

static void define_elements(int kind, bool back, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)m.in[0][i], y = (double)m.in[1][i], z = (double)m.in[2][i];
        const double repeated = (double)m.in[1][n % 7 == 0 ? i % (n / 7) : i];
        m.exact[1][i] = kind == SWIGLU && back ? z * act_of(SWIGLU, x) : 0;
        m.exact[0][i] = kind == ADD               ? x + repeated
                        : kind == ADD_INTO        ? x + y
                        : kind == MUL             ? x * repeated
                        : kind == SCALE           ? 1.7 * x
                        : kind == SWIGLU && !back ? y * act_of(kind, x)
                        : kind == SWIGLU          ? z * y * slope_of(kind, x)
                        : back                    ? y * slope_of(kind, x)
                                                  : act_of(kind, x);
    }
}

static void check_elements(int kind, bool back, int64_t n)
{
    const int nout = kind == SWIGLU && back ? 2 : 1;
    void *in[INPUTS] = {m.in[0], m.in[1], m.in[2], m.in[3]};
    void *narrow[INPUTS] = {m.narrow[0], m.narrow[1], m.narrow[2], m.narrow[3]};
    char what[40];
    (void)snprintf(what, sizeof what, "kernel %d%s", kind, back ? " back" : "");
    for (int d = 0; d <= DT_COUNT(half); d++) {
        const dt_dtype dtype = d ? half[d - 1] : DT_F32;
        fill(dtype, n);
        memcpy(m.out[0], m.in[0], (size_t)n * 4);
        memcpy(m.narrow_out[0], m.narrow[0], (size_t)n * 2);
        run_elements(kind, back, DT_F32, n, in, (void *[]){m.out[0], m.out[1], NULL});
        define_elements(kind, back, n);
        for (int k = 0; k < nout; k++)
            near_exact(what, k, n, back ? 4e-6 : 1e-6);
        if (d == 0)
            continue;
        run_elements(kind, back, dtype, n, narrow,
                     (void *[]){m.narrow_out[0], m.narrow_out[1], NULL});
        for (int k = 0; k < nout; k++)
            rounded_once(dtype, what, k, n);
    }
}

/* Each gradient of swiglu for itself; up is for one of them. */
START_TEST(swiglu_gradients_alone)
{
    enum { N = 700 };
    static float dgate[N], dup[N];
    const dt_nn_kernels *nn = dt_nn_kernels_of(DT_CPU);
    fill(DT_F32, N);
    nn->swiglu_backward(DT_F32, N, m.in[0], m.in[1], m.in[2], m.out[0], m.out[1]);
    nn->swiglu_backward(DT_F32, N, m.in[0], m.in[1], m.in[2], dgate, NULL);
    nn->swiglu_backward(DT_F32, N, m.in[0], NULL, m.in[2], NULL, dup);
    nn->swiglu_backward(DT_F32, N, m.in[0], NULL, m.in[2], NULL, NULL);
    ck_assert_mem_eq(dgate, m.out[0], sizeof dgate);
    for (int i = 0; i < N; i++)
        ck_assert(fabs((double)dup[i] - (double)m.out[1][i]) <= 1e-6 * fabs((double)dup[i]));
}
END_TEST

START_TEST(elements_are_their_formulas)
{
    static const int64_t n[] = {0, 1, 255, 511, 512, 513, 700, 70007};
    for (int i = 0; i < DT_COUNT(n); i++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int back = 0; back < (kind < ACT ? 1 : 2); back++)
                check_elements(kind, back, n[i]);
}
END_TEST

/* Far out they are 0 or x, not NaN. */
START_TEST(activations_at_the_ends)
{
    const float x[] = {-1e30f, -1e4f, -95, -30, 0, 30, 95, 1e4f, 1e30f};
    enum { N = DT_COUNT(x) };
    float y[N], dx[N], one[N];
    for (int i = 0; i < N; i++)
        one[i] = 1;
    for (int kind = 0; kind < 3; kind++) {
        dt_nn_kernels_of(DT_CPU)->activation(DT_F32, (dt_activation)kind, N, x, y);
        dt_nn_kernels_of(DT_CPU)->activation_dx(DT_F32, (dt_activation)kind, N, x, one, dx);
        for (int i = 0; i < N; i++) {
            const double want = x[i] > 0 ? (double)x[i] : 0, slope = x[i] == 0 ? 0.5 : x[i] > 0;
            ck_assert_msg(fabs((double)y[i] - want) <= 1e-11 + 1e-6 * want, "%d of %g is %g", kind,
                          (double)x[i], (double)y[i]);
            ck_assert_msg(fabs((double)dx[i] - slope) <= 1e-6, "%d's slope at %g is %g", kind,
                          (double)x[i], (double)dx[i]);
        }
    }
}
END_TEST

/* Loss and gradient at once are the two one after the other, in place too; 16 bits are the rounded
 * f32. */
START_TEST(losses_at_once_are_the_two)
{
    enum { TOKENS = 50, VOCAB = 1337 };
    static const dt_dtype dtype[] = {DT_F32, DT_BF16, DT_F16};
    const dt_nn_kernels *nn = dt_nn_kernels_of(DT_CPU);
    static int32_t targets[TOKENS];
    static float z[TOKENS * VOCAB], one[TOKENS * VOCAB], two[TOKENS * VOCAB], wide[TOKENS * VOCAB];
    float stats[6][TOKENS];
    dt_uniform_fill(dt_key_make(7, 1, 2), 0, TOKENS * VOCAB, z);
    for (int r = 0; r < TOKENS; r++)
        targets[r] = r % 7 ? r * 31 % VOCAB : -100;
    dt_loss_args a = {.dtype = DT_F32,
                      .rows = TOKENS,
                      .n = VOCAB,
                      .ignore = -100,
                      .targets = targets,
                      .z = z,
                      .max = stats[0],
                      .sum = stats[1],
                      .hit = stats[2]};
    for (int d = 0; d <= DT_COUNT(dtype); d++) {
        const bool in_place = d == DT_COUNT(dtype);
        const dt_dtype dz_dtype = in_place ? DT_F32 : dtype[d];
        const size_t bytes = TOKENS * VOCAB * dt_dtype_size(dz_dtype);
        nn->loss_rows(&a);
        nn->loss_dz(&a, NULL, 37, dz_dtype, two);
        if (d == 0)
            memcpy(wide, two, bytes);
        dt_store_f32(dz_dtype, wide, one, TOKENS * VOCAB);
        ck_assert_mem_eq(one, two, bytes); /* rounded once */
        dt_loss_args at_once = a;
        at_once.max = stats[3], at_once.sum = stats[4], at_once.hit = stats[5];
        at_once.dz = one, at_once.dz_dtype = dz_dtype, at_once.divisor = 37;
        at_once.z = in_place ? memcpy(one, z, sizeof z) : z;
        nn->loss_rows(&at_once);
        ck_assert_mem_eq(one, two, bytes);
        ck_assert_mem_eq(stats[0], stats[3], 3 * sizeof stats[0]);
    }
}
END_TEST

/* Sums of a middle dim in every type, of integers, which all types hold. */
START_TEST(sums_of_a_middle_dim)
{
    enum { OUTER = 3, MID = 5, MOST_INNER = 300 };
    static const int inner[] = {1, 7, MOST_INNER};
    static const dt_dtype dtype[] = {DT_F32, DT_BF16, DT_F16};
    static float x[OUTER * MID * MOST_INNER], stored[OUTER * MID * MOST_INNER];
    float out[OUTER * MOST_INNER], got[OUTER * MOST_INNER];
    for (int i = 0; i < DT_COUNT(x); i++)
        x[i] = (float)(i * i % 23 - 11);
    for (int k = 0; k < DT_COUNT(inner) * DT_COUNT(dtype); k++) {
        const int n = inner[k % 3];
        dt_store_f32(dtype[k / 3], x, stored, DT_COUNT(x));
        dt_math_kernels_of(DT_CPU)->sum(dtype[k / 3], OUTER, MID, n, stored, out);
        dt_load_f32(dtype[k / 3], out, got, OUTER * n);
        for (int i = 0; i < OUTER * n; i++) {
            float want = 0;
            for (int j = 0; j < MID; j++)
                want += x[(i / n * MID + j) * n + i % n];
            ck_assert_msg(got[i] == want, "%s, %d apart, sum %d: %g, not %g",
                          dt_dtype_name(dtype[k / 3]), n, i, (double)got[i], (double)want);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels of rows and elements");
    TCase *tc = tcase_create("every type");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, norms_are_their_formulas);
    tcase_add_test(tc, norms_ignore_threads);
    tcase_add_test(tc, swiglu_gradients_alone);
    tcase_add_test(tc, elements_are_their_formulas);
    tcase_add_test(tc, activations_at_the_ends);
    tcase_add_test(tc, losses_at_once_are_the_two);
    tcase_add_test(tc, sums_of_a_middle_dim);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
