/* array/array.c - arrays as handles on storage, and whole-array operations. Read first:
 * array/dt_array.h; kernels are in array/kernels_array.c and array/kernels_cast.c. */
#include "array/array_internal.h"
#include "array/device_internal.h"
#include "array/dt_kernels.h"
#include "array/dt_store.h"
#include "array/heap_internal.h"

#include <assert.h>
#include <string.h>

dt_status dt_array_create(dt_heap *heap, dt_dtype dtype, dt_shape shape, dt_tag tag,
                          dt_array *array_out)
{
    DT_REQUIRE((unsigned)dtype < DT_NDTYPES, DT_ERR_ARG,
               "dtype %d is none of DT_F32 ... DT_U8, 0 to %d", (int)dtype, DT_NDTYPES - 1);
    int64_t bytes = (int64_t)dt_dtype_size(dtype);
    bool legal = true, overflow = false, empty = false;
    for (int d = 0; d < shape.ndim; d++) {
        legal = legal && shape.dim[d] >= 0;
        empty = empty || shape.dim[d] == 0;
        overflow = __builtin_mul_overflow(bytes, shape.dim[d], &bytes) || overflow;
    }
    legal = legal && (empty || !overflow);
    if (!legal) {
        char text[DT_SHAPE_TEXT];
        return DT_ERROR(DT_ERR_SHAPE, "shape %s: dims must be >= 0 and the bytes fit 63 bits",
                        dt_shape_print(shape, text, sizeof text));
    }
    dt_storage *storage = NULL;
    DT_TRY(dti_storage_create(heap, empty ? 0 : (size_t)bytes, tag, &storage));
    *array_out = (dt_array){.storage = storage, .shape = shape, .dtype = dtype};
    return DT_OK;
}

dt_array dt_array_share(const dt_array *a)
{
    if (a->storage != NULL)
        a->storage->refs++;
    return *a;
}

dt_array dt_array_reshape(const dt_array *a, dt_shape shape)
{
    assert(dt_shape_count(shape) == dt_array_count(a));
    dt_array b = dt_array_share(a);
    b.shape = shape;
    return b;
}

dt_array dt_array_rows(const dt_array *a, int64_t lo, int64_t hi)
{
    assert(a->shape.ndim > 0 && 0 <= lo && lo <= hi && hi <= a->shape.dim[0]);
    dt_array b = dt_array_share(a);
    b.offset += lo * dt_shape_inner(a->shape, 0);
    b.shape.dim[0] = hi - lo;
    return b;
}

void dt_array_release(dt_array *a)
{
    if (a->storage != NULL)
        dti_storage_release(a->storage);
    *a = (dt_array){0};
}

int64_t dt_array_count(const dt_array *a)
{
    return dt_shape_count(a->shape);
}

size_t dt_array_bytes(const dt_array *a)
{
    return (size_t)dt_array_count(a) * dt_dtype_size(a->dtype);
}

bool dt_array_is_meta(const dt_array *a)
{
    return a->storage != NULL && dt_heap_device(a->storage->heap).kind == DT_META;
}

void *dt_array_data(const dt_array *a)
{
    if (a->storage == NULL || a->storage->data == NULL || dt_array_count(a) == 0) {
        assert(a->storage == NULL || !a->storage->slot || !a->storage->emptied ||
               dt_array_is_meta(a) || dt_array_count(a) == 0);
        return NULL;
    }
    return dti_at(a->dtype, a->storage->data, a->offset);
}

/* What write and read demand. */
static dt_status check_host_count(const dt_array *a, int64_t n)
{
    DT_REQUIRE(a->storage != NULL, DT_ERR_ARG, "no array");
    DT_REQUIRE(n == dt_array_count(a), DT_ERR_SHAPE, "%lld host elements for an array of %lld",
               (long long)n, (long long)dt_array_count(a));
    DT_REQUIRE(!a->storage->emptied || a->storage->slot, DT_ERR_STATE,
               "the array's storage is emptied: refill it first");
    return DT_OK;
}

