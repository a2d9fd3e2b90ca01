/* tests/fsdp/net.h - a small network to shard: norm, blocks of two matrices, a head; the loss is
 * the mean square of what comes
 * out. Groups: each block, and the root with norm and head. */
#pragma once

#include "fsdp/dt_fsdp.h"
#include "models/dt_models.h"
#include "nn/dt_layers.h"
#include "nn/dt_recompute.h"
#include "optim/dt_optim.h"
#include "tests/harness.h"

enum { NET_BLOCKS = 8, NET_STEPS = 10, NET_TEXT = 8192 };

typedef struct net net;
typedef struct net_case {
    int shard, replicate, tp; /* ranks; 0: 1 */
    int blocks, micro;        /* micro: microbatches a step; 0: 1 */
    int64_t n, hidden, batch; /* batch: of a microbatch, all ranks */
    dt_fsdp_options options;
    const char *replicate_axes;      /* "dp_replicate" if replicate > 1 */
    bool plain;                      /* not sharded */
    dt_status (*shard_with)(net *n); /* instead of all that plain and options say */
    dt_recompute_policy recompute;
    int steps, delay_ms;
    unsigned delayed;        /* kinds, see dt_world_set_delay */
    bool stops;              /* a barrier after each forward and before the optimizer */
    bool last_sync_only;     /* gradients stay unsharded until the last microbatch */
    const char *offload_dir; /* where optimizer state rests; NULL: in memory */
    bool offload_host;       /* ... there instead: dt_store_create without a folder */
    bool offload_params;     /* and shards too */
} net_case;

struct net {
    const net_case *c;
    dt_world *world;
    dt_mesh *mesh;
    dt_module *root, *layers, *block[NET_BLOCKS];
    dt_tape *t;
    dt_tensor *x;
    dt_optim *optim;
    dt_store *store; /* NULL: nothing is offloaded */
    dt_trace *trace;
};

/* What a run gave, on rank 0. */
typedef struct net_run {
    double loss[NET_STEPS];
    int64_t count;
    float *weight;         /* all parameters one after the other, whole */
    dt_counts counts;      /* of the last step */
    int64_t waits;         /* of the host for the device, in the last step */
    char events[NET_TEXT]; /* the same, see net_events */
} net_run;

int net_ranks(const net_case *c);
/* The network, materialized, with an optimizer. */
dt_status net_open(const net_case *c, dt_world *world, net *n);
void net_close(net *n);
/* Forward of microbatch `batch` (any number; equal on all meshes) on a tape that is reset. */
dt_status net_forward(net *n, int batch, bool no_grad, dt_tensor **loss);
dt_status net_loss(net *n, dt_tensor *loss, double *value); /* sum over ranks */
/* Forward, backward, of all microbatches; then reduce_grads, the optimizer, clear_grads. */
dt_status net_gradients(net *n, int step, double *loss);
dt_status net_step(net *n, int step, double *loss);
/* A rank body: two steps of the net_case `arg`. */
dt_status net_two_steps(dt_world *world, void *arg);
/* All weights, or gradients that are at home, whole, one after the other; caller frees. */
dt_status net_weights(net *n, int64_t *count, float **out);
dt_status net_grads(net *n, int64_t *count, float **out);
/* Open, some steps, close, on as many threads. */
net_run net_train(const net_case *c);
void net_free(net_run *r);
/* ck_assert that losses and weights agree: relative `limit` of the largest; 0: bit by bit. */
void net_same(const net_run *a, const net_run *b, int steps, double limit);

/* Events of kind "fsdp" so far, one a line; and then forgotten. */
dt_status net_events(net *n, char text[NET_TEXT]);
/* For dt_fsdp_schedule_print: appends to char[NET_TEXT], which has the form of net_events then. */
void net_add_line(void *text, const char *line);
int64_t net_calls(net *n, dt_call kind); /* since the last reset of the counts */

/* A larger model: Llama, 8 times llama_tiny's width and 8 layers, 24 million parameters; rows of
 * the embedding do not divide by 8. */
extern const dt_llama_config net_wide;
