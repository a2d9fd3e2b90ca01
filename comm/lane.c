/* comm/lane.c - one FIFO a channel, and who executes it.
 *
 * Whoever holds `running` executes the head of the queue, so calls of a lane run one at a time, in
 * host program order, on
 *   - the waiting thread: dt_work_wait executes queued calls up to its own. A call that is waited
 *     for at once costs no thread switch;
 *   - the lane's worker thread, which lanes 1..3 start at their first call. Lane 0 has none: its
 *     calls run when they are waited for. What should overlap with computing goes on a channel
 *     >= 1.
 * Point-to-point calls do not hold the lane: when all earlier calls have run (often at the call
 * itself) they start, and then fly until both sides have started; sends and receives of two ranks
 * may thus be issued in any order. A collective first waits for flying calls of its own
 * communicator, whose bytes it may use. A worker sleeps on `wake` when it has nothing to do. */
#include "comm/comm_internal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

static void lock(dti_lane *lane)
{
    if (lane->has_worker)
        pthread_mutex_lock(&lane->lock);
}

static void unlock(dti_lane *lane)
{
    if (lane->has_worker)
        pthread_mutex_unlock(&lane->lock);
}

static bool is_message(const dt_work *w)
{
    return w->kind == DT_CALL_SEND || w->kind == DT_CALL_RECV;
}

static int event_lane(const dt_work *w)
{
    return 1 + w->comm->channel;
}

/* With the lane's lock, as all static functions here. */
static void settle(dti_lane *lane, dt_work *w, dt_status st)
{
    if (st == DT_OK)
        dti_apply_faults(w);
    dti_event(w, "comm", DT_TRACE_END, event_lane(w));
    dti_ring_mark(w, st == DT_OK ? DTI_RING_DONE : DTI_RING_FAILED);
    w->status = st;
    w->state = DTI_DONE;
    pthread_cond_broadcast(&lane->done);
}

/* Settle a flying call if it has landed or failed. */
static void test_flight(dti_lane *lane, dt_work *w)
{
    bool landed = false;
    dt_status st = w->comm->ops->test(w, &landed);
    if (st == DT_OK && landed && w->earliest_s > 0 && dti_now() < w->earliest_s)
        return;
    if (st == DT_OK && !landed) {
        const bool broken = dti_broken(w->comm->world);
        const bool late = w->deadline_s > 0 && dti_now() > w->deadline_s;
        if ((!broken && !late) || w->comm->ops->cancel(w))
            return;
        st = broken ? dti_work_fail_peer(w)
                    : dti_work_fail(w, DT_ERR_TIMEOUT, "waited %.3g s for rank %d to %s",
                                    w->comm->world->timeout_s, w->comm->ranks[w->peer],
                                    w->kind == DT_CALL_SEND ? "receive" : "send");
    }
    dt_work **link = &lane->flying;
    while (*link != w)
        link = &(*link)->next;
    *link = w->next;
    settle(lane, w, st);
}

/* Wait until no call of this communicator flies. Its lane is ours (`running`). */
static dt_status land_flights(dti_lane *lane, dt_work *before)
{
    if (!lane->flying)
        return DT_OK;
    const double since = dti_now(), deadline = since + before->comm->world->timeout_s;
    for (;;) {
        dt_work *w = lane->flying;
        while (w && w->comm != before->comm)
            w = w->next;
        if (!w)
            return DT_OK;
        if (dti_now() > deadline)
            return dti_work_fail(before, DT_ERR_TIMEOUT,
                                 "waited %.3g s for the earlier %s #%lld '%s'",
                                 before->comm->world->timeout_s, dt_call_name(w->kind),
                                 (long long)w->sequence, w->label);
        test_flight(lane, w);
        unlock(lane);
        dti_pause(since);
        lock(lane);
    }
}

static void run_head(dti_lane *lane)
{
    dt_work *w = lane->head;
    lane->head = w->next;
    if (!lane->head)
        lane->tail = NULL;
    w->state = DTI_RUNNING;
    w->next = NULL;
    lane->running = true;
    dti_ring_mark(w, DTI_RING_RUNS);
    dti_event(w, "comm", DT_TRACE_BEGIN, event_lane(w));
    dt_status st = is_message(w) ? DT_OK : land_flights(lane, w);
    unlock(lane);
    if (st == DT_OK)
        st = is_message(w) ? w->comm->ops->start(w) : dti_work_run(w);
    lock(lane);
    lane->running = false;
    if (st == DT_OK && is_message(w)) {
        w->state = DTI_FLYING;
        w->earliest_s = w->delay_s > 0 ? dti_now() + w->delay_s : 0;
        w->next = lane->flying;
        lane->flying = w;
        pthread_cond_broadcast(&lane->done);
    } else {
        settle(lane, w, st);
    }
    pthread_cond_signal(&lane->wake);
}

