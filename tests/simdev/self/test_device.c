/* tests/simdev/self/test_device.c - right programs on the simulated device: kernels in three
 * orders of threads, copies, streams and events, several devices, and host threads that run each
 * other's work. */
#include "device_test.h"
#include "kernels.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

START_TEST(elementwise)
{
    enum { N = 1237 };
    float host[N], back[N];
    cudaStream_t s = new_stream();
    float *x = device_array(sizeof host), *y = device_array(sizeof host);
    for (int i = 0; i < N; i++)
        host[i] = value_at(i);
    to_device(x, host, sizeof host, s);
    to_device(y, host, sizeof host, s);
    k_axpy(y, x, 2, N, s);
    to_host(back, y, sizeof back, s);
    for (int i = 0; i < N; i++)
        ck_assert(back[i] == 3 * host[i]);
    ck_cuda(cudaFree(x));
    ck_cuda(cudaFree(y));
    ck_cuda(cudaStreamDestroy(s));
}
END_TEST

START_TEST(reductions)
{
    enum { ROWS = 5, N = 203 };
    float host[ROWS * N], back[ROWS];
    cudaStream_t s = new_stream();
    float *x = device_array(sizeof host), *y = device_array(sizeof back);
    for (int i = 0; i < ROWS * N; i++)
        host[i] = value_at(i);
    to_device(x, host, sizeof host, s);
    for (int threads = 32; threads <= 1024; threads *= 2) {
        k_row_sum(y, x, ROWS, N, threads, _i, s);
        to_host(back, y, sizeof back, s);
        for (int r = 0; r < ROWS; r++) {
            float sum = 0;
            for (int i = 0; i < N; i++)
                sum += host[r * N + i];
            ck_assert(back[r] == sum); /* multiples of 1/8: exact */
        }
    }
    ck_cuda(cudaFree(x));
    ck_cuda(cudaFree(y));
    ck_cuda(cudaStreamDestroy(s));
}
END_TEST

START_TEST(votes_and_atomics)
{
    enum { N = 1001 };
    unsigned back[4];
    cudaStream_t s = new_stream();
    unsigned *out = device_array(sizeof back);
    ck_cuda(cudaMemsetAsync(out, 0, sizeof back, s));
    k_count_odd(out, N, s);
    to_host(back, out, sizeof back, s);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(back[i], N / 2);
    ck_cuda(cudaFree(out));
    ck_cuda(cudaStreamDestroy(s));
}
END_TEST

START_TEST(tiles)
{
    enum { N = 77 };
    uint16_t host[N * N], back[N * N];
    cudaStream_t s = new_stream();
    uint16_t *x = device_array(sizeof host), *y = device_array(sizeof host);
    for (int i = 0; i < N * N; i++)
        host[i] = (uint16_t)i;
    to_device(x, host, sizeof host, s);
    k_transpose(y, x, N, s);
    to_host(back, y, sizeof back, s);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            ck_assert_uint_eq(back[i * N + j], host[j * N + i]);
    ck_cuda(cudaFree(x));
    ck_cuda(cudaFree(y));
    ck_cuda(cudaStreamDestroy(s));
}
END_TEST

/* What nobody has written is a NaN: in new memory, and in shared memory at each block's start. */
START_TEST(fresh_memory_is_poison)
{
    enum { N = 128 };
    float back[N];
    cudaStream_t s = new_stream();
    float *x = device_array(sizeof back);
    to_host(back, x, sizeof back, s);
    for (int i = 0; i < N; i++)
        ck_assert(isnan(back[i]));
    for (int again = 0; again < 3; again++) {
        k_fresh_shared(x, s);
        to_host(back, x, sizeof back, s);
        for (int i = 0; i < N; i++)
            ck_assert_msg(isnan(back[i]), "run %d, %d: %g", again, i, (double)back[i]);
    }
    sim_block_taken(x + 3, 5 * sizeof *x, 0, s);
    ck_cuda(cudaMemsetAsync(x, 0, 5 * sizeof *x, s));
    to_host(back, x, 9 * sizeof *x, s);
    for (int i = 0; i < 8; i++)
        ck_assert(i < 5 ? back[i] == 0 : isnan(back[i]));
    ck_cuda(cudaFree(x));
    ck_cuda(cudaStreamDestroy(s));
}
END_TEST

