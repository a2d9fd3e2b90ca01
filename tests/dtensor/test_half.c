/* tests/dtensor/test_half.c - 16-bit storage, f64, and casts: what is computed in f32, what is
 * refused. */
#include "tests/dtensor/place_check.h"

#include "array/dt_half.h"

#include <math.h>
#include <string.h>

enum { N = 64 };

/* silu and its gradient in double, of numbers that are exact in 16 bits: the op's results are
 * these, rounded once. */
static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double silu_slope(double x)
{
    const double s = 1 / (1 + exp(-x));
    return s * (1 + x * (1 - s));
}

/* |got - want| is at most half a step of the type (of 1 + 1e-5 for the f32 inside). */
static dt_status rounded_once(double got, double want, double half_step, const char *what)
{
    TEST_THAT(fabs(got - want) <= half_step * fabs(want) * 1.0001 + 1e-7, "%s: %.9g, not %.9g",
              what, got, want);
    return DT_OK;
}

static dt_status wide_body(dt_world *world, void *arg)
{
    (void)arg;
    static const struct {
        dt_dtype dtype;
        double half_step;
    } types[] = {{DT_BF16, 1.0 / 256},
                 {DT_F16, 1.0 / 2048},
                 {DT_F32, 1e-6},
                 {DT_F64, 6e-8}}; /* read as f32 */
    place_bench b;
    DT_TRY(place_open(&b, world));
    for (int i = 0; i < DT_COUNT(types); i++) {
        dt_tensor *x = NULL;
        float y[N], dx[N];
        DT_TRY(place_grad_leaf(&b, DT_SHAPE(N), "S(0)@tp", types[i].dtype, 1, &x));
        dt_tensor *out = dt_silu(b.t, x);
        TEST_THAT(dt_tensor_dtype(out) == types[i].dtype, "the type stays");
        DT_TRY(dt_tensor_read_f32_sync(out, y));
        DT_TRY(dt_backward(b.t, dt_sum(b.t, out, 0)));
        dt_tensor *grad = NULL;
        DT_TRY(dt_from_array(dt_tensor_grad(x)->layout, &dt_tensor_grad(x)->array, &grad));
        TEST_THAT(dt_tensor_dtype(grad) == types[i].dtype, "of the gradient too");
        DT_TRY(dt_tensor_read_f32_sync(grad, dx));
        for (int k = 0; k < N; k++) {
            DT_TRY(rounded_once((double)y[k], silu(place_value(1, k)), types[i].half_step, "y"));
            DT_TRY(rounded_once((double)dx[k], silu_slope(place_value(1, k)), types[i].half_step,
                                "dx"));
        }
        dt_tensor_destroy(&grad);
        dt_tensor_destroy(&x);
        dt_tape_reset(b.t, NULL);
    }
    place_close(&b);
    return DT_OK;
}

START_TEST(computed_in_f32_rounded_once)
{
    test_ranks(_i, wide_body, NULL);
}
END_TEST

