/* array/cuda/mma_sim.h - see array/cuda/mma_tile.h: the instructions on the simulated device. */
#pragma once

namespace gpu {
/* What the lanes of a warp give each other for one mma, two in turn: a fast lane may be at the next
 * one while slow ones still read. */
struct mma_exchange {
    float a[32][8], b[32][4];
};

/* The thread sanitizer need not see it: the simulator itself hands the numbers on. */
template <class S>
__attribute__((no_sanitize("thread"))) inline void widen_pair(uint32_t pair, float *to)
{
    S both[2];
    memcpy((void *)both, &pair, sizeof pair);
    to[0] = to_real(both[0]);
    to[1] = to_real(both[1]);
}

template <class S>
__attribute__((no_sanitize("thread"))) inline void mma(frag_c &c, const frag_a &a, const frag_b &b)
{
    static mma_exchange exchange[32][2];
    static unsigned turn[32][32];
    const int lane = sim_lane(), warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    mma_exchange &x = exchange[warp][turn[warp][lane]++ % 2];
    for (int i = 0; i < 4; i++)
        widen_pair<S>(a.r[i], &x.a[lane][2 * i]);
    for (int i = 0; i < 2; i++)
        widen_pair<S>(b.r[i], &x.b[lane][2 * i]);
    (void)sim_warp_rv(ALL_LANES, nullptr, 100, __FILE__, __LINE__);
    for (int q = 0; q < 4; q++) { /* of the inner 16: 2q, 2q + 1, 2q + 8, 2q + 9 */
        const float *row = x.a[g * 4 + q];
        for (int j = 0; j < 2; j++) {
            const float *column = x.b[(2 * t + j) * 4 + q];
            c.r[j] +=
                row[0] * column[0] + row[1] * column[1] + row[4] * column[2] + row[5] * column[3];
            c.r[2 + j] +=
                row[2] * column[0] + row[3] * column[1] + row[6] * column[2] + row[7] * column[3];
        }
    }
}

/* Words of shared memory, by plain loads and stores: under the options that MPI needs the thread
 * sanitizer does not look into memcpy. */
typedef uint32_t __attribute__((may_alias)) any_word;
typedef uint16_t __attribute__((may_alias)) any_half;

inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    const uint64_t mine = reinterpret_cast<uint64_t>(row);
    const uint64_t *rows = sim_warp_rv(ALL_LANES, &mine, 101, __FILE__, __LINE__);
    const int lane = sim_lane();
    for (int i = 0; i < 4; i++)
        r[i] = reinterpret_cast<const any_word *>(rows[i * 8 + lane / 4])[lane % 4];
}
inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    const uint64_t mine = reinterpret_cast<uint64_t>(row);
    const uint64_t *rows = sim_warp_rv(ALL_LANES, &mine, 102, __FILE__, __LINE__);
    const int lane = sim_lane();
    for (int i = 0; i < 4; i++) {
        const uint64_t *two = rows + i * 8 + lane % 4 * 2;
        const uint32_t low = reinterpret_cast<const any_half *>(two[0])[lane / 4],
                       high = reinterpret_cast<const any_half *>(two[1])[lane / 4];
        r[i] = low | high << 16;
    }
}

inline float exp2_fast(float x)
{
    return exp2f(x);
}

/* As late as is legal: nothing is copied before wait(). */
class copies {
    enum { MOST = 128 };
    struct copy {
        any_word *to;
        const any_word *from; /* NULL: zeros */
        int bytes, group;
    } pending[MOST];
    int n = 0, group = 0;

    void add(void *to, const void *from, int bytes)
    {
        if (n == MOST)
            sim_fail("more than %d copies of a thread are not waited for", MOST);
        if (((uintptr_t)to | (uintptr_t)from) % (unsigned)bytes != 0)
            sim_fail("a copy of %d bytes from %p to %p is not aligned", bytes, from, to);
        pending[n++] = {static_cast<any_word *>(to), static_cast<const any_word *>(from), bytes,
                        group};
    }

  public:
    void add16(void *to, const void *from, bool there)
    {
        add(to, there ? from : nullptr, 16);
    }
    void add4(void *to, const void *from, bool there)
    {
        add(to, there ? from : nullptr, 4);
    }
    void commit()
    {
        group++;
    }
    template <int LEFT> void wait()
    {
        int kept = 0;
        for (int i = 0; i < n; i++) {
            const copy &c = pending[i];
            if (c.group >= group - LEFT)
                pending[kept++] = c;
            else
                for (int w = 0; w < c.bytes / 4; w++)
                    c.to[w] = c.from ? c.from[w] : 0;
        }
        n = kept;
    }
};
} // namespace gpu
