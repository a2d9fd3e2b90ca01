/* tests/simdev/intrinsics.h - CUDA's device functions for host compilers: atomics, and the math and
 * memory intrinsics that the real headers leave to nvcc. Included by simdev.h. */
#pragma once

/* ---- atomics ----
 * Simulated threads take turns, so a plain read and write is atomic; the thread sanitizer, which
 * sees each as a thread of its own, must be told. */
#if defined(__SANITIZE_THREAD__)
#define SIM_REAL_ATOMICS
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIM_REAL_ATOMICS
#endif
#endif

template <class T, class F> inline T sim_atomic(T *p, F next)
{
#ifdef SIM_REAL_ATOMICS
    T before, after;
    __atomic_load(p, &before, __ATOMIC_RELAXED);
    do
        after = next(before);
    while (
        !__atomic_compare_exchange(p, &before, &after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
#else
    T before = *p;
    *p = next(before);
    return before;
#endif
}

#define SIM_ATOMIC(name, T, after)                             \
    inline T name(T *p, T v)                                   \
    {                                                          \
        return sim_atomic(p, [=](T o) { return (T)(after); }); \
    }
SIM_ATOMIC(atomicAdd, float, o + v)
SIM_ATOMIC(atomicAdd, double, o + v)
SIM_ATOMIC(atomicAdd, int, o + v)
SIM_ATOMIC(atomicAdd, unsigned, o + v)
SIM_ATOMIC(atomicAdd, unsigned long long, o + v)
SIM_ATOMIC(atomicMax, int, o > v ? o : v)
SIM_ATOMIC(atomicMax, unsigned, o > v ? o : v)
SIM_ATOMIC(atomicMax, unsigned long long, o > v ? o : v)
SIM_ATOMIC(atomicMin, int, o < v ? o : v)
SIM_ATOMIC(atomicMin, unsigned, o < v ? o : v)
SIM_ATOMIC(atomicMin, unsigned long long, o < v ? o : v)
SIM_ATOMIC(atomicOr, int, o | v)
SIM_ATOMIC(atomicOr, unsigned, o | v)
SIM_ATOMIC(atomicAnd, int, o &v)
SIM_ATOMIC(atomicAnd, unsigned, o &v)
SIM_ATOMIC(atomicInc, unsigned, o >= v ? 0u : o + 1)
#undef SIM_ATOMIC
#define SIM_ATOMIC(T)                                                    \
    inline T atomicExch(T *p, T v)                                       \
    {                                                                    \
        return sim_atomic(p, [=](T) { return v; });                      \
    }                                                                    \
    inline T atomicCAS(T *p, T compare, T v)                             \
    {                                                                    \
        return sim_atomic(p, [=](T o) { return o == compare ? v : o; }); \
    }
SIM_ATOMIC(int)
SIM_ATOMIC(unsigned)
SIM_ATOMIC(unsigned long long)
#undef SIM_ATOMIC

/* ---- math ---- */

inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
inline void sincospif(float x, float *sine, float *cosine)
{
    *sine = static_cast<float>(sin(M_PI * static_cast<double>(x)));
    *cosine = static_cast<float>(cos(M_PI * static_cast<double>(x)));
}
inline float exp10f(float x)
{
    return powf(10.0f, x);
}
/* name, its arguments, what the host computes: each is at least as exact as the device's. */
__extension__ typedef unsigned __int128 sim_uint128;
#define SIM_MATH(X)                                                                    \
    X(float, __expf, (float a), expf(a))                                               \
    X(float, __exp10f, (float a), powf(10.0f, a))                                      \
    X(float, __logf, (float a), logf(a))                                               \
    X(float, __log2f, (float a), log2f(a))                                             \
    X(float, __sinf, (float a), sinf(a))                                               \
    X(float, __cosf, (float a), cosf(a))                                               \
    X(float, __tanhf, (float a), tanhf(a))                                             \
    X(float, __powf, (float a, float b), powf(a, b))                                   \
    X(float, __fdividef, (float a, float b), a / b)                                    \
    X(float, __fdiv_rn, (float a, float b), a / b)                                     \
    X(float, __frcp_rn, (float a), 1.0f / a)                                           \
    X(float, __fsqrt_rn, (float a), sqrtf(a))                                          \
    X(float, __frsqrt_rn, (float a), 1.0f / sqrtf(a))                                  \
    X(float, __fmaf_rn, (float a, float b, float c), fmaf(a, b, c))                    \
    X(float, __fadd_rn, (float a, float b), a + b)                                     \
    X(float, __fsub_rn, (float a, float b), a - b)                                     \
    X(float, __fmul_rn, (float a, float b), a *b)                                      \
    X(double, __fma_rn, (double a, double b, double c), fma(a, b, c))                  \
    X(double, __dadd_rn, (double a, double b), a + b)                                  \
    X(double, __dsub_rn, (double a, double b), a - b)                                  \
    X(double, __dmul_rn, (double a, double b), a *b)                                   \
    X(double, __ddiv_rn, (double a, double b), a / b)                                  \
    X(double, __dsqrt_rn, (double a), sqrt(a))                                         \
    X(float, __double2float_rn, (double a), (float)a)                                  \
    X(int, __float2int_rn, (float a), (int)rintf(a))                                   \
    X(int, __float2int_rz, (float a), (int)a)                                          \
    X(float, __int2float_rn, (int a), (float)a)                                        \
    X(float, __uint2float_rn, (unsigned a), (float)a)                                  \
    X(int, __popc, (unsigned a), __builtin_popcount(a))                                \
    X(int, __popcll, (unsigned long long a), __builtin_popcountll(a))                  \
    X(int, __ffs, (int a), __builtin_ffs(a))                                           \
    X(int, __clz, (int a), a ? __builtin_clz((unsigned)a) : 32)                        \
    X(int, __clzll, (long long a), a ? __builtin_clzll((unsigned long long)a) : 64)    \
    X(unsigned, __umulhi, (unsigned a, unsigned b), (unsigned)((uint64_t)a * b >> 32)) \
    X(unsigned long long, __umul64hi, (unsigned long long a, unsigned long long b),    \
      (unsigned long long)((sim_uint128)a * b >> 64))
#define X(type, name, arguments, value) \
    inline type name arguments          \
    {                                   \
        return value;                   \
    }
SIM_MATH(X)
#undef X

/* ---- bits ---- */
template <class To, class From> inline To sim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __int_as_float(int i)
{
    return sim_bits<float>(i);
}
inline int __float_as_int(float f)
{
    return sim_bits<int>(f);
}
inline unsigned __float_as_uint(float f)
{
    return sim_bits<unsigned>(f);
}
inline float __uint_as_float(unsigned u)
{
    return sim_bits<float>(u);
}
inline long long __double_as_longlong(double d)
{
    return sim_bits<long long>(d);
}
inline double __longlong_as_double(long long i)
{
    return sim_bits<double>(i);
}

/* ---- loads and stores that name a cache ---- */
#define SIM_LOAD(name)                           \
    template <class T> inline T name(const T *p) \
    {                                            \
        return *p;                               \
    }
SIM_LOAD(__ldg)
SIM_LOAD(__ldcs)
SIM_LOAD(__ldca)
SIM_LOAD(__ldcg)
SIM_LOAD(__ldlu)
#undef SIM_LOAD
#define SIM_STORE(name)                                   \
    template <class T> inline void name(T *p, const T &v) \
    {                                                     \
        *p = v;                                           \
    }
SIM_STORE(__stcs)
SIM_STORE(__stcg)
SIM_STORE(__stwb)
#undef SIM_STORE

template <class A, class B> inline std::common_type_t<A, B> max(A a, B b)
{
    using C = std::common_type_t<A, B>;
    return static_cast<C>(a) > static_cast<C>(b) ? static_cast<C>(a) : static_cast<C>(b);
}
template <class A, class B> inline std::common_type_t<A, B> min(A a, B b)
{
    using C = std::common_type_t<A, B>;
    return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(a) : static_cast<C>(b);
}
