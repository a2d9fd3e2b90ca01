/* examples/03_autograd.c - the tape: what it records, what it saves, and where gradients arise.
 *
 *     loss = sum((x w^T)^2)        x [4, 3] rows over dp, w [2, 3] on every rank
 *
 * Each rank sees only its rows, so the gradient of w arises as P: a sum that is still open.
 * Bringing it home is one redistribute P -> R. The result is checked against the formula
 * dw = 2 (x w^T)^T x.
 *
 *   build/examples/03_autograd --ranks 4          Read next: examples/04_data_parallel.c. */
#include "dtensor/ops/dt_ops.h"
#include "examples/example.h"

#include <math.h>
#include <stdio.h>

enum { M = 4, K = 3, N = 2 };

static void print_line(void *arg, const char *line)
{
    (void)arg;
    printf("  %s\n", line);
}

static dt_status make(dt_mesh *mesh, dt_shape shape, const char *layout, const float *value,
                      dt_tensor **out)
{
    const dt_layout *l = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, shape, layout, &l));
    DT_TRY(dt_distribute(l, DT_F32, value, out));
    return DT_OK;
}

/* dw by hand, on one rank's worth of loops. */
static void by_hand(const float *x, const float *w, double *dw)
{
    memset(dw, 0, sizeof *dw * N * K);
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            double y = 0;
            for (int k = 0; k < K; k++)
                y += (double)x[m * K + k] * (double)w[n * K + k];
            for (int k = 0; k < K; k++)
                dw[n * K + k] += 2 * y * (double)x[m * K + k];
        }
    }
}

static dt_status body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    DT_TRY(dt_mesh_create(world, (dt_device){.kind = DT_CPU},
                          &(dt_mesh_options){.axes = {{"dp", -1}}}, &mesh));
    const float x_value[] = {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f, .9f, 1, 1.1f, 1.2f};
    const float w_value[] = {.5f, .3f, .1f, -.1f, -.3f, -.5f};
    dt_tensor *x = NULL, *w = NULL;
    dt_tape *t = NULL;
    DT_TRY(make(mesh, DT_SHAPE(M, K), "S(0)@dp", x_value, &x));
    DT_TRY(make(mesh, DT_SHAPE(N, K), "", w_value, &w));
    dt_tensor_set_requires_grad(w, true);
    DT_TRY(dt_tape_create(mesh, NULL, &t));

    dt_tensor *y = dt_linear(t, x, w, NULL);
    dt_tensor *loss = dt_sum(t, dt_mul(t, y, y), 0);
    double loss_value = 0;
    DT_TRY(dt_tensor_item_sync(loss, &loss_value)); /* reports errors of the ops above, too */
    if (dt_world_rank(world) == 0) {
        printf("loss %.6f; the tape, %lld bytes saved for backward:\n", loss_value,
               (long long)dt_tape_saved_bytes(t));
        dt_tape_print(t, print_line, NULL);
    }
    DT_TRY(dt_backward(t, loss));

    char text[DT_LAYOUT_TEXT];
    dt_local *arisen = dt_tensor_grad(w), home = {0};
    const dt_layout *target = dt_tensor_layout(w);
    DT_TRY(dt_move(1, arisen, &target, 0, "dw", DT_TAG_GRADIENT, &home));
    double want[N * K];
    by_hand(x_value, w_value, want);
    const float *got = dt_array_data(&home.array);
    for (int i = 0; i < N * K; i++)
        DT_REQUIRE(fabs((double)got[i] - want[i]) < 1e-5, DT_ERR_STATE, "dw[%d] is %g, not %g", i,
                   (double)got[i], want[i]);
    if (dt_world_rank(world) == 0)
        printf("dw arose as %s; home: %g %g %g %g %g %g, as the formula says\n",
               dt_layout_print(arisen->layout, text, sizeof text), (double)got[0], (double)got[1],
               (double)got[2], (double)got[3], (double)got[4], (double)got[5]);
    dt_array_release(&home.array);
    dt_tape_destroy(&t);
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&w);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, body);
}