/* Two streams in turn, each waiting for the other's event: the order is as written. */
START_TEST(events)
{
    enum { N = 64, TURNS = 6 };
    float host[N], back[N];
    cudaStream_t s[2] = {new_stream(), new_stream()};
    cudaEvent_t e;
    float *x = device_array(sizeof host);
    ck_cuda(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    for (int i = 0; i < N; i++)
        host[i] = value_at(i);
    to_device(x, host, sizeof host, s[1]);
    for (int t = 0; t < TURNS; t++) {
        ck_cuda(cudaEventRecord(e, s[(t + 1) % 2]));
        ck_cuda(cudaStreamWaitEvent(s[t % 2], e, 0));
        k_axpy(x, x, 1, N, s[t % 2]);
    }
    ck_cuda(cudaEventRecord(e, s[(TURNS + 1) % 2]));
    ck_cuda(cudaEventSynchronize(e));
    ck_assert(cudaEventQuery(e) == cudaSuccess);
    to_host(back, x, sizeof back, s[0]);
    for (int i = 0; i < N; i++)
        ck_assert(back[i] == host[i] * (1 << TURNS));
    ck_cuda(cudaEventDestroy(e));
    ck_cuda(cudaFree(x));
    for (int i = 0; i < 2; i++)
        ck_cuda(cudaStreamDestroy(s[i]));
}
END_TEST

START_TEST(copies)
{
    enum { ROWS = 4, N = 5 };
    cudaStream_t s = new_stream();
    int *pinned, host[ROWS * N], back[ROWS * 2];
    int *x = device_array(sizeof host);
    ck_cuda(cudaHostAlloc((void **)&pinned, sizeof host, cudaHostAllocDefault));
    for (int i = 0; i < ROWS * N; i++)
        host[i] = pinned[i] = i;
    to_device(x, host, sizeof host, s);
    memset(host, 0, sizeof host); /* pageable memory was read at the call */
    ck_cuda(cudaMemcpy2DAsync(back, 2 * sizeof(int), x + 1, N * sizeof(int), 2 * sizeof(int), ROWS,
                              cudaMemcpyDeviceToHost, s));
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(back[r * 2 + i], r * N + 1 + i);
    ck_cuda(cudaMemcpyAsync(x, pinned, sizeof host, cudaMemcpyDefault, s));
    ck_cuda(cudaMemcpyAsync(x + N, x, N * sizeof(int), cudaMemcpyDeviceToDevice, s));
    ck_cuda(cudaMemcpyAsync(pinned, x, sizeof host, cudaMemcpyDefault, s));
    ck_cuda(cudaStreamSynchronize(s));
    ck_assert_int_eq(pinned[N + 3], 3);
    ck_cuda(cudaFree(x));
    ck_cuda(cudaFreeHost(pinned));
    ck_cuda(cudaStreamDestroy(s));
}
END_TEST

static void add_one(void *data)
{
    ++*(int *)data;
}

START_TEST(host_functions)
{
    cudaStream_t s = new_stream();
    int count = 0;
    for (int i = 0; i < 3; i++)
        ck_cuda(cudaLaunchHostFunc(s, add_one, &count));
    ck_cuda(cudaStreamSynchronize(s));
    ck_assert_int_eq(count, 3);
    while (cudaStreamQuery(s) == cudaErrorNotReady) {
    }
    ck_cuda(cudaStreamDestroy(s));
}
END_TEST

/* ---- several host threads, a device each ---- */

typedef struct ring {
    pthread_barrier_t barrier;
    cudaEvent_t event[4];
    float *x;
} ring;
typedef struct member {
    ring *ring;
    int device;
} member;

static void *run_member(void *data)
{
    enum { N = 300 };
    member *m = data;
    float host[N], back[N];
    ck_cuda(cudaSetDevice(m->device));
    cudaStream_t s = new_stream();
    float *x = device_array(sizeof host);
    for (int i = 0; i < N; i++)
        host[i] = value_at(i) + (float)m->device;
    to_device(x, host, sizeof host, s);
    ck_cuda(cudaEventCreateWithFlags(&m->ring->event[m->device], cudaEventDisableTiming));
    k_axpy(x, x, 1, N, s);
    ck_cuda(cudaEventRecord(m->ring->event[m->device], s));
    pthread_barrier_wait(&m->ring->barrier);
    /* The others' threads may be asleep at the next barrier: this one runs their work. */
    for (int i = 0; i < 4; i++)
        ck_cuda(cudaStreamWaitEvent(s, m->ring->event[i], 0));
    k_axpy(x, x, 1, N, s);
    to_host(back, x, sizeof back, s);
    pthread_barrier_wait(&m->ring->barrier);
    for (int i = 0; i < N; i++)
        ck_assert(back[i] == 4 * host[i]);
    int device;
    ck_cuda(cudaGetDevice(&device));
    ck_assert_int_eq(device, m->device);
    ck_cuda(cudaFree(x));
    ck_cuda(cudaEventDestroy(m->ring->event[m->device]));
    ck_cuda(cudaStreamDestroy(s));
    return NULL;
}

START_TEST(host_threads)
{
    ring r;
    pthread_t thread[4];
    member m[4];
    pthread_barrier_init(&r.barrier, NULL, 4);
    for (int i = 0; i < 4; i++) {
        m[i] = (member){&r, i};
        ck_assert(pthread_create(&thread[i], NULL, run_member, &m[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&r.barrier);
}
END_TEST

START_TEST(devices)
{
    int count, value;
    struct cudaDeviceProp p;
    size_t free_bytes, total;
    ck_cuda(cudaGetDeviceCount(&count));
    ck_assert_int_eq(count, 8);
    ck_cuda(cudaGetDeviceProperties(&p, 1));
    ck_assert_int_eq(p.major, 9);
    ck_cuda(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    ck_assert_int_eq(value, 227 * 1024);
    ck_cuda(cudaMemGetInfo(&free_bytes, &total));
    ck_assert(free_bytes == total);
    void *x;
    ck_assert(cudaMalloc(&x, total) == cudaErrorMemoryAllocation);
    ck_assert(cudaGetLastError() == cudaErrorMemoryAllocation);
    ck_assert(cudaGetLastError() == cudaSuccess);
    ck_assert(cudaSetDevice(8) == cudaErrorInvalidDevice);
    ck_assert_str_eq(cudaGetErrorString(cudaErrorInvalidDevice), "invalid device ordinal");
    ck_assert_uint_eq(sim_live_allocations(), 0);
    ck_cuda(cudaDeviceSynchronize());
}
END_TEST

static void forward(void)
{
    sim_set_order(0);
}

static void reverse(void)
{
    sim_set_order(1);
}

static void random_order(void)
{
    sim_set_order(2);
}

int main(void)
{
    void (*const orders[])(void) = {forward, reverse, random_order};
    Suite *suite = suite_create("simdev/device");
    for (int i = 0; i < 3; i++) {
        TCase *tc = tcase_create("orders");
        tcase_add_unchecked_fixture(tc, orders[i], forward);
        tcase_add_test(tc, elementwise);
        tcase_add_loop_test(tc, reductions, 0, 2);
        tcase_add_test(tc, votes_and_atomics);
        tcase_add_test(tc, tiles);
        tcase_add_test(tc, fresh_memory_is_poison);
        suite_add_tcase(suite, tc);
    }
    TCase *tc = tcase_create("device");
    tcase_add_test(tc, events);
    tcase_add_test(tc, copies);
    tcase_add_test(tc, host_functions);
    tcase_add_test(tc, host_threads);
    tcase_add_test(tc, devices);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
