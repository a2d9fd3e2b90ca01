/* tests/simdev/self/fault_memory.c - programs that use memory and launches wrongly. */
#include "device_test.h"
#include "faults.h"

#include <string.h>

static cudaStream_t s;
static int *x; /* 64 elements on device 0 */
static int host[64];

static void write_past(void)
{
    k_past(0, 64, x, s);
    ck_cuda(cudaFree(x));
}

static void write_before(void)
{
    k_fault("write_before", 1, x, s);
    ck_cuda(cudaDeviceSynchronize());
}

static void misaligned(void)
{
    k_fault("misaligned", 1, x, s);
    ck_cuda(cudaDeviceSynchronize());
}

static void static_shared_past(void)
{
    k_past(1, 64, x, s);
    ck_cuda(cudaStreamSynchronize(s));
}

static void dynamic_shared_past(void)
{
    k_past(2, 64, x, s);
    ck_cuda(cudaStreamSynchronize(s));
}

static void host_reads(void)
{
    ck_cuda(cudaMemsetAsync(x, 0, sizeof host, s));
    ck_cuda(cudaStreamSynchronize(s));
    ck_assert_int_eq(x[3], 0);
}

static void host_pointer(void)
{
    k_fault("fine", 1, host, s);
}

static void freed_pointer(void)
{
    ck_cuda(cudaFree(x));
    k_fault("fine", 1, x, s);
}

static void given_block(void)
{
    sim_block_given(x + 32, 32 * sizeof(int), s);
    k_fault("fine", 1, x, s);
    ck_cuda(cudaStreamSynchronize(s));
}

/* Memory that another stream may still use: nothing orders the two. */
static void taken_block(void)
{
    k_fault("fine", 1, x, s);
    sim_block_taken(x, sizeof host, 0, new_stream());
    ck_cuda(cudaDeviceSynchronize());
}

static void free_twice(void)
{
    ck_cuda(cudaFree(x));
    ck_cuda(cudaFree(x));
}

static void copy_kind(void)
{
    ck_cuda(cudaMemcpyAsync(x, host, sizeof host, cudaMemcpyDeviceToHost, s));
}

static void copy_of_host_kind(void)
{
    ck_cuda(cudaMemcpyAsync(host, x, sizeof host, cudaMemcpyHostToHost, s));
}

static void copy_range(void)
{
    ck_cuda(cudaMemcpyAsync(host, x + 1, sizeof host, cudaMemcpyDeviceToHost, s));
}

static void fill_range(void)
{
    ck_cuda(cudaMemsetAsync(x, 0, sizeof host + 1, s));
}

static void other_device(void)
{
    ck_cuda(cudaSetDevice(1));
    k_fault("fine", 1, x, new_stream());
}

static void no_threads(void)
{
    k_threads(1, 0, x, s);
}

static void too_many_threads(void)
{
    k_threads(1, 1025, x, s);
}

static void no_blocks(void)
{
    k_threads(0, 64, x, s);
}

static void no_dynamic_shared(void)
{
    k_much_shared(0, x, s);
    ck_cuda(cudaStreamSynchronize(s));
}

static void dynamic_shared_limit(void)
{
    k_much_shared(49153, x, s);
}

/* 36000 + 16384 bytes need the larger limit, which counts both kinds. */
static void both_shared_limit(void)
{
    k_much_shared(16384, x, s);
    ck_cuda(cudaStreamSynchronize(s));
}

static void both_shared_at_most(void)
{
    k_shared_limit(227 * 1024);
    k_much_shared(227 * 1024, x, s);
    ck_cuda(cudaStreamSynchronize(s));
}

#define FAULTS(X)           \
    X(write_past)           \
    X(write_before)         \
    X(misaligned)           \
    X(static_shared_past)   \
    X(dynamic_shared_past)  \
    X(host_reads)           \
    X(host_pointer)         \
    X(freed_pointer)        \
    X(given_block)          \
    X(taken_block)          \
    X(free_twice)           \
    X(copy_kind)            \
    X(copy_of_host_kind)    \
    X(copy_range)           \
    X(fill_range)           \
    X(other_device)         \
    X(no_threads)           \
    X(too_many_threads)     \
    X(no_blocks)            \
    X(no_dynamic_shared)    \
    X(dynamic_shared_limit) \
    X(both_shared_limit)    \
    X(both_shared_at_most)

bool fault_of_memory(const char *name)
{
    s = new_stream();
    x = device_array(sizeof host);
#define X(fault)                 \
    if (!strcmp(name, #fault)) { \
        fault();                 \
        return true;             \
    }
    FAULTS(X)
#undef X
    int *out = device_array(128 * sizeof *out);
#define X(fault)                           \
    if (!strcmp(name, #fault)) {           \
        k_fault(name, 1, out, s);          \
        ck_cuda(cudaStreamSynchronize(s)); \
        return true;                       \
    }
    FAULT_KERNELS(X)
#undef X
    return false;
}
