/* bench/gpu_bench.h - what the parts of bench/gpu share. */
#pragma once

#include "array/dt_array.h"

typedef struct gpu_bench {
    bool tiny;          /* sizes for the simulated device: runs, measures nothing */
    double peak_flops;  /* per second, of the device's data sheet */
    double bytes_per_s; /* copies, read plus written; 0: not measured yet */
    dt_heap *heap;      /* of the device, for kernels alone; NULL while models train */
} gpu_bench;

/* Seconds of one run, the host's clock around many that follow each other on the stream; best of
 * three. */
DT_NODISCARD dt_status gpu_time(const gpu_bench *b, dt_status (*run)(void *arg), void *arg,
                                double *seconds_out);
/* `bytes` on the device, of bf16 numbers from a normal distribution, or zeros; released with the
 * heap's other room by gpu_release. */
DT_NODISCARD dt_status gpu_room(const gpu_bench *b, int64_t bytes, double std,
                                dt_array *borrowed_out);
void gpu_release(void);

DT_NODISCARD dt_status gpu_bench_kernels(gpu_bench *b);   /* against copies */
DT_NODISCARD dt_status gpu_bench_attention(gpu_bench *b); /* TFLOP/s */
DT_NODISCARD dt_status gpu_bench_products(gpu_bench *b);  /* against cuBLASLt's best */
