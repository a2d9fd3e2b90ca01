/* tests/models/picture.h - what a model is, in a few numbers: its parameters, and its loss on a
 * fixed batch. */
#pragma once

#include "models/dt_models.h"
#include "tests/harness.h"

enum { PICTURE_VOCAB = 40 }; /* tokens of the batch are below */

typedef struct picture {
    int64_t nparams, count;
    double sum; /* of all initial values, in order */
    float loss;
} picture;

/* Materializes the model, calls it and destroys it. */
dt_status picture_take(dt_world *world, dt_module *model, picture *out);
bool picture_same(const picture *a, const picture *b);
/* The model of a config.json with this text. */
dt_status picture_of_text(dt_world *world, const char *text, picture *out, dt_model_facts *facts);
