/* array/parallel.c - the one place where own kernels use threads (OpenMP).
 *
 * The thread sanitizer does not see inside OpenMP's runtime, so the fork and join are told to it by
 * hand. */
#include "array/dt_kernels.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define TSAN_ACQUIRE(address) __tsan_acquire(address)
#define TSAN_RELEASE(address) __tsan_release(address)
#else
#define TSAN_ACQUIRE(address) ((void)(address))
#define TSAN_RELEASE(address) ((void)(address))
#endif

typedef struct range_job {
    dt_range_body *body;
    void *arg;
    int64_t n, piece;
    char forked, joined; /* addresses for the sanitizer */
} range_job;

#ifdef _OPENMP

void dt_compute_threads_set(int n)
{
    omp_set_num_threads(n < 1 ? 1 : n);
}

int dt_compute_threads_get(void)
{
    return omp_get_max_threads();
}

static __attribute__((noinline)) void run_piece(range_job *job, int64_t index)
{
    TSAN_ACQUIRE(&job->forked);
    const int64_t lo = index * job->piece;
    const int64_t hi = lo + job->piece < job->n ? lo + job->piece : job->n;
    if (lo < hi)
        job->body(job->arg, lo, hi);
    TSAN_RELEASE(&job->joined);
}

/* OpenMP hands `job` over through this frame, unseen: the frame is not watched, what it points to
 * is. */
__attribute__((no_sanitize_thread)) static void run_pieces(range_job *job, int npieces)
{
    TSAN_RELEASE(&job->forked);
#pragma omp parallel for num_threads(npieces) schedule(static, 1) firstprivate(job)
    for (int i = 0; i < npieces; i++)
        run_piece(job, i);
    TSAN_ACQUIRE(&job->joined);
}

#else

void dt_compute_threads_set(int n)
{
    (void)n;
}

int dt_compute_threads_get(void)
{
    return 1;
}

static void run_pieces(range_job *job, int npieces)
{
    (void)npieces;
    job->body(job->arg, 0, job->n);
}

#endif

void dt_parallel_range(int64_t n, int64_t work_per_index, dt_range_body *body, void *arg)
{
    if (n <= 0)
        return;
    const int64_t work = work_per_index > 0 ? work_per_index : 1;
    const int64_t threads = n >= DT_PARALLEL_MIN / work ? dt_compute_threads_get() : 1;
    const int64_t npieces = threads < n ? threads : n;
    if (npieces <= 1) {
        body(arg, 0, n);
        return;
    }
    /* Whole cache lines a piece where there is enough to share. */
    const int64_t even = (n + npieces - 1) / npieces;
    const int64_t piece = even >= 1024 ? (even + 63) / 64 * 64 : even;
    range_job job = {.body = body, .arg = arg, .n = n, .piece = piece};
    run_pieces(&job, (int)npieces);
}