/* 1 + many 2^-9: each term alone is lost in bf16, the sum in f32 is not. Over ranks as well. */
static dt_status sums_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    const dt_layout *rows = NULL, *p = NULL;
    const int k = dt_world_size(world);
    dt_tensor *x = NULL, *part = NULL;
    double sum = 0;
    DT_TRY(place_open(&b, world));
    DT_TRY(dt_mesh_layout_text(b.mesh, DT_SHAPE(257), "", &rows));
    DT_TRY(dt_full_value(rows, DT_BF16, 1.0 / 512, &x));
    dt_array first = *dt_tensor_local(x);
    first.shape = DT_SHAPE(1);
    DT_TRY(dt_array_write(&first, &(uint16_t){dt_f32_to_bf16(1.0f)}, 1));
    DT_TRY(dt_tensor_item_sync(dt_sum(b.t, x, 0), &sum));
    TEST_THAT(sum == 1.5, "%g", sum);
    /* parts 1, 2^-8, 2^-8, 2^-8: in bf16 steps 1 + 2^-8 rounds to even, 1; all together are 1 + 3
     * * 2^-8, which rounds up */
    DT_TRY(dt_mesh_layout_text(b.mesh, DT_SHAPE(3), "P@tp", &p));
    DT_TRY(dt_tensor_create(p, DT_BF16, DT_TAG_ACTIVATION, &part));
    dt_array_fill(dt_tensor_local(part), dt_world_rank(world) == 0 ? 1.0 : 1.0 / 256);
    static const char *const ways[] = {"", "S(0)@tp"};
    for (int i = 0; i < 2; i++) {
        float all[3];
        DT_TRY(dt_tensor_read_f32_sync(dt_redistribute(b.t, part, ways[i]), all));
        const double want = k == 3 ? 1 + 2.0 / 256 : k == 4 ? 1 + 4.0 / 256 : 1;
        TEST_THAT((double)all[0] == want && (double)all[2] == want, "%d ranks: %g", k,
                  (double)all[0]);
    }
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&part);
    place_close(&b);
    return DT_OK;
}

START_TEST(sums_in_f32)
{
    test_ranks(_i, sums_body, NULL);
}
END_TEST

/* A linear layer in bf16: products of small whole numbers are exact, so values and gradients equal
 * those of f64. */
static dt_status linear_body(dt_world *world, void *arg)
{
    (void)arg;
    static const dt_dtype types[] = {DT_F64, DT_F32, DT_BF16, DT_F16};
    enum { M = 5, K = 4, ROWS = 3 };
    place_bench b;
    float want[4][M * K] = {{0}};
    DT_TRY(place_open(&b, world));
    for (int i = 0; i < DT_COUNT(types); i++) {
        dt_tensor *x = NULL, *w = NULL, *bias = NULL;
        float got[M * K];
        DT_TRY(place_grad_leaf(&b, DT_SHAPE(ROWS, K), "S(1)@tp", types[i], 1, &x));
        DT_TRY(place_grad_leaf(&b, DT_SHAPE(M, K), "S(1)@tp", types[i], 2, &w));
        DT_TRY(place_grad_leaf(&b, DT_SHAPE(M), "", types[i], 3, &bias));
        dt_tensor *y = dt_full(b.t, dt_linear(b.t, x, w, bias));
        TEST_THAT(dt_tensor_dtype(y) == types[i], "type");
        DT_TRY(dt_backward(b.t, dt_sum(b.t, y, 0)));
        const dt_local *leafs[3] = {dt_tensor_grad(x), dt_tensor_grad(w), dt_tensor_grad(bias)};
        for (int k = 0; k < 3; k++) {
            dt_tensor *grad = NULL;
            TEST_THAT(leafs[k]->array.dtype == types[i], "type of gradient %d", k);
            DT_TRY(dt_from_array(leafs[k]->layout, &leafs[k]->array, &grad));
            DT_TRY(dt_tensor_read_f32_sync(grad, got));
            const int64_t count = dt_shape_count(dt_tensor_shape(grad));
            for (int64_t e = 0; e < count; e++) {
                TEST_THAT(i == 0 || got[e] == want[k][e], "%s gradient %d", dt_dtype_name(types[i]),
                          k);
                want[k][e] = got[e];
            }
            dt_tensor_destroy(&grad);
        }
        dt_tensor_destroy(&x);
        dt_tensor_destroy(&w);
        dt_tensor_destroy(&bias);
        dt_tape_reset(b.t, NULL);
    }
    place_close(&b);
    return DT_OK;
}

START_TEST(linear_in_every_type)
{
    test_ranks(_i, linear_body, NULL);
}
END_TEST

/* ---- casts ---- */

