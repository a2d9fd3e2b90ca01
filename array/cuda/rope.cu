/* array/cuda/rope.cu - rotary positions without a table: a thread computes the angles of a pack of
 * pairs at one position, in f64 but for the sine and cosine of f32 data, and turns that pack in
 * several heads. */
#include "array/cuda/rows.h"

#include <math.h>

namespace {
using namespace gpu;

constexpr int HEADS_LEAST = 8;      /* that share a thread's angles, where there are so many */
constexpr int THREADS = 132 * 1024; /* that keep an H200 busy */
constexpr double TURN = 6.28318530717958647692;

struct frequencies {
    double log2_theta, factor, low, high, original;
    int64_t dim;

    /* As in array/kernels_embedding.c. */
    __device__ double of(int64_t i) const
    {
        const double f = exp2(-2.0 * (double)i / (double)dim * log2_theta);
        double keep = 0;
        if (factor == 0)
            return f;
        if (high > low)
            keep = (original * f / TURN - low) / (high - low);
        keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
        return keep * f + (1 - keep) * f / factor;
    }
};

__device__ inline void turn_by(double angle, float *sine, float *cosine)
{
    const double turns = angle * (1 / TURN);
    sincospif((float)(2 * (turns - rint(turns))), sine, cosine);
}
__device__ inline void turn_by(double angle, double *sine, double *cosine)
{
    sincos(angle, sine, cosine);
}

/* x [outer, inner, seq, dim], by steps in elements; positions [npositions], which is outer * seq or
 * seq, or NULL. */
struct rope_data {
    int64_t outer, inner, seq, heads; /* heads: of inner, a thread's */
    int64_t head_step, seq_step, npositions;
    bool inverse;
    frequencies frequency;
    const int32_t *positions;
    int64_t first;
};

template <class S, int N>
__global__ void __launch_bounds__(BLOCK)
    rope(rope_data a, const S *__restrict__ x, S *__restrict__ y)
{
    using R = real<S>;
    const int64_t half = a.frequency.dim / 2, packs = half / N, thread = thread_index();
    const int64_t row = thread / packs, i = thread % packs * N; /* row: of positions */
    if (row >= a.outer * a.seq)
        return;
    const double position =
        a.positions ? a.positions[row % a.npositions] : (double)(a.first + row % a.seq);
    R sine[N], cosine[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        turn_by(position * a.frequency.of(i + j), &sine[j], &cosine[j]);
        sine[j] = a.inverse ? -sine[j] : sine[j];
    }
    const int64_t head = (int64_t)blockIdx.y * a.heads;
    const int64_t last = head + a.heads < a.inner ? head + a.heads : a.inner;
    int64_t at = row / a.seq * a.inner * a.seq * 2 * half + head * a.head_step +
                 row % a.seq * a.seq_step + i;
#pragma unroll 4
    for (int64_t h = head; h < last; h++, at += a.head_step) {
        R u[N], v[N];
        load_real<N>(x + at, u);
        load_real<N>(x + at + half, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const R left = u[j];
            u[j] = left * cosine[j] - v[j] * sine[j];
            v[j] = v[j] * cosine[j] + left * sine[j];
        }
        store_real(y + at, u);
        store_real(y + at + half, v);
    }
}

template <class S> void rotate(rope_data a, const S *x, S *y)
{
    constexpr int PACK = PER_16<S>;
    const int64_t half = a.frequency.dim / 2;
    const auto go = [&](auto n) {
        constexpr int N = decltype(n)::value;
        const int64_t threads = a.outer * a.seq * (half / N);
        int64_t parts = (THREADS + threads - 1) / threads;
        const int64_t most = (a.inner + HEADS_LEAST - 1) / HEADS_LEAST;
        parts = parts > most ? most : parts;
        a.heads = (a.inner + parts - 1) / parts;
        GPU_LAUNCH((rope<S, N>), dim3(blocks(threads, BLOCK), blocks(a.inner, a.heads)), BLOCK, 0,
                   dti_gpu_stream(), a, x, y);
    };
    if (half % PACK == 0 && fits<PACK>(x, (const S *)y))
        go(size<PACK>());
    else
        go(size<1>());
}
} // namespace

void dti_cuda_rope(const dt_rope_args *a, bool inverse, const void *x, void *y)
{
    const dt_rope_options *o = &a->rope;
    if (a->batch <= 0 || a->heads <= 0 || a->seq <= 0 || a->dim < 2)
        return;
    rope_data d = {};
    d.outer = a->batched || o->bshd ? a->batch : 1;
    d.inner = a->batched || o->bshd ? a->heads : a->batch * a->heads;
    d.seq = a->seq;
    d.head_step = o->bshd ? a->dim : a->seq * a->dim;
    d.seq_step = o->bshd ? a->heads * a->dim : a->dim;
    d.npositions = a->batched ? a->batch * a->seq : a->seq;
    d.inverse = inverse;
    d.frequency = {log2(o->theta),        o->factor, o->low_freq_factor, o->high_freq_factor,
                   o->original_positions, a->dim};
    d.positions = a->positions;
    d.first = a->first;
    for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        rotate(d, (const S *)x, (S *)y);
    });
}
