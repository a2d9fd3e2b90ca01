/* tests/simdev/block.cc - runs a grid: block after block, the threads of a block on fibers that
 * change places at barriers and warp operations. A thread that meets neither runs to its end
 * without a switch. */
#include "sim_internal.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>

uint3 sim_threadIdx, sim_blockIdx;
dim3 sim_blockDim, sim_gridDim;

enum State { NOT_STARTED, READY, AT_BARRIER, AT_WARP_OP, EXITED };
struct Thread {
    SimFiber *fiber;
    State state;
    const char *file; /* of the barrier or the warp operation */
    int line;
    uint3 index;
};
/* Where the lanes of one mask meet. Two sets of values: fast lanes may be at their next meeting
 * while slow ones still read. */
struct Meeting {
    uint32_t mask, arrived;
    int turn, op, line;
    const char *file;
    uint64_t value[2][32];
};
enum { MAX_MASKS = 8 };
struct Warp {
    uint32_t exists, exited;
    int masks;
    Meeting meeting[MAX_MASKS];
};
/* Addresses for the thread sanitizer, new ones for each launch: launches are ordered by their
 * streams alone. By turns, so that no thread sees what another did after the barrier. */
struct Tokens {
    char start, end, barrier[2], warp[SIM_MAX_THREADS / 32][MAX_MASKS][2];
};

static struct {
    const sim_launch_args *launch;
    int threads, started, exited, current;
    SimFiber *entered; /* a fiber that begins */
    int waiting, sum, last_sum, turn, line;
    const char *file;
    std::vector<Thread> thread;
    std::vector<Warp> warp;
    std::vector<int> order, ready; /* ready[first_ready ...] in turn */
    size_t first_ready;
    std::vector<SimFiber *> free, used;
    Tokens *tokens;
} block;
static unsigned char *dynamic_shared;
/* For the thread sanitizer each stream, by its own fiber, has fibers for its launches: one whose
 * stack another stream used would seem to race with it. They cost 0.4 ms and 0.8 MB, so are kept;
 * those of streams that are no more are under NULL. */
static std::map<void *, std::vector<SimFiber *>> stream_fibers;

/* ---- what went wrong ---- */

static void divergence(const char *why)
{
    static const char *const states[] = {"not started", "ready", "at a barrier",
                                         "at a warp operation", "exited"};
    fprintf(stderr, "simdev: %s in kernel %s, block (%u,%u,%u)\n", why, block.launch->name,
            sim_blockIdx.x, sim_blockIdx.y, sim_blockIdx.z);
    for (int i = 0, j, shown = 0; i < block.threads && shown < 12; i = j, shown++) {
        const Thread &t = block.thread[i];
        for (j = i; j < block.threads; j++)
            if (block.thread[j].state != t.state || block.thread[j].line != t.line)
                break;
        fprintf(stderr, "  threads %d..%d: %s", i, j - 1, states[t.state]);
        if (t.state == AT_BARRIER || t.state == AT_WARP_OP)
            fprintf(stderr, " %s:%d", t.file, t.line);
        fprintf(stderr, "\n");
    }
    sim_fail("kernel %s: %s", block.launch->name, why);
}

static void wait_at(State state, const char *file, int line)
{
    Thread &t = block.thread[block.current];
    t.state = state;
    t.file = file;
    t.line = line;
}

/* ---- who runs next ---- */

static SimFiber *take_fiber()
{
    if (block.free.empty())
        return sim_fiber_new();
    SimFiber *fiber = block.free.back();
    block.free.pop_back();
    return fiber;
}

static void run(int thread)
{
    block.current = thread;
    block.thread[thread].state = READY;
    sim_threadIdx = block.thread[thread].index;
}

/* The fiber that calls waits or has nothing more to do. */
static void leave(SimFiber *self)
{
    if (block.first_ready < block.ready.size()) {
        run(block.ready[block.first_ready++]);
        if (block.first_ready == block.ready.size()) {
            block.ready.clear();
            block.first_ready = 0;
        }
        SimFiber *to = block.thread[block.current].fiber;
        if (to != self)
            sim_fiber_swap(self, to);
    } else if (block.started < block.threads) {
        block.entered = take_fiber();
        sim_fiber_swap(self, block.entered);
    } else {
        divergence(block.exited ? "barrier divergence: some threads exited, others wait"
                                : "deadlock: threads wait at different places");
    }
}

