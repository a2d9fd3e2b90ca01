/* tests/models/picture.c - see tests/models/picture.h. */
#include "tests/models/picture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 2, SEQ = 6, WORDS = BATCH * SEQ };

dt_status picture_take(dt_world *world, dt_module *model, picture *out)
{
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;
    dt_values in = {.n = 2};
    const dt_layout *layout = NULL;
    int32_t id[2][WORDS];
    int n = 0;
    *out = (picture){0};
    for (int i = 0; i < WORDS; i++) {
        id[0][i] = (i * 37 + 5) % PICTURE_VOCAB;
        id[1][i] = (i * 11 + 3) % PICTURE_VOCAB;
    }
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"dp", -1}}}, &mesh));
    DT_TRY(dt_module_materialize(model, mesh, 3));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(BATCH, SEQ), "", &layout));
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_distribute(layout, DT_I32, id[i], &in.value[i]));
    DT_TRY(dt_tape_create(mesh, &(dt_tape_options){.no_grad = true, .seed = 1}, &t));
    dt_param *const *p = dt_module_params(model, &n);
    for (int i = 0; i < n; i++) {
        const float *x = test_look(dt_tensor_local(p[i]->tensor));
        const int64_t count = dt_shape_count(p[i]->shape);
        for (int64_t k = 0; k < count; k++)
            out->sum += (double)x[k] * (double)(k % 7 + 1);
        out->count += count;
    }
    out->nparams = n;
    dt_model_set_loss(model, WORDS, 0);
    dt_tensor *loss = dt_module_call(model, t, &in).value[0];
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_array_read(dt_tensor_local(loss), &out->loss, 1));
    dt_tape_destroy(&t);
    for (int i = 0; i < 2; i++)
        dt_tensor_destroy(&in.value[i]);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

bool picture_same(const picture *a, const picture *b)
{
    return a->nparams == b->nparams && a->count == b->count && a->sum == b->sum &&
           a->loss == b->loss;
}

dt_status picture_of_text(dt_world *world, const char *text, picture *out, dt_model_facts *facts)
{
    char path[] = "/tmp/dt_config_XXXXXX";
    dt_module *model = NULL;
    const int fd = mkstemp(path);
    TEST_THAT(fd >= 0, "%s", path);
    const bool written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    (void)close(fd);
    const dt_status st = written ? dt_model_create(path, &model, facts) : DT_OK;
    (void)unlink(path);
    TEST_THAT(written, "%s", path);
    DT_TRY(st);
    DT_TRY(picture_take(world, model, out));
    return DT_OK;
}
