/* tests/array/test_attention.c - the attention kernels, forward and backward, against their
 * definition in f64, over more than one span of queries and sizes that fill no block; tiles
 * against their dot product. Which keys are seen, by positions and documents:
 * tests/dtensor/test_ops_nn_attention.c. */
#include "array/dt_kernels_nn.h"
#include "array/tiles_internal.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 2, QUERIES = 300, KEYS = 290, DIM = 40, VDIM = 70, NQ = HEADS * QUERIES };

static float q[NQ][DIM], k[KEYS][DIM], v[KEYS][VDIM], dout[NQ][VDIM];
static int32_t q_pos[QUERIES], k_pos[KEYS];
static int ahead; /* a query's position less its index */

typedef struct results {
    float out[NQ][VDIM], lse[NQ], dq[NQ][DIM], dk[KEYS][DIM], dv[KEYS][VDIM];
} results;

typedef struct exact {
    double out[NQ][VDIM], dq[NQ][DIM], dk[KEYS][DIM], dv[KEYS][VDIM];
} exact;

static void fill(float *x, int n, uint32_t *state)
{
    for (int i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u;
        x[i] = (float)(*state >> 8) * 0x1p-23f - 1;
    }
}

static void fill_all(void)
{
    uint32_t state = 3;
    fill(&q[0][0], NQ * DIM, &state);
    fill(&k[0][0], KEYS * DIM, &state);
    fill(&v[0][0], KEYS * VDIM, &state);
    fill(&dout[0][0], NQ * VDIM, &state);
    for (int i = 0; i < QUERIES; i++)
        q_pos[i] = i + ahead;
    for (int i = 0; i < KEYS; i++)
        k_pos[i] = i;
}

static const double scale = 0.3;

static double dot(const float *x, const float *y, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Row i of the definition: p = softmax of what it sees; ds = p (dp - sum p dp) scale. */
static void define_row(int i, exact *e)
{
    double p[KEYS], dp[KEYS], sum = 0, mean = 0;
    const int seen = i % QUERIES + ahead + 1 < KEYS ? i % QUERIES + ahead + 1 : KEYS;
    for (int j = 0; j < seen; j++)
        sum += p[j] = exp(scale * dot(q[i], k[j], DIM));
    for (int j = 0; j < seen; j++) {
        p[j] /= sum;
        dp[j] = dot(dout[i], v[j], VDIM);
        mean += p[j] * dp[j];
    }
    for (int j = 0; j < seen; j++) {
        const double ds = p[j] * (dp[j] - mean) * scale;
        for (int c = 0; c < VDIM; c++) {
            e->out[i][c] += p[j] * (double)v[j][c];
            e->dv[j][c] += p[j] * (double)dout[i][c];
        }
        for (int c = 0; c < DIM; c++) {
            e->dq[i][c] += ds * (double)k[j][c];
            e->dk[j][c] += ds * (double)q[i][c];
        }
    }
}

static void run(results *r)
{
    const dt_attention_args a = {.dtype = DT_F32,
                                 .batch = 1,
                                 .heads = HEADS,
                                 .kv_heads = 1,
                                 .queries = QUERIES,
                                 .keys = KEYS,
                                 .dim = DIM,
                                 .vdim = VDIM,
                                 .group = HEADS,
                                 .scale = scale,
                                 .causal = true,
                                 .q_pos = q_pos,
                                 .k_pos = k_pos,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .out = r->out,
                                 .lse = r->lse,
                                 .dout = dout,
                                 .dq = r->dq,
                                 .dk = r->dk,
                                 .dv = r->dv};
    dt_nn_kernels_of(DT_CPU)->attention(&a);
    dt_nn_kernels_of(DT_CPU)->attention_backward(&a);
}

static void near(const char *what, const float *got, const double *want, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs(want[i]));
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabs((double)got[i] - want[i]) <= 1e-5 * most, "%s: %g, not %g", what,
                      (double)got[i], want[i]);
}

/* Also with queries that begin one or two positions before the last key of a block. */
START_TEST(against_definition)
{
    static const int aheads[] = {61, 62, 0};
    static results r;
    static exact e;
    ahead = aheads[_i];
    fill_all();
    memset(&r, 0xff, sizeof r);
    memset(&e, 0, sizeof e);
    run(&r);
    for (int i = 0; i < NQ; i++)
        define_row(i, &e);
    near("out", &r.out[0][0], &e.out[0][0], NQ * VDIM);
    near("dq", &r.dq[0][0], &e.dq[0][0], NQ * DIM);
    near("dk", &r.dk[0][0], &e.dk[0][0], KEYS * DIM);
    near("dv", &r.dv[0][0], &e.dv[0][0], KEYS * VDIM);
    for (int c = 0; !ahead && c < DIM; c++) /* it sees one key: nothing to choose */
        ck_assert(r.dq[0][c] == 0);
}
END_TEST

START_TEST(ignores_threads)
{
    static results one, more;
    const int before = dt_compute_threads_get();
    fill_all();
    dt_compute_threads_set(1);
    run(&one);
    dt_compute_threads_set(3);
    run(&more);
    dt_compute_threads_set(before);
    ck_assert_mem_eq(&one, &more, sizeof one);
}
END_TEST

/* Every element has the bits of a dot product, whatever the sizes; a is stored either way. */
START_TEST(tiles_are_dots)
{
    enum { MOST = 45 };
    static float a[MOST * MOST], b[MOST * MOST], c[MOST * MOST], column[MOST], row[MOST];
    uint32_t state = 9;
    fill(a, MOST * MOST, &state);
    fill(b, MOST * MOST, &state);
    for (int m = 1; m <= MOST; m += 4)
        for (int n = 1; n <= MOST; n += 4) {
            const int depth = 1 + (m * n) % MOST, row_step = _i ? 1 : MOST, step = _i ? MOST : 1;
            memset(c, 0, sizeof c);
            dti_tiles_f32(&(dti_tiles){a, b, c, row_step, step, MOST, MOST}, m, n, depth);
            for (int at = 0; at < MOST * MOST; at++) {
                const int i = at / MOST, j = at % MOST;
                for (int p = 0; p < depth; p++) {
                    row[p] = a[i * row_step + p * step];
                    column[p] = b[p * MOST + j];
                }
                const float want = i < m && j < n ? dti_dot_f32(depth, row, column) : 0;
                ck_assert_msg(c[at] == want, "%d x %d x %d at %d, %d: %g, not %g", m, n, depth, i,
                              j, (double)c[at], (double)want);
            }
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attention");
    TCase *tc = tcase_create("attention");
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    tcase_add_loop_test(tc, against_definition, 0, 3);
    tcase_add_test(tc, ignores_threads);
    tcase_add_loop_test(tc, tiles_are_dots, 0, 2);
    return test_main(suite);
}