void sim_fiber_body()
{
    SimFiber *self = block.entered;
    for (;;) {
        while (block.started < block.threads) {
            int thread = block.order[block.started++];
            block.thread[thread].fiber = self;
            run(thread);
            sim_acquire(&block.tokens->start);
            block.launch->call(block.launch->kernel, block.launch->args);
            sim_release(&block.tokens->end);
            block.thread[thread].state = EXITED;
            block.exited++;
            block.warp[thread / 32].exited |= 1u << thread % 32;
            if (sim_tsan())
                break; /* two threads of a block on one of its fibers would seem ordered */
        }
        (sim_tsan() ? block.used : block.free).push_back(self);
        if (block.exited == block.threads)
            sim_fiber_swap(self, sim_fiber_main());
        else
            leave(self);
    }
}

/* ---- barriers and warps ---- */

/* One place of the source; objects may have copies of its file's name. */
static bool is_same(int line, const char *file, int other_line, const char *other_file)
{
    return line == other_line && (file == other_file || !strcmp(file, other_file));
}

int sim_barrier(int value, const char *file, int line)
{
    int me = block.current, turn = block.turn;
    SimFiber *self = block.thread[me].fiber;
    wait_at(AT_BARRIER, file, line);
    if (block.waiting == 0) {
        block.file = file;
        block.line = line;
        block.sum = 0;
    } else if (!is_same(line, file, block.line, block.file)) {
        divergence("barrier divergence: threads of a block wait at different barriers");
    }
    block.sum += value;
    sim_release(&block.tokens->barrier[turn]);
    if (++block.waiting == block.threads) {
        block.waiting = 0;
        block.last_sum = block.sum;
        block.turn = !turn;
        for (int i : block.order)
            if (i != me)
                block.ready.push_back(i);
        block.ready.push_back(me);
    }
    leave(self);
    sim_acquire(&block.tokens->barrier[turn]);
    return block.last_sum;
}

static Meeting *meeting_of(Warp *w, uint32_t mask)
{
    for (int i = 0; i < w->masks; i++)
        if (w->meeting[i].mask == mask)
            return &w->meeting[i];
    if (w->masks == MAX_MASKS)
        sim_fail("kernel %s: more than %d masks in a warp", block.launch->name, MAX_MASKS);
    Meeting *m = &w->meeting[w->masks++];
    m->mask = mask;
    m->arrived = 0;
    m->turn = 0;
    return m;
}

const uint64_t *sim_warp_rv(unsigned mask, const uint64_t *value, int op, const char *file,
                            int line)
{
    int me = block.current, lane = me % 32;
    Warp *w = &block.warp[me / 32];
    if (!(mask >> lane & 1))
        sim_fail("%s:%d: lane %d is at a warp operation whose mask %08x leaves it out", file, line,
                 lane, mask);
    uint32_t need = mask & w->exists;
    Meeting *m = meeting_of(w, mask);
    if (w->exited & need) {
        wait_at(AT_WARP_OP, file, line);
        divergence("a warp operation names lanes that have exited");
    }
    if (m->arrived && (m->op != op || !is_same(line, file, m->line, m->file))) {
        wait_at(AT_WARP_OP, file, line);
        divergence("warp divergence: lanes of one mask meet at different warp operations");
    }
    m->op = op;
    m->file = file;
    m->line = line;
    int turn = m->turn;
    if (value)
        m->value[turn][lane] = *value;
    m->arrived |= 1u << lane;
    /* Shuffles and votes do not order memory, __syncwarp does. */
    char *token = &block.tokens->warp[me / 32][m - w->meeting][turn];
    if (!value)
        sim_release(token);
    if (m->arrived == need) {
        m->arrived = 0;
        m->turn = !turn;
        for (uint32_t rest = need & ~(1u << lane); rest; rest &= rest - 1)
            block.ready.push_back(me - lane + __builtin_ctz(rest));
    } else {
        wait_at(AT_WARP_OP, file, line);
        leave(block.thread[me].fiber);
    }
    if (!value)
        sim_acquire(token);
    return m->value[turn];
}

void sim_yield(void)
{
    block.ready.push_back(block.current);
    leave(block.thread[block.current].fiber);
}

int sim_lane(void)
{
    return block.current % 32;
}

int sim_lane_exists(int lane)
{
    return block.warp[block.current / 32].exists >> lane & 1;
}

unsigned sim_no_activemask(void)
{
    sim_fail("kernel %s: __activemask() depends on the schedule; name the lanes",
             block.launch->name);
}

void *sim_dynamic_shared(void)
{
    if (!block.launch->shared_bytes)
        sim_fail("kernel %s uses dynamic shared memory, but its launch asks for 0 bytes",
                 block.launch->name);
    return dynamic_shared;
}

