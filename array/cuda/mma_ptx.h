/* array/cuda/mma_ptx.h - see array/cuda/mma_tile.h: the instructions, sm_80 and later. */
#pragma once

namespace gpu {
template <class S> __device__ inline void mma(frag_c &c, const frag_a &a, const frag_b &b)
{
    if constexpr (std::is_same_v<S, bf16>)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
            : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
            : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

/* Four 8 x 8 matrices, of which lane l names row l % 8 of matrix l / 8: a lane gets the pair of
 * row lane / 4 and columns 2 (lane % 4), + 1 of each, or of its transpose. */
__device__ inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* 2^x; within 2 units in the last place, 0 below 2^-126. */
__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}

/* A thread's copies from global to shared memory, done by wait() at the latest: all but those added
 * after the last `left` calls of commit(). Other threads see them after a barrier. */
struct copies {
    /* 16 bytes, or zeros; both addresses are multiples of 16. */
    __device__ void add16(void *to, const void *from, bool there)
    {
        asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(to)),
                     "l"(from), "r"(there ? 16 : 0)
                     : "memory");
    }
    __device__ void add4(void *to, const void *from, bool there)
    {
        asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(to)),
                     "l"(from), "r"(there ? 4 : 0)
                     : "memory");
    }
    __device__ void commit()
    {
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    template <int LEFT> __device__ void wait()
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
    }
};
} // namespace gpu
