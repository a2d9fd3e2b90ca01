/* array/device.c - arrays that are not on the cpu: what to ask for them, and copies between host
 * and device, which block. Read first: array/cuda_internal.h. */
#include "array/device_internal.h"

#include "array/array_internal.h"

#include <stdlib.h>

int dt_device_count(dt_device_kind kind)
{
    return kind == DT_CUDA ? dti_cuda_device_count() : 1;
}

dt_heap_counts dt_heap_get_counts(const dt_heap *heap)
{
    return dt_heap_device(heap).kind == DT_CUDA ? dti_cuda_counts() : (dt_heap_counts){0};
}

dt_status dt_heap_status(const dt_heap *heap)
{
    return dt_heap_device(heap).kind == DT_CUDA ? dti_cuda_status() : DT_OK;
}

void *dt_heap_stream(const dt_heap *heap)
{
    return dt_heap_device(heap).kind == DT_CUDA ? dti_cuda_stream() : NULL;
}

void *dt_heap_set_stream(dt_heap *heap, void *stream)
{
    return dt_heap_device(heap).kind == DT_CUDA ? dti_cuda_set_stream(stream) : NULL;
}

void dt_heap_set_watch(dt_heap *heap, dt_heap_watch watch, void *arg)
{
    if (dt_heap_device(heap).kind == DT_CUDA)
        dti_cuda_set_watch(watch, arg);
}

const dti_cuda_arrays *dti_elsewhere(const dt_array *a)
{
    const bool cuda =
        a->storage && a->storage->heap && dt_heap_device(a->storage->heap).kind == DT_CUDA;
    return cuda ? dti_cuda_array_kernels() : NULL;
}

/* An error stays with the device: dt_heap_status. */
static void move(const dti_cuda_arrays *to_device, void *dst, const dti_cuda_arrays *from_device,
                 const void *src, size_t bytes)
{
    if (to_device && from_device)
        to_device->copy(dst, src, bytes);
    else if (to_device)
        (void)to_device->write(dst, src, bytes);
    else
        (void)from_device->read(dst, src, bytes);
}

void dti_copy_elsewhere(dt_array *dst, const dt_array *src)
{
    move(dti_elsewhere(dst), dt_array_data(dst), dti_elsewhere(src), dt_array_data(src),
         dt_array_bytes(dst));
}

static dti_cast_args cast_args(const dt_array *dst, const dt_array *src)
{
    return (dti_cast_args){dst->dtype, src->dtype, dt_array_data(dst), dt_array_data(src),
                           dt_array_count(dst)};
}

void dti_cast_elsewhere(dt_array *dst, const dt_array *src)
{
    const dti_cuda_arrays *to = dti_elsewhere(dst), *from = dti_elsewhere(src);
    const int64_t n = dt_array_count(dst);
    if (to && from) {
        const dti_cast_args one = cast_args(dst, src);
        to->cast(1, &one);
        return;
    }
    /* The host converts, piece by piece, from or to the type that is on the device. */
    enum { PIECE = 4096 };
    double room[PIECE];
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t m = n - at < PIECE ? n - at : PIECE;
        void *out = dti_at(dst->dtype, dt_array_data(dst), at);
        const void *in = dti_at(src->dtype, dt_array_data(src), at);
        if (from)
            (void)from->read(room, in, (size_t)m * dt_dtype_size(src->dtype));
        dti_cast(dst->dtype, to ? room : out, src->dtype, from ? room : in, m);
        if (to)
            (void)to->write(out, room, (size_t)m * dt_dtype_size(dst->dtype));
    }
}

void dt_casts_add(dt_casts *c, dt_array *dst, const dt_array *src)
{
    if (!dti_elsewhere(dst) || !dti_elsewhere(src)) {
        dt_array_cast(dst, src);
        return;
    }
    if (c->n == DT_CASTS)
        dt_casts_run(c);
    c->dst[c->n] = *dst;
    c->src[c->n++] = dt_array_share(src);
}

void dt_casts_run(dt_casts *c)
{
    dti_cast_args list[DT_CASTS];
    for (int i = 0; i < c->n; i++)
        list[i] = cast_args(&c->dst[i], &c->src[i]);
    if (c->n > 0)
        dti_elsewhere(&c->dst[0])->cast(c->n, list);
    while (c->n > 0)
        dt_array_release(&c->src[--c->n]);
}

const void *dt_array_look(const dt_array *a, void **copy_out)
{
    const dti_cuda_arrays *from = dti_elsewhere(a);
    const void *data = dt_array_data(a);
    *copy_out = NULL;
    if (!from || !data)
        return data;
    *copy_out = malloc(dt_array_bytes(a));
    if (*copy_out)
        (void)from->read(*copy_out, data, dt_array_bytes(a));
    return *copy_out;
}

/* Is the block all there is between its first and its last element? */
static bool is_dense(const dti_strided_block *b, const int64_t stride[])
{
    int64_t inner = 1;
    for (int d = b->ndim - 1; d >= 0; d--) {
        if (b->extent[d] > 1 && stride[d] != inner)
            return false;
        inner *= b->extent[d];
    }
    return true;
}

static int64_t offset_of(const dti_strided_block *b, const int64_t stride[], int64_t run)
{
    int64_t at = 0;
    for (int d = b->ndim - 2; d >= 0; d--) {
        at += run % b->extent[d] * stride[d];
        run /= b->extent[d];
    }
    return at * b->elem_bytes;
}

static int64_t dense_strides(const dti_strided_block *b, int64_t stride[])
{
    int64_t inner = 1;
    for (int d = b->ndim - 1; d >= 0; d--) {
        stride[d] = inner;
        inner *= b->extent[d];
    }
    return inner;
}

void dti_block_elsewhere(const dti_strided_block *b, const dti_cuda_arrays *to,
                         const dti_cuda_arrays *from)
{
    dti_strided_block host = *b;
    const int64_t count = dense_strides(b, to ? host.dst_stride : host.src_stride);
    const int64_t length = b->ndim > 0 ? b->extent[b->ndim - 1] : 1;
    const bool dense = is_dense(b, to ? b->dst_stride : b->src_stride);
    char *room = dense ? malloc((size_t)(count * b->elem_bytes)) : NULL;
    if (to && from) {
        to->copy_block(b);
    } else if (room) { /* one transfer; the host arranges */
        host.dst = to ? room : b->dst;
        host.src = to ? b->src : room;
        if (from)
            (void)from->read(room, b->src, (size_t)(count * b->elem_bytes));
        dti_copy_block(&host);
        if (to)
            (void)to->write(b->dst, room, (size_t)(count * b->elem_bytes));
    } else { /* run by run */
        for (int64_t r = 0; r < count / length; r++)
            move(to, (char *)b->dst + offset_of(b, b->dst_stride, r), from,
                 (const char *)b->src + offset_of(b, b->src_stride, r),
                 (size_t)(length * b->elem_bytes));
    }
    free(room);
}