void sim_misaligned(const void *p, size_t bytes)
{
    sim_fail("kernel %s: an access of %zu bytes at %p, which is not a multiple of them",
             block.launch->name, bytes, p);
}

/* ---- grids ---- */

static void shuffle(std::vector<int> &order)
{
    for (size_t i = order.size(); i > 1; i--)
        std::swap(order[i - 1], order[sim_random() % i]);
}

static void check_canaries()
{
    size_t bytes = block.launch->shared_bytes;
    for (int i = 0; i < SIM_CANARY; i++)
        if (dynamic_shared[bytes + i] != 0xff)
            sim_fail("kernel %s writes past its %zu bytes of dynamic shared memory",
                     block.launch->name, bytes);
}

static void run_block(uint64_t number)
{
    const dim3 g = sim_gridDim;
    sim_blockIdx =
        uint3{static_cast<unsigned>(number % g.x), static_cast<unsigned>(number / g.x % g.y),
              static_cast<unsigned>(number / (uint64_t{g.x} * g.y))};
    block.started = block.exited = block.waiting = block.turn = 0;
    block.ready.clear();
    block.first_ready = 0;
    for (Thread &t : block.thread) {
        t.state = NOT_STARTED;
        t.line = 0;
    }
    if (sim_settings.order == 2)
        shuffle(block.order);
    for (Warp &w : block.warp)
        w.exited = w.masks = 0;
    if (sim_settings.poison)
        memset(dynamic_shared, 0xff, block.launch->shared_bytes);
    sim_release(&block.tokens->start);
    block.entered = take_fiber();
    sim_fiber_swap(sim_fiber_main(), block.entered);
    sim_acquire(&block.tokens->end);
    block.free.insert(block.free.end(), block.used.begin(), block.used.end());
    block.used.clear();
    if (sim_settings.poison) {
        check_canaries();
        sim_shared_after_block(block.launch->kernel);
    }
}

static void make_threads(dim3 b)
{
    int n = block.threads = static_cast<int>(b.x * b.y * b.z);
    block.thread.resize(n);
    for (unsigned i = 0; i < static_cast<unsigned>(n); i++)
        block.thread[i].index = uint3{i % b.x, i / b.x % b.y, i / (b.x * b.y)};
    block.warp.resize((n + 31) / 32);
    for (int i = 0; i < n; i += 32)
        block.warp[i / 32].exists = n - i >= 32 ? ~0u : (1u << (n - i)) - 1;
    block.order.resize(n);
    std::iota(block.order.begin(), block.order.end(), 0);
    if (sim_settings.order == 1)
        std::reverse(block.order.begin(), block.order.end());
}

/* Made here, not when threads start: a new fiber is ordered after the one that makes it. */
static void take_stream_fibers()
{
    auto &pool = stream_fibers[sim_fiber_current()], &spare = stream_fibers[nullptr];
    while (static_cast<int>(pool.size()) < block.threads) {
        if (spare.empty()) {
            spare.push_back(sim_fiber_new());
            sim_fiber_tsan(spare.back()) = sim_fiber_create();
        }
        pool.push_back(spare.back());
        spare.pop_back();
    }
    block.free = pool;
}

void sim_forget_fibers(void *stream_fiber)
{
    auto &pool = stream_fibers[stream_fiber], &spare = stream_fibers[nullptr];
    if (!stream_fiber)
        return;
    spare.insert(spare.end(), pool.begin(), pool.end());
    stream_fibers.erase(stream_fiber);
}

void sim_run_grid(const sim_launch_args &launch)
{
    sim_shared_before_grid();
    dynamic_shared = sim_dynamic_new(launch.shared_bytes);
    block.launch = &launch;
    block.tokens = static_cast<Tokens *>(malloc(sizeof *block.tokens));
    sim_blockDim = launch.block;
    sim_gridDim = launch.grid;
    make_threads(launch.block);
    sim_fiber_tsan(sim_fiber_main()) = sim_fiber_current();
    if (sim_tsan())
        take_stream_fibers();
    uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    std::vector<int> order;
    if (sim_settings.order == 2 && blocks < (1u << 20)) {
        order.resize(blocks);
        std::iota(order.begin(), order.end(), 0);
        shuffle(order);
    }
    for (uint64_t i = 0; i < blocks; i++)
        run_block(!order.empty() ? order[i] : sim_settings.order == 1 ? blocks - 1 - i : i);
    if (sim_settings.poison)
        sim_shared_after_grid(launch.kernel);
    sim_dynamic_delete(dynamic_shared, launch.shared_bytes);
    free(block.tokens);
}
