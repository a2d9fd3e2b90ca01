/* comm/launch.c - ranks as threads of this process: start them, wait for all, report the first
 * cause. */
#include "comm/nccl_internal.h"

#include "array/dt_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STACK_BYTES = 32 << 20, TRACE_BYTES = 2000 };

typedef struct rank_thread {
    pthread_t thread;
    bool started;
    dt_world *world;
    dt_rank_body body;
    void *arg;
    int compute_threads;
    dt_status status;
    char trace[TRACE_BYTES];
} rank_thread;

static void *run_rank(void *arg)
{
    rank_thread *t = arg;
    dt_error_context(t->world->rank, t->world->size, NULL);
    dt_compute_threads_set(t->compute_threads);
    t->status = t->body(t->world, t->arg);
    if (t->status != DT_OK) {
        (void)snprintf(t->trace, sizeof t->trace, "%s", dt_error_trace());
        dti_break(t->world, t->trace);
    }
    for (dt_comm *c = t->world->comms; c; c = c->next)
        dti_nccl_close(c); /* by all ranks at once, and by the thread that has the device */
    return NULL;
}

/* The cores are shared out unless the user has said how many threads a rank should have. */
static int threads_of_a_rank(int nranks)
{
    const char *set = getenv("OMP_NUM_THREADS");
    const long wanted = set ? strtol(set, NULL, 10) : sysconf(_SC_NPROCESSORS_ONLN) / nranks;
    return wanted < 1 ? 1 : (int)wanted;
}

static dt_status create_ranks(rank_thread *t, int nranks, const dt_world_options *options,
                              dti_group *group)
{
    for (int r = 0; r < nranks; r++) {
        DT_TRY(dti_world_new(options, DT_BACKEND_THREADS, &t[r].world));
        dti_threads_open(t[r].world, group, r, nranks);
        DT_TRY(dti_switches_read(t[r].world));
        DT_TRY(dti_world_ready(t[r].world));
    }
    return DT_OK;
}

static dt_status start_ranks(rank_thread *t, int nranks, dt_rank_body body, void *arg)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    dt_status st = DT_OK;
    for (int r = 0; r < nranks && st == DT_OK; r++) {
        t[r].body = body;
        t[r].arg = arg;
        t[r].compute_threads = threads_of_a_rank(nranks);
        const int error = pthread_create(&t[r].thread, &attr, run_rank, &t[r]);
        t[r].started = error == 0;
        if (error != 0) {
            st = DT_ERROR(DT_ERR_NOMEM, "cannot start the thread of rank %d: %s", r,
                          strerror(error));
            dti_break(t[r].world, dt_error_trace());
        }
    }
    pthread_attr_destroy(&attr);
    return st;
}

/* The lowest rank that failed by itself; failing that, the lowest that failed because of another.
 * */
static const rank_thread *find_cause(const rank_thread *t, int nranks)
{
    const rank_thread *found = NULL;
    for (int r = 0; r < nranks; r++) {
        if (t[r].status == DT_OK)
            continue;
        const bool secondary =
            atomic_load(&t[r].world->saw_peer_fail) && t[r].status == DT_ERR_COMM;
        if (!secondary)
            return &t[r];
        if (!found)
            found = &t[r];
    }
    return found;
}

dt_status dt_world_run_threads(int nranks, const dt_world_options *options, dt_rank_body body,
                               void *arg)
{
    DT_REQUIRE(nranks >= 1 && nranks <= 1024, DT_ERR_ARG, "nranks=%d must be 1..1024", nranks);
    dti_group *group = NULL;
    rank_thread *t = calloc((size_t)nranks, sizeof *t);
    DT_REQUIRE(t, DT_ERR_NOMEM, "%d ranks", nranks);
    dt_status st = dti_group_create(nranks, &group);
    if (st == DT_OK)
        st = create_ranks(t, nranks, options, group);
    if (st == DT_OK)
        st = start_ranks(t, nranks, body, arg);
    for (int r = 0; r < nranks; r++)
        if (t[r].started)
            pthread_join(t[r].thread, NULL);
    const rank_thread *cause = st == DT_OK ? find_cause(t, nranks) : NULL;
    if (cause)
        st = dt_error_relay(cause->status, cause->world->rank, cause->trace);
    for (int r = 0; r < nranks; r++)
        if (t[r].world)
            dt_world_destroy(&t[r].world);
    if (group)
        dti_group_destroy(&group);
    free(t);
    return st;
}
