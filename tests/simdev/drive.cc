/* tests/simdev/drive.cc - runs the work that streams hold.
 *
 * Nothing runs when it is enqueued (but by chance, or SIMDEV_SCHED=eager): the host thread that
 * waits for something runs ops of all streams of all devices until it has come, in one of the
 * orders that streams and events allow:
 *     eager    at once
 *     random   any op that can run (SIMDEV_SEED)
 *     newest   of the stream that got work last
 *     demand   nothing but what the wait needs
 * Where nothing can run, as in a collective that other host threads have not reached, it waits for
 * them. */
#include "stream_internal.h"

#include <algorithm>
#include <cstdio>
#include <sched.h>
#include <unordered_set>

static bool is_runnable(cudaStream_t s)
{
    if (s->queue.empty() || s->busy)
        return false;
    const SimOp &op = s->queue.front().op;
    return !op.ready || op.ready();
}

void sim_as_stream(cudaStream_t stream, const std::function<void()> &body)
{
    if (!sim_tsan() || sim_fiber_current() == stream->fiber)
        return body();
    void *before = sim_fiber_current();
    sim_fiber_switch(stream->fiber);
    sim_acquire(&stream->token);
    body();
    sim_release(&stream->token);
    sim_fiber_switch(before);
}

static void run_on_host(const SimOp &op)
{
    sim_memory_close();
    sim_unlock_while([&] { op.run(); });
    sim_memory_open();
}

/* Run the head of a stream. */
static void run_head(cudaStream_t s)
{
    SimEntry &head = s->queue.front(); /* stays where it is when others are put behind it */
    bool done = true;
    if (sim_settings.verbose)
        fprintf(stderr, "simdev: device %d stream %llu: %s\n", s->device,
                static_cast<unsigned long long>(s->id), head.op.name.c_str());
    s->busy = true;
    sim_as_stream(s, [&] {
        sim_acquire(head.token.get());
        if (head.op.host)
            run_on_host(head.op);
        else
            done = head.op.run();
    });
    s->busy = false;
    if (!done)
        return;
    s->queue.pop_front();
    s->run++;
    sim_news();
    if (s->destroyed && s->queue.empty())
        sim_delete_stream(s);
}

/* ---- which one ---- */

static cudaStream_t pick()
{
    std::vector<cudaStream_t> can;
    for (cudaStream_t s : sim_streams)
        if (is_runnable(s))
            can.push_back(s);
    if (can.empty())
        return nullptr;
    if (sim_settings.schedule == SIM_NEWEST)
        return *std::max_element(can.begin(), can.end(),
                                 [](auto a, auto b) { return a->newest < b->newest; });
    return can[sim_random() % can.size()];
}

/* A stream whose head can run and which `want` needs before it can go on, or NULL. */
static cudaStream_t pick_needed(cudaStream_t want, std::unordered_set<cudaStream_t> &seen)
{
    if (!want || want->queue.empty() || !seen.insert(want).second)
        return nullptr;
    if (is_runnable(want))
        return want;
    std::vector<cudaStream_t> needs;
    if (want->queue.front().op.needs)
        want->queue.front().op.needs(needs);
    for (cudaStream_t s : needs)
        if (cudaStream_t found = pick_needed(s, seen))
            return found;
    return nullptr;
}

/* Run one op. False: none can run. */
static bool step(cudaStream_t want)
{
    std::unordered_set<cudaStream_t> seen;
    bool lazy = sim_settings.schedule == SIM_DEMAND && want;
    cudaStream_t s = lazy ? pick_needed(want, seen) : pick();
    if (s)
        run_head(s);
    return s != nullptr;
}

/* ---- who runs ---- */

void sim_drive(const std::function<bool()> &done, const std::function<cudaStream_t()> &want)
{
    int quiet_s = 0;
    if (done())
        return;
    sim_memory_open();
    while (!done()) {
        if (step(want())) {
            quiet_s = 0;
            continue;
        }
        sim_memory_close();
        quiet_s = sim_wait_for_news(1) ? 0 : quiet_s + 1;
        if (quiet_s >= sim_settings.timeout_s)
            sim_fail("a wait has seen nothing happen for %d s; the streams' next work:\n%s",
                     quiet_s, sim_pending().c_str());
        sim_memory_open();
    }
    if (sim_settings.schedule == SIM_RANDOM)
        for (uint32_t i = sim_random() % 3; i > 0 && step(nullptr); i--) {
        }
    sim_memory_close();
}

void sim_poll(cudaStream_t want)
{
    bool any = false;
    sim_memory_open();
    for (uint32_t i = sim_random() % 32 + 1; i > 0 && step(want); i--)
        any = true;
    sim_memory_close();
    if (!any)
        sim_unlock_while([] { sched_yield(); });
}

void sim_drain_device(int device)
{
    auto busy = [=]() -> cudaStream_t {
        for (cudaStream_t s : sim_streams)
            if (s->device == device && !s->queue.empty())
                return s;
        return nullptr;
    };
    sim_drive([&] { return busy() == nullptr; }, busy);
    for (cudaStream_t s : sim_streams)
        if (s->device == device)
            sim_acquire(&s->token);
}

static void run_some_early()
{
    bool eager = sim_settings.schedule == SIM_EAGER;
    if (!eager && (sim_settings.schedule != SIM_RANDOM || sim_random() % 16))
        return; /* opening device memory takes its time */
    sim_memory_open();
    for (uint32_t i = sim_random() % 16; (eager || i > 0) && step(nullptr); i--) {
    }
    sim_memory_close();
}

void sim_enqueue(cudaStream_t stream, SimOp op)
{
    static uint64_t clock;
    sim_need_stream(stream);
    SimEntry entry = {std::move(op), std::make_unique<char>()};
    sim_release(entry.token.get());
    stream->queue.push_back(std::move(entry));
    stream->enqueued++;
    stream->newest = ++clock;
    sim_news();
    run_some_early();
}

void sim_enqueue_simple(cudaStream_t stream, const std::string &name, std::function<void()> run)
{
    SimOp op = {};
    op.name = name;
    op.run = [run = std::move(run)] {
        run();
        return true;
    };
    sim_enqueue(stream, std::move(op));
}

std::string sim_pending()
{
    std::string text;
    for (cudaStream_t s : sim_streams)
        if (!s->queue.empty())
            text += "  device " + std::to_string(s->device) + " stream " + std::to_string(s->id) +
                    ": " + s->queue.front().op.name + ", and " +
                    std::to_string(s->queue.size() - 1) + " after it\n";
    return text.empty() ? "  no stream has work\n" : text;
}
