/* tests/simdev/copy.cc - copies and fills, and blocks that come into use.
 *
 * Pinned host memory is read and written when the copy runs. What is pageable is read at the call;
 * a copy to it is waited for, as CUDA does. */
#include "sim_internal.h"

#include <cstring>
#include <memory>

struct Copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, height;
};

static size_t span(size_t pitch, size_t width, size_t height)
{
    return height ? (height - 1) * pitch + width : 0;
}

static void run(const Copy &c)
{
    for (size_t i = 0; i < c.height; i++) {
        sim_touch(c.from + i * c.from_pitch, c.width, false);
        sim_touch(c.to + i * c.to_pitch, c.width, true);
        memmove(c.to + i * c.to_pitch, c.from + i * c.from_pitch, c.width);
    }
}

static void check(const char *what, const void *p, size_t bytes, bool on_device, int device)
{
    if (on_device)
        sim_need_device(what, p, bytes, device);
    else if (sim_in_arena(p))
        sim_fail("%s: %p is device memory, but the kind of copy says host", what, p);
}

static void enqueue(Copy c, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    size_t from_span = span(c.from_pitch, c.width, c.height);
    size_t to_span = span(c.to_pitch, c.width, c.height);
    int device = sim_stream_device(stream);
    bool from_device = kind == cudaMemcpyDefault
                           ? sim_in_arena(c.from)
                           : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool to_device = kind == cudaMemcpyDefault
                         ? sim_in_arena(c.to)
                         : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    check("the source of a copy", c.from, from_span, from_device, device);
    check("the destination of a copy", c.to, to_span, to_device, device);
    if (!from_span)
        return;
    auto staged = std::make_shared<std::vector<char>>();
    if (!from_device && !sim_is_pinned(c.from, from_span)) {
        sim_touch(c.from, from_span, false);
        staged->assign(c.from, c.from + from_span);
        c.from = staged->data();
    }
    bool wait = !to_device && !sim_is_pinned(c.to, to_span);
    auto done = std::make_shared<bool>(false);
    sim_enqueue_simple(stream, "copy", [=] {
        run(c);
        *done = true;
        (void)staged;
    });
    if (wait)
        sim_wait_for_stream(stream, [=] { return *done; });
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    SimLock lock;
    if (width > to_pitch || width > from_pitch)
        return sim_error(cudaErrorInvalidValue);
    enqueue({static_cast<char *>(to), static_cast<const char *>(from), to_pitch, from_pitch, width,
             width ? height : 0},
            kind, stream);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    SimLock lock;
    sim_need_device("cudaMemsetAsync", p, bytes, sim_stream_device(stream));
    sim_enqueue_simple(stream, "fill", [=] {
        sim_touch(p, bytes, true);
        memset(p, value, bytes);
    });
    return cudaSuccess;
}

/* ---- blocks of an allocator ---- */

void sim_block_taken(void *p, size_t bytes, size_t red_zone, cudaStream_t stream)
{
    SimLock lock;
    sim_need_device("a block that is taken", p, bytes + red_zone, sim_stream_device(stream));
    sim_enqueue_simple(stream, "block taken", [=] {
        sim_redzone(p, bytes, false);
        sim_redzone(static_cast<char *>(p) + bytes, red_zone, true);
        sim_touch(p, bytes, true);
        if (sim_settings.poison)
            memset(p, 0xff, bytes);
    });
}

void sim_block_given(void *p, size_t bytes, cudaStream_t stream)
{
    SimLock lock;
    sim_need_device("a block that is given back", p, bytes, sim_stream_device(stream));
    sim_enqueue_simple(stream, "block given back", [=] { sim_redzone(p, bytes, true); });
}