dt_status dt_array_write(dt_array *a, const void *host, int64_t n)
{
    DT_TRY(check_host_count(a, n));
    DT_TRY(dt_storage_open(a->storage));
    void *data = dt_array_data(a);
    dt_status st = DT_OK;
    if (data != NULL && dti_elsewhere(a))
        st = dti_elsewhere(a)->write(data, host, dt_array_bytes(a));
    else if (data != NULL)
        memcpy(data, host, dt_array_bytes(a));
    if (st == DT_OK)
        st = dt_storage_put(a->storage);
    dt_storage_close(a->storage);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

dt_status dt_array_read(const dt_array *a, void *host, int64_t n)
{
    DT_TRY(check_host_count(a, n));
    DT_TRY(dt_storage_open(a->storage));
    const void *data = dt_array_data(a);
    dt_status st = DT_OK;
    if (data != NULL && dti_elsewhere(a))
        st = dti_elsewhere(a)->read(host, data, dt_array_bytes(a));
    else if (data != NULL)
        memcpy(host, data, dt_array_bytes(a));
    dt_storage_close(a->storage);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

/* The pieces that threads work on. */
typedef struct element_job {
    dt_dtype dtype, from;
    void *dst;
    const void *src;
    double value;
} element_job;

static void zero_piece(void *arg, int64_t lo, int64_t hi)
{
    const element_job *job = arg;
    memset(dti_at(job->dtype, job->dst, lo), 0, (size_t)(hi - lo) * dt_dtype_size(job->dtype));
}

static void fill_piece(void *arg, int64_t lo, int64_t hi)
{
    const element_job *job = arg;
    dti_fill(job->dtype, dti_at(job->dtype, job->dst, lo), hi - lo, job->value);
}

static void scale_piece(void *arg, int64_t lo, int64_t hi)
{
    const element_job *job = arg;
    dti_scale(job->dtype, dti_at(job->dtype, job->dst, lo), hi - lo, job->value);
}

static void add_piece(void *arg, int64_t lo, int64_t hi)
{
    const element_job *job = arg;
    dti_add(job->dtype, dti_at(job->dtype, job->dst, lo), dti_at(job->dtype, job->src, lo),
            hi - lo);
}

static void cast_piece(void *arg, int64_t lo, int64_t hi)
{
    const element_job *job = arg;
    dti_cast(job->dtype, dti_at(job->dtype, job->dst, lo), job->from,
             dti_at(job->from, job->src, lo), hi - lo);
}

/* Run a piece function over all of dst; src may be NULL. Nothing happens where there is no data. */
static void for_elements(dt_array *dst, const dt_array *src, double value, dt_range_body *piece)
{
    element_job job = {.dtype = dst->dtype, .dst = dt_array_data(dst), .value = value};
    if (job.dst == NULL)
        return;
    if (src != NULL) {
        assert(dt_array_count(src) == dt_array_count(dst));
        job.from = src->dtype;
        job.src = dt_array_data(src);
    }
    dt_parallel_range(dt_array_count(dst), 1, piece, &job);
}

void dt_array_zero(dt_array *a)
{
    if (dti_elsewhere(a)) {
        dti_elsewhere(a)->zero(dt_array_data(a), dt_array_bytes(a));
        return;
    }
    for_elements(a, NULL, 0, zero_piece);
}

void dt_array_fill(dt_array *a, double value)
{
    if (dti_elsewhere(a)) {
        dti_elsewhere(a)->fill(a->dtype, dt_array_data(a), dt_array_count(a), value);
        return;
    }
    for_elements(a, NULL, value, fill_piece);
}

void dt_array_scale(dt_array *a, double factor)
{
    assert(dt_dtype_is_float(a->dtype));
    if (dti_elsewhere(a))
        dti_elsewhere(a)->scale(a->dtype, dt_array_data(a), dt_array_count(a), factor);
    else
        for_elements(a, NULL, factor, scale_piece);
}

void dt_array_add_into(dt_array *dst, const dt_array *src)
{
    assert(dst->dtype == src->dtype && dt_dtype_is_float(dst->dtype));
    if (dti_elsewhere(dst))
        dti_elsewhere(dst)->add(dst->dtype, dt_array_data(dst), dt_array_data(src),
                                dt_array_count(dst));
    else
        for_elements(dst, src, 0, add_piece);
}

void dt_array_cast(dt_array *dst, const dt_array *src)
{
    if (dt_array_data(dst) == NULL) /* on meta */
        return;
    if (dti_elsewhere(dst) || dti_elsewhere(src))
        dti_cast_elsewhere(dst, src);
    else
        for_elements(dst, src, 0, cast_piece);
}

void dt_array_copy(dt_array *dst, const dt_array *src)
{
    assert(dst->dtype == src->dtype && dt_array_count(dst) == dt_array_count(src));
    void *to = dt_array_data(dst);
    const void *from = dt_array_data(src);
    if (to == NULL || to == from)
        return;
    if (dti_elsewhere(dst) || dti_elsewhere(src))
        dti_copy_elsewhere(dst, src);
    else
        memcpy(to, from, dt_array_bytes(dst));
}

/* Elements between neighbours in each dim, and the element at `at`. */
static int64_t block_strides(const dt_array *a, const int64_t at[], int64_t stride[DT_MAX_DIMS])
{
    int64_t first = 0;
    for (int d = 0; d < a->shape.ndim; d++) {
        stride[d] = dt_shape_inner(a->shape, d);
        first += at[d] * stride[d];
    }
    return first;
}

void dt_array_copy_block(dt_array *dst, const int64_t dst_at[], const dt_array *src,
                         const int64_t src_at[], dt_shape extent)
{
    const int ndim = extent.ndim;
    assert(dst->dtype == src->dtype && dst->shape.ndim == ndim && src->shape.ndim == ndim);
    char *to = dt_array_data(dst);
    const char *from = dt_array_data(src);
    if (dt_shape_count(extent) == 0 || to == NULL)
        return;
    const int64_t size = (int64_t)dt_dtype_size(dst->dtype);
    dti_strided_block b = {.elem_bytes = size, .ndim = ndim};
    memcpy(b.extent, extent.dim, sizeof b.extent);
    b.dst = to + size * block_strides(dst, dst_at, b.dst_stride);
    b.src = from + size * block_strides(src, src_at, b.src_stride);
    for (int d = 0; d < ndim; d++)
        assert(extent.dim[d] <= dst->shape.dim[d] && extent.dim[d] <= src->shape.dim[d]);
    if (dti_elsewhere(dst) || dti_elsewhere(src))
        dti_block_elsewhere(&b, dti_elsewhere(dst), dti_elsewhere(src));
    else
        dti_copy_block(&b);
}

static void reduce_elsewhere(dt_array *dst, int n, const dt_array *const *src, dt_reduce op)
{
    enum { ONCE = 64 }; /* the order of additions stays: what came before is the first term */
    const void *term[ONCE];
    int held = 0;
    for (int k = 0; k < n; k++) {
        term[held++] = dt_array_data(src[k]);
        if (held < ONCE && k + 1 < n)
            continue;
        dti_elsewhere(dst)->reduce(dst->dtype, dt_array_data(dst), held, term, dt_array_count(dst),
                                   op);
        term[0] = dt_array_data(dst);
        held = 1;
    }
}

void dt_array_reduce(dt_array *dst, int n, const dt_array *const *src, dt_reduce op)
{
    assert(n > 0);
    void *to = dt_array_data(dst);
    if (to == NULL)
        return;
    const int64_t count = dt_array_count(dst);
    for (int k = 0; k < n; k++)
        assert(src[k]->dtype == dst->dtype && dt_array_count(src[k]) == count);
    if (dti_elsewhere(dst)) {
        reduce_elsewhere(dst, n, src, op);
        return;
    }
    dti_reduce(dst->dtype, to, n, src, count, op);
}
