/* tests/simdev/nccl_move.cc - the bytes of collectives. Sums go round the ring: the part of rank r
 * is added from rank r + 1 on, 16 bits in f32 with one rounding. */
#include "nccl_internal.h"

#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

size_t sim_nccl_bytes(ncclDataType_t type)
{
    switch (static_cast<int>(type)) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
    }
}

size_t sim_call_reads(const SimCall &c)
{
    size_t parts = c.kind == SIM_REDUCE_SCATTER ? static_cast<size_t>(c.comm->size) : 1;
    return c.send ? c.count * parts * sim_nccl_bytes(c.type) : 0;
}

size_t sim_call_writes(const SimCall &c)
{
    size_t parts = c.kind == SIM_ALL_GATHER ? static_cast<size_t>(c.comm->size) : 1;
    return c.recv ? c.count * parts * sim_nccl_bytes(c.type) : 0;
}

/* ---- sums ---- */

/* What a type is added in. */
template <class T> struct Wide {
    using type = T;
};
template <> struct Wide<__half> {
    using type = float;
};
template <> struct Wide<__nv_bfloat16> {
    using type = float;
};

template <class T> static typename Wide<T>::type widen(T x)
{
    if constexpr (std::is_same_v<T, __half>)
        return __half2float(x);
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __bfloat162float(x);
    else
        return x;
}

template <class T> static T narrow(typename Wide<T>::type x)
{
    if constexpr (std::is_same_v<T, __half>)
        return __float2half(x);
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16(x);
    else
        return x;
}

template <class V> static V combine(ncclRedOp_t op, V a, V b)
{
    switch (op) {
    case ncclSum:
    case ncclAvg: return static_cast<V>(a + b);
    case ncclProd: return static_cast<V>(a * b);
    case ncclMax: return a > b ? a : b;
    case ncclMin: return a < b ? a : b;
    default: sim_fail("NCCL's reduction %d is not simulated", op);
    }
}

template <class T>
static void reduce(const std::vector<SimCall *> &calls, size_t at, size_t count, size_t first,
                   char *out)
{
    size_t ranks = calls.size();
    ncclRedOp_t op = calls[0]->op;
    for (size_t i = 0; i < count; i++) {
        auto value = [&](size_t r) {
            return widen(static_cast<const T *>(calls[(first + r) % ranks]->send)[at + i]);
        };
        auto sum = value(0);
        for (size_t r = 1; r < ranks; r++)
            sum = combine(op, sum, value(r));
        if (op == ncclAvg)
            sum = static_cast<decltype(sum)>(sum / static_cast<decltype(sum)>(ranks));
        reinterpret_cast<T *>(out)[i] = narrow<T>(sum);
    }
}

/* Elements [at, at + count) of all ranks' `send` into `out`. */
static void reduce_any(const std::vector<SimCall *> &calls, size_t at, size_t count, size_t first,
                       char *out)
{
    switch (static_cast<int>(calls[0]->type)) {
    case ncclInt8: return reduce<int8_t>(calls, at, count, first, out);
    case ncclUint8: return reduce<uint8_t>(calls, at, count, first, out);
    case ncclInt32: return reduce<int32_t>(calls, at, count, first, out);
    case ncclUint32: return reduce<uint32_t>(calls, at, count, first, out);
    case ncclInt64: return reduce<int64_t>(calls, at, count, first, out);
    case ncclUint64: return reduce<uint64_t>(calls, at, count, first, out);
    case ncclFloat16: return reduce<__half>(calls, at, count, first, out);
    case ncclBfloat16: return reduce<__nv_bfloat16>(calls, at, count, first, out);
    case ncclFloat32: return reduce<float>(calls, at, count, first, out);
    default: return reduce<double>(calls, at, count, first, out);
    }
}

/* ---- moving ---- */

static char *at(void *p, size_t bytes)
{
    return static_cast<char *>(p) + bytes;
}

static void all_gather(const std::vector<SimCall *> &calls)
{
    size_t bytes = sim_call_reads(*calls[0]);
    for (SimCall *to : calls)
        for (size_t r = 0; r < calls.size(); r++)
            memmove(at(to->recv, r * bytes), calls[r]->send, bytes);
}

static void reduce_scatter(const std::vector<SimCall *> &calls)
{
    size_t count = calls[0]->count;
    for (size_t r = 0; r < calls.size(); r++)
        reduce_any(calls, r * count, count, r + 1, static_cast<char *>(calls[r]->recv));
}

static void all_reduce(const std::vector<SimCall *> &calls)
{
    size_t count = calls[0]->count, ranks = calls.size(), part = (count + ranks - 1) / ranks;
    size_t element = sim_nccl_bytes(calls[0]->type);
    std::vector<char> sum(count * element);
    for (size_t r = 0, i = 0; i < count; r++, i += part)
        reduce_any(calls, i, std::min(part, count - i), r + 1, &sum[i * element]);
    for (SimCall *to : calls)
        memcpy(to->recv, sum.data(), sum.size());
}

static void move(const std::vector<SimCall *> &calls)
{
    switch (calls[0]->kind) {
    case SIM_ALL_GATHER: return all_gather(calls);
    case SIM_REDUCE_SCATTER: return reduce_scatter(calls);
    case SIM_ALL_REDUCE: return all_reduce(calls);
    case SIM_BROADCAST:
        for (SimCall *to : calls)
            memmove(to->recv, calls[static_cast<size_t>(calls[0]->peer)]->send,
                    sim_call_writes(*to));
        return;
    default: memmove(calls[1]->recv, calls[0]->send, sim_call_reads(*calls[0]));
    }
}

/* To the thread sanitizer every rank reads, meets the others, and writes, on its own stream. */
void sim_nccl_move(const std::vector<SimCall *> &calls)
{
    std::unique_ptr<char> token = std::make_unique<char>();
    for (SimCall *c : calls)
        sim_as_stream(c->comm->gangs.front()->stream, [&] {
            sim_touch(c->send, sim_call_reads(*c), false);
            sim_release(token.get());
        });
    for (SimCall *c : calls)
        sim_as_stream(c->comm->gangs.front()->stream, [&] {
            sim_acquire(token.get());
            sim_touch(c->recv, sim_call_writes(*c), true);
        });
    move(calls);
    for (SimCall *c : calls)
        c->done = true;
}
