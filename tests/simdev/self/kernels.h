/* tests/simdev/self/kernels.h - the kernels that the simulated device is tested with, in C. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
/* y[i] = a x[i] + y[i] */
void k_axpy(float *y, const float *x, float a, int n, cudaStream_t s);
/* y[row] = the sum of x[row, 0 .. n): shuffles, then shared memory; `dynamic`: of that kind */
void k_row_sum(float *y, const float *x, int rows, int n, int threads, int dynamic, cudaStream_t s);
/* out[0]: how many of the n threads have an odd index, by ballots; [1]: by a barrier's count; [2]:
 * atomically; [3]: by blocks of threads in three dims */
void k_count_odd(unsigned *out, int n, cudaStream_t s);
/* The transpose of x [n, n] by tiles, of any type's bits of 2 bytes. */
void k_transpose(uint16_t *y, const uint16_t *x, int n, cudaStream_t s);
/* out[i] = i + i % 8 within each block, by way of an array of the thread's own */
void k_own_arrays(int *out, int blocks, int threads, cudaStream_t s);
/* out[i] = what is in the i-th float of static and dynamic shared memory before it is written */
void k_fresh_shared(float *out, cudaStream_t s);
#ifdef __cplusplus
}
#endif