static dt_status casts_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL, *p = NULL, *h = NULL, *ids = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(6), "S(0)@tp", DT_F32, 1, &x));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(6), "P@tp", DT_F32, 2, &p));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(6), "S(0)@tp", DT_BF16, 3, &h));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(6), "S(0)@tp", DT_I32, 3, &ids));
    TEST_THAT(!dt_tensor_requires_grad(ids), "whole numbers have no gradient");
    TEST_THAT(dt_tensor_is_failed(dt_add(b.t, x, h)), "two types");
    TEST_FAILS(DT_ERR_ARG, "operand 0 is f32, operand 1 is bf16", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    TEST_THAT(dt_tensor_is_failed(dt_cast(b.t, p, DT_BF16, false)),
              "the sum would be taken in bf16");
    TEST_FAILS(DT_ERR_PLACEMENT, "cast", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    /* R9: forward in bf16, the gradient f32 again; P passes if asked */
    dt_tensor *low = dt_cast(b.t, x, DT_BF16, false);
    TEST_THAT(dt_tensor_dtype(low) == DT_BF16, "bf16");
    dt_world_reset_counts(world);
    dt_tensor *full = dt_full(b.t, low);
    const dt_counts c = dt_world_counts(world);
    TEST_THAT(c.total_bytes == 6 * 2 * 3 / 4, "moved in bf16: %lld bytes",
              (long long)c.total_bytes);
    DT_TRY(dt_backward(b.t, dt_sum(b.t, dt_mul(b.t, full, full), 0)));
    TEST_THAT(dt_tensor_grad(x)->array.dtype == DT_F32, "f32");
    DT_TRY(place_holds(dt_tensor_grad(x), 1, 2, "2 x"));
    dt_tape_reset(b.t, NULL);
    dt_tensor *sent = dt_full(b.t, dt_cast(b.t, p, DT_BF16, true));
    DT_TRY(place_tensor_holds(sent, 2, "small whole numbers are exact"));
    DT_TRY(dt_backward(b.t, dt_sum(b.t, sent, 0)));
    TEST_THAT(dt_tensor_grad(p)->array.dtype == DT_F32 && !dt_tensor_grad(p)->layout->partial,
              "R, f32");
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&p);
    dt_tensor_destroy(&h);
    dt_tensor_destroy(&ids);
    place_close(&b);
    return DT_OK;
}

START_TEST(casts)
{
    test_ranks(4, casts_body, NULL);
}
END_TEST

enum { ROWS = 100, IN = 8, OUT = 3 };

/* dw of a product of bf16 operands, whose leaf takes f32: not rounded, and added in f32 to what
 * another op leaves in bf16. Without: rounded. */
static dt_status wide_gradients_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    DT_TRY(place_open(&b, world));
    for (int wide = 0; wide < 2; wide++) {
        dt_tensor *x = NULL, *w = NULL, *grad = NULL;
        float dw[OUT * IN];
        int rounded = 0;
        DT_TRY(place_grad_leaf(&b, DT_SHAPE(ROWS, IN), "", DT_BF16, 1, &x));
        DT_TRY(place_grad_leaf(&b, DT_SHAPE(OUT, IN), "", DT_BF16, 2, &w));
        dt_tensor_set_wide_grad(w, wide);
        dt_tensor *y = dt_sum(b.t, dt_linear(b.t, x, w, NULL), 0);
        DT_TRY(dt_backward(b.t, dt_add(b.t, y, dt_sum(b.t, dt_silu(b.t, w), 0))));
        dt_local *g = dt_tensor_grad(w);
        TEST_THAT(g->array.dtype == (wide ? DT_F32 : DT_BF16), "the gradient is %s",
                  dt_dtype_name(g->array.dtype));
        DT_TRY(dt_from_array(g->layout, &g->array, &grad));
        DT_TRY(dt_tensor_read_f32_sync(grad, dw));
        for (int i = 0; i < OUT * IN; i++) {
            double want =
                (double)dt_bf16_to_f32(dt_f32_to_bf16((float)silu_slope(place_value(2, i))));
            for (int r = 0; r < ROWS; r++)
                want += place_value(1, r * IN + i % IN);
            DT_TRY(rounded_once((double)dw[i], want, wide ? 1e-6 : 1.0 / 128, "dw"));
            rounded += dw[i] == dt_bf16_to_f32(dt_f32_to_bf16(dw[i]));
        }
        TEST_THAT(wide ? rounded < OUT * IN / 2 : rounded == OUT * IN, "%d are rounded", rounded);
        dt_tensor_destroy(&grad);
        dt_tensor_destroy(&x);
        dt_tensor_destroy(&w);
        dt_tape_reset(b.t, NULL);
    }
    place_close(&b);
    return DT_OK;
}

