/* tests/fsdp/resident.c - see tests/fsdp/resident.h. */
#include "tests/fsdp/resident.h"

#include <stdio.h>

int64_t net_neighbours(dt_module *m)
{
    int n = 0;
    int64_t most = 0, last = 0;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++) {
        const int64_t bytes = (int64_t)dt_array_bytes(dt_tensor_local(p[i]->tensor));
        most = last + bytes > most ? last + bytes : most;
        last = bytes;
    }
    return most;
}

dt_status net_peaks_are(dt_heap *heap, const char *when, int64_t params, int64_t optimizer)
{
    const dt_heap_stats s = dt_heap_get_stats(heap);
    if (dt_heap_device(heap).kind == DT_META)
        (void)printf("  %s: parameters %lld, formula %lld; optimizer %lld, formula %lld bytes\n",
                     when, (long long)s.peak[DT_TAG_PARAMETER], (long long)params,
                     (long long)s.peak[DT_TAG_OPTIMIZER], (long long)optimizer);
    TEST_THAT(s.peak[DT_TAG_PARAMETER] == params && s.peak[DT_TAG_OPTIMIZER] == optimizer,
              "%s: parameters %lld, not %lld; optimizer %lld, not %lld", when,
              (long long)s.peak[DT_TAG_PARAMETER], (long long)params,
              (long long)s.peak[DT_TAG_OPTIMIZER], (long long)optimizer);
    dt_heap_reset_peaks(heap);
    return DT_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of the store's buffers those that are in the rank's heap. */
static int64_t ring_bytes(const net_case *c)
{
    if (c->offload_host)
        return DT_STORE_BUFFERS * DT_STORE_DEVICE_BYTES;
    return test_device_kind() == DT_CPU ? DT_STORE_BUFFERS * DT_STORE_BUFFER_BYTES : 0;
}

/* What rests in memory of the host, and that nothing more is asked for there in steps. */
static dt_status host_holds(const net *n, int64_t params, int64_t optimizer, int64_t *allocations)
{
    const dt_heap_stats s = dt_store_get_stats(n->store);
    if (!n->c->offload_host)
        return DT_OK;
    TEST_THAT(s.live[DT_TAG_PARAMETER] == params && s.live[DT_TAG_OPTIMIZER] == optimizer &&
                  s.live_total == params + optimizer,
              "on the host: parameters %lld, not %lld; optimizer %lld, not %lld; in all %lld",
              (long long)s.live[DT_TAG_PARAMETER], (long long)params,
              (long long)s.live[DT_TAG_OPTIMIZER], (long long)optimizer, (long long)s.live_total);
    TEST_THAT(*allocations == 0 || *allocations == s.allocations, "%lld allocations, then %lld",
              (long long)*allocations, (long long)s.allocations);
    *allocations = s.allocations;
    return DT_OK;
}

dt_status net_resident_body(dt_world *world, void *arg)
{
    const net_case *c = arg;
    const int ahead = c->options.prefetch < 0 ? 0 : c->options.prefetch ? c->options.prefetch : 1;
    net n;
    double loss = 0;
    int64_t allocations = 0;
    dt_tensor *l = NULL;
    DT_TRY(net_open(c, world, &n));
    const int64_t S = dt_module_local_bytes(n.root), B = dt_module_local_bytes(n.block[0]);
    const int64_t passes = larger(S - c->blocks * B, (1 + ahead) * B);
    const int64_t pair = net_neighbours(n.root);
    dt_heap *heap = dt_mesh_heap(n.mesh);
    dt_heap_reset_peaks(heap);
    DT_TRY(net_peaks_are(heap, "at rest", c->offload_params ? 0 : S, 0));
    const dt_heap_stats rest = dt_heap_get_stats(heap);
    TEST_THAT(rest.live_total == (c->offload_params ? 0 : S) + ring_bytes(c), "%lld bytes at rest",
              (long long)rest.live_total);
    DT_TRY(net_step(&n, 0, &loss));
    for (int step = 1; step < 3; step++) {
        dt_heap_reset_peaks(heap);
        DT_TRY(net_forward(&n, step, false, &l));
        DT_TRY(net_peaks_are(heap, "forward", c->offload_params ? passes : S, 0));
        DT_TRY(dt_backward(n.t, l));
        DT_TRY(net_peaks_are(heap, "backward", c->offload_params ? (1 + ahead) * B : S, 0));
        DT_TRY(dt_module_reduce_grads(n.root));
        DT_TRY(dt_optim_step(n.optim, 1e-2, 1));
        DT_TRY(net_peaks_are(heap, "optimizer", c->offload_params ? pair : S, 2 * pair));
        DT_TRY(host_holds(&n, c->offload_params ? S : 0, 2 * S, &allocations));
        dt_module_clear_grads(n.root);
        dt_tape_reset(n.t, NULL);
    }
    net_close(&n);
    return DT_OK;
}