static bool can_start_message(const dti_lane *lane)
{
    return lane->head && !lane->running && is_message(lane->head);
}

static void sleep_on(pthread_cond_t *cond, pthread_mutex_t *lock, double seconds)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    const double until = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + seconds;
    const struct timespec deadline = dti_timespec(until);
    (void)pthread_cond_timedwait(cond, lock, &deadline);
}

static void poll_flights(dti_lane *lane)
{
    for (dt_work *w = lane->flying, *next; w; w = next) {
        next = w->next;
        test_flight(lane, w);
    }
    sleep_on(&lane->wake, &lane->lock, 100e-6);
}

static void *work_on(void *arg)
{
    dti_lane *lane = arg;
    lock(lane);
    while (!lane->stop) {
        if (lane->head && !lane->running)
            run_head(lane);
        else if (lane->flying && lane->flying->comm->ops->polls)
            poll_flights(lane);
        else
            pthread_cond_wait(&lane->wake, &lane->lock);
    }
    unlock(lane);
    return NULL;
}

/* Signals are for the program's own threads. */
static dt_status start_worker(dti_lane *lane)
{
    sigset_t all, old;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    lane->has_worker = true; /* before the worker looks */
    const int error = pthread_create(&lane->worker, NULL, work_on, lane);
    if (error != 0)
        lane->has_worker = false;
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    DT_REQUIRE(error == 0, DT_ERR_NOMEM, "cannot start a communication worker: %s",
               strerror(error));
    return DT_OK;
}

dt_status dti_lane_issue(dt_work *w)
{
    dti_lane *lane = &w->comm->world->lane[w->comm->channel];
    if (w->comm->channel > 0 && !lane->has_worker)
        DT_TRY(start_worker(lane));
    lock(lane);
    w->state = DTI_QUEUED;
    w->next = NULL;
    if (lane->tail)
        lane->tail->next = w;
    else
        lane->head = w;
    lane->tail = w;
    if (can_start_message(lane) && lane->head == w)
        run_head(lane);
    else
        pthread_cond_signal(&lane->wake);
    unlock(lane);
    return DT_OK;
}

/* A wait never depends on a collective issued after the call it waits for; messages queued behind
 * it are started, since the peer may need them first. */
void dti_lane_wait(dt_work *w)
{
    dti_lane *lane = &w->comm->world->lane[w->comm->channel];
    double since = 0;
    int looks = 0;
    lock(lane);
    while (w->state != DTI_DONE) {
        if ((w->state == DTI_QUEUED && !lane->running) || can_start_message(lane)) {
            run_head(lane);
        } else if (w->state == DTI_FLYING) {
            test_flight(lane, w);
            if (w->state == DTI_DONE || looks++ < w->comm->world->spins)
                continue;
            since = since > 0 ? since : dti_now();
            w->deadline_s = since + w->comm->world->timeout_s;
            unlock(lane);
            dti_pause(since);
            lock(lane);
        } else {
            pthread_cond_wait(&lane->done, &lane->lock);
        }
    }
    unlock(lane);
}

bool dti_lane_done(dt_work *w)
{
    dti_lane *lane = &w->comm->world->lane[w->comm->channel];
    lock(lane);
    while (can_start_message(lane))
        run_head(lane);
    if (w->state == DTI_FLYING)
        test_flight(lane, w);
    const bool done = w->state == DTI_DONE;
    unlock(lane);
    return done;
}

void dti_lane_open(dti_lane *lane)
{
    *lane = (dti_lane){0};
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->wake, NULL);
    pthread_cond_init(&lane->done, NULL);
}

static void bury(dt_world *world, dt_work *w)
{
    while (w) {
        dt_work *next = w->next;
        w->next = world->graves;
        world->graves = w;
        w = next;
    }
}

void dti_lane_close(dt_world *world, dti_lane *lane)
{
    lock(lane);
    if (lane->head || lane->flying || lane->running)
        dti_break(world, "the world was destroyed while calls were in flight");
    lane->stop = true;
    pthread_cond_signal(&lane->wake);
    unlock(lane);
    if (lane->has_worker)
        pthread_join(lane->worker, NULL);
    bury(world, lane->head);
    for (dt_work *w = lane->flying; w; w = w->next)
        (void)w->comm->ops->cancel(w);
    bury(world, lane->flying);
    pthread_mutex_destroy(&lane->lock);
    pthread_cond_destroy(&lane->wake);
    pthread_cond_destroy(&lane->done);
}
