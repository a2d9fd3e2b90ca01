/* tests/simdev/stream.cc - CUDA's streams and events. */
#include "stream_internal.h"

#include <algorithm>
#include <chrono>
#include <unordered_set>

std::vector<cudaStream_t> sim_streams;
static std::unordered_set<cudaEvent_t> events;

void sim_need_stream(cudaStream_t stream)
{
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        sim_fail("work on a default stream, which waits for all others: name a stream");
    if (std::find(sim_streams.begin(), sim_streams.end(), stream) == sim_streams.end() ||
        stream->destroyed)
        sim_fail("%p is not a stream, or was destroyed", static_cast<void *>(stream));
}

int sim_stream_device(cudaStream_t stream)
{
    sim_need_stream(stream);
    return stream->device;
}

uint64_t sim_next_serial(cudaStream_t stream)
{
    return stream->enqueued;
}

bool sim_is_head(cudaStream_t stream, uint64_t serial)
{
    return stream->run == serial && !stream->queue.empty();
}

void sim_delete_stream(cudaStream_t stream)
{
    sim_streams.erase(std::find(sim_streams.begin(), sim_streams.end(), stream));
    sim_forget_fibers(stream->fiber);
    sim_fiber_destroy(stream->fiber);
    delete stream;
}

void sim_wait_for_stream(cudaStream_t stream, const std::function<bool()> &done)
{
    sim_drive(done, [=] { return stream; });
    sim_acquire(&stream->token);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned, int)
{
    static uint64_t ids;
    SimLock lock;
    CUstream_st *s = new CUstream_st();
    s->device = sim_device();
    s->id = ++ids;
    s->fiber = sim_fiber_create(); /* ordered after what its creator has done, not its first user */
    sim_streams.push_back(s);
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, 0, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    SimLock lock;
    sim_need_stream(stream);
    stream->destroyed = true;
    if (stream->queue.empty())
        sim_delete_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    SimLock lock;
    sim_need_stream(stream);
    sim_wait_for_stream(stream, [=] { return stream->queue.empty(); });
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    SimLock lock;
    sim_need_stream(stream);
    if (!stream->queue.empty())
        sim_poll(stream);
    if (!stream->queue.empty())
        return cudaErrorNotReady;
    sim_acquire(&stream->token);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    SimLock lock;
    sim_drain_device(sim_device());
    sim_check_all_guards();
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void *data)
{
    SimLock lock;
    SimOp op = {};
    op.name = "host function";
    op.host = true;
    op.run = [=] {
        call(data);
        return true;
    };
    sim_enqueue(stream, std::move(op));
    return cudaSuccess;
}

/* ---- events ---- */

static void need_event(cudaEvent_t event)
{
    if (!events.count(event))
        sim_fail("%p is not an event, or was destroyed", static_cast<void *>(event));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    SimLock lock;
    *out = new CUevent_st();
    (*out)->device = sim_device();
    events.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    SimLock lock;
    need_event(event);
    events.erase(event);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    SimLock lock;
    need_event(event);
    if (sim_stream_device(stream) != event->device)
        sim_fail("an event of device %d is recorded on a stream of device %d", event->device,
                 stream->device);
    auto record = std::make_shared<SimRecord>();
    record->stream = stream;
    record->stream_id = stream->id;
    event->last = record;
    sim_enqueue_simple(stream, "event record", [record] {
        auto now = std::chrono::steady_clock::now().time_since_epoch();
        record->seconds = std::chrono::duration<double>(now).count();
        record->done = true;
        sim_release(&record->token);
    });
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    return cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    SimLock lock;
    need_event(event);
    sim_need_stream(stream);
    std::shared_ptr<SimRecord> record = event->last;
    if (!record)
        return cudaSuccess;
    SimOp op = {};
    op.name = "wait for an event of stream " + std::to_string(record->stream_id);
    op.ready = [record] { return record->done; };
    op.needs = [record](std::vector<cudaStream_t> &needs) { needs.push_back(record->stream); };
    op.run = [record] {
        sim_acquire(&record->token);
        return true;
    };
    sim_enqueue(stream, std::move(op));
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    SimLock lock;
    need_event(event);
    std::shared_ptr<SimRecord> record = event->last;
    if (!record)
        return cudaSuccess;
    sim_drive([=] { return record->done; },
              [=] { return record->done ? nullptr : record->stream; });
    sim_acquire(&record->token);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    SimLock lock;
    need_event(event);
    std::shared_ptr<SimRecord> record = event->last;
    if (record && !record->done)
        sim_poll(record->stream);
    if (record && !record->done)
        return cudaErrorNotReady;
    if (record)
        sim_acquire(&record->token);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    SimLock lock;
    need_event(from);
    need_event(to);
    if (!from->last || !to->last)
        return sim_error(cudaErrorInvalidResourceHandle);
    if (!from->last->done || !to->last->done)
        return sim_error(cudaErrorNotReady);
    *ms = static_cast<float>((to->last->seconds - from->last->seconds) * 1e3);
    return cudaSuccess;
}
