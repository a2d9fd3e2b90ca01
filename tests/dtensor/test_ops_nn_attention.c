/* tests/dtensor/test_ops_nn_attention.c - attention's values against its definition, in f64 and
 * key by key: which keys a query sees by positions and documents. Finite differences and
 * placements, which cannot tell one mask from another: tests/dtensor/test_ops_nn.c and
 * test_ops_nn_attention_layouts.c. */
#include "tests/dtensor/host_leaf.h"

#include <math.h>

/* S queries, more than one span, and T keys. */
enum { B = 2, H = 4, G = 2, S = 330, T = 290, D = 4, DOCUMENTS = 3 };

static float q[B][H][S][D], k[B][G][T][D], v[B][G][T][D];
static int32_t q_position[B][S], k_position[B][T], q_document[S], k_document[B][T];

/* Which operands a case has; without positions a query's is its index. */
typedef struct mask {
    bool positions, documents, not_causal;
    bool each; /* every sample has key positions of its own */
    bool bshd; /* by way of the other order of dims */
} mask;

static const mask masks[] = {
    {0},
    {.positions = true},
    {.positions = true, .each = true},
    {.documents = true},
    {.positions = true, .documents = true},
    {.documents = true, .not_causal = true},
    {.not_causal = true},
};

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void fill(void)
{
    uint32_t state = 1;
    float *const part[] = {&q[0][0][0][0], &k[0][0][0][0], &v[0][0][0][0]};
    const int n[] = {B * H * S * D, B * G * T * D, B * G * T * D};
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < n[p]; i++)
            part[p][i] = (float)(next(&state) % 2001) / 1000.0f - 1;
    for (int s = 0; s < S; s++)
        q_document[s] = (int32_t)(next(&state) % DOCUMENTS);
    for (int b = 0; b < B; b++) {
        for (int s = 0; s < S; s++)
            q_position[b][s] = (int32_t)(next(&state) % S);
        for (int j = 0; j < T; j++) {
            k_position[b][j] = (int32_t)(next(&state) % S);
            k_document[b][j] = (int32_t)(next(&state) % DOCUMENTS);
        }
    }
}

static bool sees(const mask *m, int b, int i, int j)
{
    const int at = m->positions ? q_position[b][i] : i;
    const int key = m->positions ? k_position[m->each ? b : 0][j] : j;
    return (m->not_causal || key <= at) && (!m->documents || q_document[i] == k_document[b][j]);
}

static void definition(const mask *m, int b, int h, int i, double out[D])
{
    const int g = h / (H / G);
    double sum = 0;
    for (int e = 0; e < D; e++)
        out[e] = 0;
    for (int j = 0; j < T; j++) {
        double score = 0;
        for (int e = 0; e < D; e++)
            score += (double)q[b][h][i][e] * (double)k[b][g][j][e];
        const double p = sees(m, b, i, j) ? exp(score / sqrt((double)D)) : 0;
        sum += p;
        for (int e = 0; e < D; e++)
            out[e] += p * (double)v[b][g][j][e];
    }
    for (int e = 0; e < D; e++)
        out[e] = sum > 0 ? out[e] / sum : 0;
}

static dt_status body(dt_world *world, void *arg)
{
    const mask *m = arg;
    static float got[B][H][S][D];
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;
    dt_tensor *x[7] = {NULL};
    fill();
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"x", 1}}}, &mesh));
    DT_TRY(host_leaf(mesh, DT_SHAPE(B, H, S, D), "", DT_F32, q, &x[0]));
    DT_TRY(host_leaf(mesh, DT_SHAPE(B, G, T, D), "", DT_F32, k, &x[1]));
    DT_TRY(host_leaf(mesh, DT_SHAPE(B, G, T, D), "", DT_F32, v, &x[2]));
    if (m->positions) {
        DT_TRY(host_leaf(mesh, DT_SHAPE(B, S), "", DT_I32, q_position, &x[3]));
        DT_TRY(
            host_leaf(mesh, m->each ? DT_SHAPE(B, T) : DT_SHAPE(T), "", DT_I32, k_position, &x[4]));
    }
    if (m->documents) {
        DT_TRY(host_leaf(mesh, DT_SHAPE(S), "", DT_I32, q_document, &x[5]));
        DT_TRY(host_leaf(mesh, DT_SHAPE(B, T), "", DT_I32, k_document, &x[6]));
    }
    DT_TRY(dt_tape_create(mesh, &(dt_tape_options){.no_grad = true}, &t));
    dt_tensor *qkv[3];
    for (int i = 0; i < 3; i++)
        qkv[i] = m->bshd ? dt_rearrange(t, x[i], "b h s d -> b s h d", "") : x[i];
    dt_tensor *y = dt_attention(t, qkv[0], qkv[1], qkv[2],
                                &(dt_attention_options){.not_causal = m->not_causal,
                                                        .bshd = m->bshd,
                                                        .q_positions = x[3],
                                                        .k_positions = x[4],
                                                        .q_documents = x[5],
                                                        .k_documents = x[6]});
    if (m->bshd)
        y = dt_rearrange(t, y, "b s h d -> b h s d", "");
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_tensor_read_f32_sync(y, &got[0][0][0][0]));
    for (int row = 0; row < B * H * S; row++) {
        const int b = row / (H * S), h = row / S % H, i = row % S;
        double want[D];
        definition(m, b, h, i, want);
        for (int e = 0; e < D; e++)
            TEST_THAT(fabs((double)got[b][h][i][e] - want[e]) < 1e-5,
                      "sample %d, head %d, query %d: %g, not %g", b, h, i, (double)got[b][h][i][e],
                      want[e]);
    }
    dt_tape_destroy(&t);
    for (int i = 0; i < 7; i++)
        dt_tensor_destroy(&x[i]);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_definition)
{
    mask m = masks[_i / 2];
    m.bshd = _i % 2;
    test_ranks(1, body, &m);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attention");
    TCase *tc = tcase_create("values");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_definition, 0, 2 * DT_COUNT(masks));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