START_TEST(gradients_of_products_stay_wide)
{
    test_ranks(_i, wide_gradients_body, NULL);
}
END_TEST

/* Launches of a linear's backward, with or without a bias. */
static dt_status biased(place_bench *b, dt_dtype dtype, int wide, bool in_out, bool with,
                        int64_t *launches)
{
    dt_tensor *x = NULL, *w = NULL, *bias = NULL, *grad = NULL;
    float db[OUT];
    DT_TRY(place_grad_leaf(b, DT_SHAPE(ROWS, IN), "", dtype, 1, &x));
    DT_TRY(place_grad_leaf(b, in_out ? DT_SHAPE(IN, OUT) : DT_SHAPE(OUT, IN), "", dtype, 2, &w));
    if (with)
        DT_TRY(place_grad_leaf(b, DT_SHAPE(OUT), "", dtype, 3, &bias));
    dt_tensor_set_wide_grad(w, wide);
    if (with)
        dt_tensor_set_wide_grad(bias, wide);
    dt_tensor *y = in_out ? dt_linear_in_out(b->t, x, w, bias) : dt_linear(b->t, x, w, bias);
    const int64_t before = dt_heap_get_counts(b->heap).launches;
    DT_TRY(dt_backward(b->t, dt_sum(b->t, y, 0))); /* dy is 1 */
    *launches = dt_heap_get_counts(b->heap).launches - before;
    if (with) {
        dt_local *g = dt_tensor_grad(bias);
        TEST_THAT(g->array.dtype == (wide ? DT_F32 : dtype), "db is %s",
                  dt_dtype_name(g->array.dtype));
        DT_TRY(dt_from_array(g->layout, &g->array, &grad));
        DT_TRY(dt_tensor_read_f32_sync(grad, db));
        for (int i = 0; i < OUT; i++)
            TEST_THAT(db[i] == ROWS, "db[%d] is %g", i, (double)db[i]);
    }
    dt_tensor_destroy(&grad);
    dt_tensor_destroy(&bias);
    dt_tensor_destroy(&w);
    dt_tensor_destroy(&x);
    dt_tape_reset(b->t, NULL);
    return DT_OK;
}

/* f32; bf16; bf16 with wide gradients. On cuda db costs no launch of its own. */
static dt_status biases_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    int64_t without = 0, with = 0;
    DT_TRY(place_open(&b, world));
    for (int way = 0; way < 6; way++) {
        const dt_dtype dtype = way < 2 ? DT_F32 : DT_BF16;
        DT_TRY(biased(&b, dtype, way >= 4, way % 2, false, &without));
        DT_TRY(biased(&b, dtype, way >= 4, way % 2, true, &with));
        TEST_THAT(with == without, "way %d: %lld launches with a bias, %lld without", way,
                  (long long)with, (long long)without);
    }
    place_close(&b);
    return DT_OK;
}

START_TEST(gradients_of_biases)
{
    test_ranks(1, biases_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("half");
    TCase *tc = tcase_create("half");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, computed_in_f32_rounded_once, 1, 4);
    tcase_add_loop_test(tc, sums_in_f32, 1, 5);
    tcase_add_loop_test(tc, linear_in_every_type, 1, 4);
    tcase_add_loop_test(tc, gradients_of_products_stay_wide, 1, 3);
    tcase_add_test(tc, gradients_of_biases);
    tcase_add_test(tc, casts);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
