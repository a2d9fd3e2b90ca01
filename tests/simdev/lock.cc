/* tests/simdev/lock.cc - the device lock, waiting for news, and settings from the environment. */
#include "sim_internal.h"

#include <atomic>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

SimSettings sim_settings;
static uint64_t random_state;

uint32_t sim_random()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return static_cast<uint32_t>(random_state >> 16);
}

void sim_fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "simdev: FATAL: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    fflush(stderr);
    _exit(97);
}

/* ---- settings ---- */

static int64_t number(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, nullptr, 0) : otherwise;
}

static SimSchedule schedule_of(const char *name)
{
    static const char *const names[] = {"eager", "random", "newest", "demand"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i]))
            return static_cast<SimSchedule>(i);
    sim_fail("SIMDEV_SCHED=%s is none of eager, random, newest, demand", name);
}

static void read_settings()
{
    /* The address sanitizer keeps a real byte for eight that a heap has not given out. */
    const int64_t memory = int64_t{sim_asan() ? 1 : 16} << 30;
    const char *schedule = getenv("SIMDEV_SCHED"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    sim_settings.schedule = schedule_of(schedule ? schedule : "random");
    sim_settings.order = static_cast<int>(number("SIMDEV_ORDER", 0));
    sim_settings.seed = static_cast<uint64_t>(number("SIMDEV_SEED", 1));
    sim_settings.devices = static_cast<int>(number("SIMDEV_DEVICES", 8));
    sim_settings.memory = static_cast<size_t>(number("SIMDEV_MEMORY", memory));
    sim_settings.poison = number("SIMDEV_POISON", 1);
    sim_settings.protect = number("SIMDEV_PROTECT", 1);
    sim_settings.verbose = number("SIMDEV_VERBOSE", 0);
    sim_settings.timeout_s = static_cast<int>(number("SIMDEV_TIMEOUT", 60));
    random_state = sim_settings.seed + 1000003u * static_cast<uint64_t>(rank ? atoi(rank) : 0) + 1;
    random_state *= 0x9E3779B97F4A7C15u;
    for (int i = 0; i < 8; i++)
        sim_random();
}

/* ---- the lock: 0 free, 1 held, 2 held and waited for ---- */

static std::atomic<int> held, news;
static int news_at_lock; /* what `news` was when this holder took the lock */

static void futex_wait(std::atomic<int> &word, int value, int seconds)
{
    struct timespec limit = {seconds, 0};
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, seconds ? &limit : nullptr, nullptr, 0);
}

static void futex_wake(std::atomic<int> &word, int count)
{
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

static void take()
{
    int free = 0;
    if (!held.compare_exchange_strong(free, 1))
        while (held.exchange(2) != 0)
            futex_wait(held, 2, 0);
    news_at_lock = news;
}

static void give()
{
    if (held.exchange(0) == 2)
        futex_wake(held, 1);
}

SimLock::SimLock()
{
    static bool begun = false;
    take();
    if (!begun) {
        begun = true;
        read_settings();
    }
}

SimLock::~SimLock()
{
    give();
}

void sim_unlock_while(const std::function<void()> &body)
{
    give();
    body();
    take();
}

void sim_news()
{
    news++;
    futex_wake(news, INT_MAX);
}

bool sim_wait_for_news(int seconds)
{
    int seen = news_at_lock;
    give();
    time_t until = time(nullptr) + seconds;
    while (news == seen && time(nullptr) < until)
        futex_wait(news, seen, 1);
    bool any = news != seen;
    take();
    return any;
}
