/* tests/dtensor/test_markers.c - markers on the tape: when a walk calls them, in one part or two,
 * and with which words it fails when they do. */
#include "tests/dtensor/place_check.h"

#include <stdio.h>
#include <string.h>

typedef struct diary {
    char text[64];
} diary;

static dt_status note(dt_tape *t, void *arg, dt_walk walk)
{
    (void)t;
    const char **entry = arg; /* {text, diary} */
    diary *d = (diary *)(uintptr_t)entry[1];
    const size_t n = strlen(d->text);
    (void)snprintf(d->text + n, sizeof d->text - n, "%s%s ", entry[0],
                   walk == DT_WALK_ALL     ? ""
                   : walk == DT_WALK_INPUT ? "i"
                                           : "w");
    return DT_OK;
}

static dt_status fails(dt_tape *t, void *arg, dt_walk walk)
{
    (void)t;
    (void)arg;
    (void)walk;
    return DT_ERROR(DT_ERR_IO, "a hook that fails");
}

static dt_status markers_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    diary d = {""};
    const char *entry[4][2] = {{"b1", (const char *)&d},
                               {"e1", (const char *)&d},
                               {"b2", (const char *)&d},
                               {"e2", (const char *)&d}};
    dt_tensor *x = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(3), "", DT_F32, 1, &x));
    for (int used = 0; used < 2; used++) {
        for (int parts = 1; parts <= 2; parts++) {
            d.text[0] = '\0';
            const int b1 = dt_tape_mark_begin(b.t, note, entry[0]);
            dt_tensor *y = dt_scale(b.t, x, 2);
            dt_tape_mark_pair(b.t, b1,
                              dt_tape_mark_end(b.t, note, entry[1], 2, (dt_tensor *[]){NULL, y}));
            const int b2 = dt_tape_mark_begin(b.t, note, entry[2]);
            dt_tensor *z = dt_scale(b.t, y, 2);
            dt_tape_mark_pair(b.t, b2, dt_tape_mark_end(b.t, note, entry[3], 1, &z));
            dt_tensor *loss = dt_sum(b.t, used ? z : y, 0); /* the second call may be left out */
            const dt_layout *layout = dt_tensor_layout(loss);
            dt_local one = {layout, {0}};
            DT_TRY(dt_array_create(b.heap, DT_F32, DT_SCALAR, DT_TAG_GRADIENT, &one.array));
            dt_array_fill(&one.array, 1);
            if (parts == 1)
                DT_TRY(dt_backward(b.t, loss));
            else
                DT_TRY(dt_backward_input(b.t, 1, &loss, &one));
            if (parts == 2)
                DT_TRY(dt_backward_weight(b.t));
            static const char *const want[2][2] = {
                {"e1 b1 ", "e1i b1i e1w b1w "},
                {"e2 b2 e1 b1 ", "e2i b2i e1i b1i e2w b2w e1w b1w "}};
            TEST_THAT(strcmp(d.text, want[used][parts - 1]) == 0, "'%s'", d.text);
            dt_array_release(&one.array);
            dt_tape_reset(b.t, NULL);
        }
    }
    dt_tape_enter(b.t, "model.norm");
    dt_tensor *y = dt_scale(b.t, x, 2);
    (void)dt_tape_mark_end(b.t, fails, NULL, 1, &y);
    dt_tape_leave(b.t);
    dt_tensor *loss = dt_sum(b.t, y, 0);
    TEST_FAILS(DT_ERR_IO, "model.norm", dt_backward(b.t, loss));
    TEST_FAILS(DT_ERR_IO, "a hook that fails", dt_tape_status(b.t));
    dt_tape_reset(b.t, &(dt_tape_options){.no_grad = true});
    TEST_THAT(dt_tape_mark_begin(b.t, note, entry[0]) == -1, "no_grad has no markers");
    dt_tensor_destroy(&x);
    place_close(&b);
    return DT_OK;
}

START_TEST(markers)
{
    test_ranks(1, markers_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("markers");
    TCase *tc = tcase_create("markers");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, markers);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
