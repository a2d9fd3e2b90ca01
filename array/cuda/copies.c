/* array/cuda/copies.c - copies between the device and pinned memory of the host, beside the compute
 * stream. Read first: array/cuda_internal.h.
 *
 *     compute   ... a block of memory is taken --+            +-- what uses it ...
 *                                              1 v          2 ^
 *     in        ............................... host to device ......
 *
 *     compute   ... what fills a buffer --+                +-- what fills the buffer again ...
 *                                       3 v              4 ^
 *     out       ........................ device to host ......
 *                                                    5 v
 *     in        ..................................... the same bytes of the host, back again
 */
#include "array/cuda/gpu_internal.h"
#include "array/cuda_internal.h"

#include <stdlib.h>

enum { BEFORE_IN = 1, AFTER_IN, BEFORE_OUT, AFTER_OUT, OUT_BEFORE_IN };

typedef struct streams {
    cudaStream_t in, out;
    cudaEvent_t now; /* the compute stream's, moved at every copy */
    int drop;        /* one of the waits above is left out */
} streams;

typedef struct mark {
    cudaEvent_t event;
    bool is_out; /* the last copy went to the host */
} mark;

static dt_status pin(void *host, size_t bytes)
{
    const cudaError_t error = cudaHostRegister(host, bytes, cudaHostRegisterDefault);
    DT_REQUIRE(error == cudaSuccess, DT_ERR_NOMEM, "%zu bytes of the host cannot be pinned: %s",
               bytes, cudaGetErrorString(error));
    return DT_OK;
}

static void unpin(void *host)
{
    (void)cudaHostUnregister(host);
}

static void wait_for(const streams *s, int which, cudaStream_t stream, cudaEvent_t event)
{
    if (s->drop != which)
        (void)DTI_GPU(cudaStreamWaitEvent(stream, event, 0));
}

static void close_streams(void *arg)
{
    streams *s = arg;
    if (s->in)
        (void)cudaStreamSynchronize(s->in);
    if (s->out)
        (void)cudaStreamSynchronize(s->out);
    if (s->in)
        (void)cudaStreamDestroy(s->in);
    if (s->out)
        (void)cudaStreamDestroy(s->out);
    if (s->now)
        (void)cudaEventDestroy(s->now);
    free(s);
}

static dt_status open_streams(int drop, void **streams_out)
{
    streams *s = calloc(1, sizeof *s);
    DT_REQUIRE(s, DT_ERR_NOMEM, "streams of copies");
    s->drop = drop;
    if (!DTI_GPU(cudaStreamCreateWithFlags(&s->in, cudaStreamNonBlocking)) ||
        !DTI_GPU(cudaStreamCreateWithFlags(&s->out, cudaStreamNonBlocking)) ||
        !DTI_GPU(cudaEventCreateWithFlags(&s->now, cudaEventDisableTiming))) {
        close_streams(s);
        return DT_ERROR(DT_ERR_DEVICE, "no streams for copies");
    }
    *streams_out = s;
    return DT_OK;
}

static dt_status make_mark(void **mark_out)
{
    mark *m = calloc(1, sizeof *m);
    DT_REQUIRE(m, DT_ERR_NOMEM, "a mark of copies");
    if (!DTI_GPU(cudaEventCreateWithFlags(&m->event, cudaEventDisableTiming))) {
        free(m);
        return DT_ERROR(DT_ERR_DEVICE, "no event for copies");
    }
    *mark_out = m;
    return DT_OK;
}

static void drop_mark(void *arg)
{
    mark *m = arg;
    if (m) {
        (void)DTI_GPU(cudaEventSynchronize(m->event));
        (void)cudaEventDestroy(m->event);
    }
    free(m);
}

static void set(mark *m, cudaStream_t stream, bool is_out)
{
    (void)DTI_GPU(cudaEventRecord(m->event, stream));
    m->is_out = is_out;
}

static void copy_in(void *arg, void *dst, const void *host, size_t bytes, void *mark_)
{
    const streams *s = arg;
    (void)DTI_GPU(cudaEventRecord(s->now, dti_gpu_stream()));
    wait_for(s, BEFORE_IN, s->in, s->now);
    wait_for(s, OUT_BEFORE_IN, s->in, ((mark *)mark_)->event);
    (void)DTI_GPU(cudaMemcpyAsync(dst, host, bytes, cudaMemcpyHostToDevice, s->in));
    set(mark_, s->in, false);
}

static void copy_out(void *arg, void *host, const void *src, size_t bytes, void *mark_,
                     void *other)
{
    const streams *s = arg;
    (void)DTI_GPU(cudaEventRecord(s->now, dti_gpu_stream()));
    wait_for(s, BEFORE_OUT, s->out, s->now);
    (void)DTI_GPU(cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, s->out));
    set(mark_, s->out, true);
    set(other, s->out, true);
}

static void wait_mark(void *arg, void *mark_)
{
    const mark *m = mark_;
    wait_for(arg, m->is_out ? AFTER_OUT : AFTER_IN, dti_gpu_stream(), m->event);
}

const dti_cuda_copies_table *dti_cuda_copies(void)
{
    static const dti_cuda_copies_table table = {.pin = pin,
                                                .unpin = unpin,
                                                .open = open_streams,
                                                .close = close_streams,
                                                .mark = make_mark,
                                                .unmark = drop_mark,
                                                .in = copy_in,
                                                .out = copy_out,
                                                .wait = wait_mark};
    return &table;
}
