/* models/models_internal.h - what a decoder is, whatever its blocks: embedding, blocks, norm,
 * head. */
#pragma once

#include "nn/dt_layers.h"

/* The state of a decoder's body; `made` is a child under construction, `root` and `body` the
 * modules. */
typedef struct dti_decoder {
    const char *body_name, *embed_name, *layers_name, *norm_name;
    dt_tensor *(*embed)(dt_module *body, dt_tape *t, dt_tensor *ids, dt_tensor *positions);
    int64_t layers;
    double dropout;
    dt_module *root, *body, *group, *made;
} dti_decoder;

/* root { body { layers {} } }; fills d->root, body, group. */
dt_status dti_decoder_begin(dti_decoder *d);
/* Give the child that `st` says was made to its parent; *made becomes NULL. Passes st on if it is a
 * failure. */
dt_status dti_add_made(dt_module *parent, const char *name, dt_status st, dt_module **made);
dt_status dti_decoder_add_block(dti_decoder *d, int64_t i, dt_status st);
const dti_decoder *dti_decoder_of(dt_module *body);
/* The parts that no block has taken over. */
void dti_block_destroy(dt_block_parts *parts);
