/* comm/dt_comm.h - worlds (who the ranks are) and communicators (what moves bytes between them).
 *
 * A world has ranks 0..size-1 on one backend. A communicator is an ordered list of ranks and a
 * channel; it is one FIFO, executed in host program order. Calls are nonblocking: each gives a
 * dt_work; only dt_work_wait and names with _sync block. All calls on a world come from one thread
 * (the rank's).
 *
 * Backends agree bit for bit: they only move bytes, and every sum is done here, in rank order, in
 * f32 (f64 for f64): reduce-scatter = all-to-all of chunks + local sum; all-reduce = that +
 * all-gather.
 * Read next: mesh/dt_mesh.h. */
#pragma once

#include "array/dt_array.h"
#include "base/dt_trace.h"

typedef struct dt_world dt_world;
typedef struct dt_comm dt_comm;
typedef struct dt_work dt_work;

#define DT_BACKEND_TABLE(X) \
    X(AUTO, "auto")         \
    X(SELF, "self")         \
    X(THREADS, "threads")   \
    X(MPI, "mpi")           \
    X(SHM, "shm")           \
    X(FAKE, "fake")

typedef enum dt_backend {
#define X(name, text) DT_BACKEND_##name,
    DT_BACKEND_TABLE(X)
#undef X
} dt_backend;

typedef struct dt_world_options {
    dt_backend backend;       /* AUTO: shm when launched by mpirun or srun, else self */
    int fake_rank, fake_size; /* FAKE: which rank of how many this process plays */
    int machines;             /* SHM: > 0: pretend that the ranks run on so many (tests) */
    double timeout_s;         /* of every wait; 0: 300 */
    int64_t piece;            /* most elements moved by one call of the backend; 0: 2^28 */
    dt_trace *trace;          /* borrowed; NULL: none */
    dt_heap_options heap;
} dt_world_options;

/* dt_world_create - join the world this process was launched in.
 * SHM: ranks of one machine read and write each other's memory; MPI brings them together and
 * carries data between machines. It moves only arrays of dt_world_heap. Where memory cannot be
 * shared it becomes MPI, with a warning on stderr; dt_world_backend tells.
 * Environment, read once: DT_EXPLAIN=1, DT_CHECK=collective,replicas (comma list),
 * DT_FAULT=name,..., DT_COMM=mpi or shm (what AUTO takes for launched ranks), DT_MACHINES=n.
 * Collective: all ranks.   Blocks: yes.   Errors: DT_ERR_UNSUPPORTED when the backend is not
 * built; DT_ERR_ARG for an unknown name in DT_CHECK or DT_FAULT. */
DT_NODISCARD dt_status dt_world_create(const dt_world_options *options, dt_world **world_out);
/* Collective. Accepts NULL. Ends MPI only if dt_world_create started it. */
void dt_world_destroy(dt_world **world);

/* dt_world_run_threads - run `body(world, arg)` on nranks threads of this process, each a rank of
 * one world. Returns when all have returned: the status of the lowest rank that failed, with its
 * trace. A rank that returns a failure makes the waits of the others fail at once, so nobody
 * hangs. */
typedef dt_status (*dt_rank_body)(dt_world *world, void *arg);
DT_NODISCARD dt_status dt_world_run_threads(int nranks, const dt_world_options *options,
                                            dt_rank_body body, void *arg);

int dt_world_rank(const dt_world *world);
int dt_world_size(const dt_world *world);
dt_backend dt_world_backend(const dt_world *world);
dt_trace *dt_world_trace(const dt_world *world);
void dt_world_set_trace(dt_world *world, dt_trace *trace);
/* The device of a kind that this rank is to use: on cuda one of this machine's, in turns. Where
 * there are fewer devices than ranks, some share one, and each takes its share of the memory.
 * Errors: DT_ERR_DEVICE: there is none. */
DT_NODISCARD dt_status dt_world_device(dt_world *world, dt_device_kind kind, dt_device *device_out);
/* The world's heap on a device, created on first use; lives as long as the world. */
DT_NODISCARD dt_status dt_world_heap(dt_world *world, dt_device device, dt_heap **heap_out);

/* Switches from the environment (and setters, for tests). `fault` is true for each name in
 * DT_FAULT. */
bool dt_world_explain(const dt_world *world);
void dt_world_set_explain(dt_world *world, bool on);
/* What starts this rank's lines of DT_EXPLAIN: "rank 2 ", nothing on rank 0. Returns buf. */
const char *dt_world_speaker(const dt_world *world, char buf[24]);
bool dt_world_check(const dt_world *world, const char *what);
bool dt_world_fault(const dt_world *world, const char *name);
/* N of name:N, and of name:N@R on rank R; 0: no such fault here. */
int64_t dt_world_fault_number(const dt_world *world, const char *name);
/* names: a comma list; "" or NULL none. */
void dt_world_set_check(dt_world *world, const char *names);
void dt_world_set_fault(dt_world *world, const char *names);
/* Calls of these kinds (bits 1 << dt_call) take delay_ms longer, as on a slow network (tests of
 * overlap). DT_FAULT=slow_comm:MS does it for all kinds; the other faults of comm/ are listed in
 * switches.c. */
void dt_world_set_delay(dt_world *world, unsigned kinds, int delay_ms);

/* ---- communicators ---- */

/* dt_comm_create - a communicator over `ranks` (world ranks, in this order) and a channel 0..3.
 * Same ranks and channel give the same communicator (counted references). nranks 1 costs nothing.
 * Collective: over `ranks`, in the same order everywhere; never inside a step.   Blocks: yes. */
DT_NODISCARD dt_status dt_comm_create(dt_world *world, const int *ranks, int nranks, int channel,
                                      dt_comm **comm_out);
void dt_comm_destroy(dt_comm **comm);
/* Axes to name it by in messages, besides its ranks. A mesh does this. */
void dt_comm_set_axes(dt_comm *comm, const char *axes);
/* dt_comm_link - let messages of arrays on cuda go from device to device between each rank and the
 * next one of the communicator's ring (the last one's next is the first), where every rank has a
 * device of its own. A message that waits holds up only those that follow it in its direction. Both
 * sides must give arrays of the same sizes: here nobody compares. Without it, and
 * between other ranks, messages go by way of the host. Nothing on other devices, or twice.
 * Collective: over its ranks; never inside a step.   Blocks: yes. */
DT_NODISCARD dt_status dt_comm_link(dt_comm *comm, dt_heap *heap);
int dt_comm_rank(const dt_comm *comm); /* mine in it, -1 if I am not a member */
int dt_comm_size(const dt_comm *comm);
int dt_world_comms_created(
    const dt_world *world); /* communicators of size > 1 made so far (tests) */

/* One tensor's part in a collective. Counts are elements per rank of the communicator, in its
 * order, copied by the call; NULL means even (count / size). Arrays are contiguous; in and out
 * hold the pieces one after the other in rank order. The work holds references to the storages
 * until it is waited for.
 *                    in                       out                      counts used
 *   all_gather       my piece                 all pieces               recv (recv[me] = mine)
 *   reduce_scatter   all pieces, my terms     my piece, summed         send (send[me] = mine)
 *   all_reduce       my terms                 sums (may be in)         none
 *   all_to_all       pieces for each rank     pieces from each rank    send and recv
 *   broadcast        root's array             everybody's (may be in)  none */
typedef struct dt_part {
    const dt_array *in;
    dt_array *out;
    const int64_t *send, *recv;
} dt_part;

/* Coalesced list forms: n parts are one call and one count. `label` (module path, copied) shows in
 * DT_EXPLAIN, traces and time-outs. An error (wrong counts, not a member) is returned at the call,
 * on every rank alike.
 * Cost: all_gather and reduce_scatter move (k-1)/k of the whole, all_reduce twice that, all_to_all
 * (k-1)/k. */
DT_NODISCARD dt_status dt_all_gather(dt_comm *comm, int n, const dt_part *part, const char *label,
                                     dt_work **work_out);
DT_NODISCARD dt_status dt_reduce_scatter(dt_comm *comm, int n, const dt_part *part,
                                         const char *label, dt_work **work_out);
DT_NODISCARD dt_status dt_all_reduce(dt_comm *comm, int n, const dt_part *part, dt_reduce op,
                                     const char *label, dt_work **work_out);
DT_NODISCARD dt_status dt_all_to_all(dt_comm *comm, int n, const dt_part *part, const char *label,
                                     dt_work **work_out);
DT_NODISCARD dt_status dt_broadcast(dt_comm *comm, int root, int n, const dt_part *part,
                                    const char *label, dt_work **work_out);
/* Point to point; matched in order per pair and communicator. Neither holds up later calls of the
 * lane, so two ranks may both send first; a later collective on the same communicator waits for
 * them. */
DT_NODISCARD dt_status dt_send(dt_comm *comm, int to, int n, const dt_array *const *arrays,
                               const char *label, dt_work **work_out);
DT_NODISCARD dt_status dt_recv(dt_comm *comm, int from, int n, dt_array *const *arrays,
                               const char *label, dt_work **work_out);
DT_NODISCARD dt_status dt_barrier(dt_comm *comm, const char *label, dt_work **work_out);

/* Wait and free; *work becomes NULL. Accepts NULL. Runs queued calls of the channel, up to this
 * one, on the calling thread. Channels 1..3 have a worker that runs them in the background from
 * the call on; channel 0 has none: its calls run when they are waited for. After an error that is
 * not of DT_CHECK the world is dead: every later call fails at once. Blocks: yes. Errors:
 * DT_ERR_TIMEOUT names the call, its sequence number and the ranks that have not arrived;
 * DT_ERR_COMM when a peer failed. */
DT_NODISCARD dt_status dt_work_wait(dt_work **work);
/* Would dt_work_wait return at once? NULL: yes. */
bool dt_work_done(dt_work *work);

/* Host values, for set-up and scalars: blocking. */
DT_NODISCARD dt_status dt_all_reduce_f64_sync(dt_comm *comm, double *value, int n, dt_reduce op);
DT_NODISCARD dt_status dt_all_reduce_i64_sync(dt_comm *comm, int64_t *value, int n, dt_reduce op);
/* DT_OK on all ranks, or on every rank the failure of the lowest rank that has one, its message
 * included. */
DT_NODISCARD dt_status dt_world_agree_sync(dt_world *world, dt_status st);
DT_NODISCARD dt_status dt_comm_agree_sync(dt_comm *comm, dt_status st);
/* The communicator of all ranks of the world, channel 0; borrowed. */
dt_comm *dt_world_comm(dt_world *world);

/* ---- counters ---- */

#define DT_CALL_TABLE(X)                \
    X(ALL_GATHER, "all-gather")         \
    X(REDUCE_SCATTER, "reduce-scatter") \
    X(ALL_REDUCE, "all-reduce")         \
    X(ALL_TO_ALL, "all-to-all")         \
    X(BROADCAST, "broadcast")           \
    X(SEND, "send")                     \
    X(RECV, "recv")                     \
    X(BARRIER, "barrier")

typedef enum dt_call {
#define X(name, text) DT_CALL_##name,
    DT_CALL_TABLE(X)
#undef X
        DT_NCALLS
} dt_call;

const char *dt_call_name(dt_call kind);

/* Calls (size-1 communicators and the _sync host values are not counted) and payload bytes of this
 * rank, k ranks: all_gather and reduce_scatter whole * (k-1) / k, all_reduce 2 * whole * (k-1) /
 * k, rounded down per part and the same on all ranks however uneven the pieces are; all_to_all
 * what it sends to others; broadcast the whole on the root, 0 elsewhere; send its bytes, recv and
 * barrier 0. */
typedef struct dt_counts {
    int64_t calls[DT_NCALLS];
    int64_t bytes[DT_NCALLS];
    int64_t total_calls, total_bytes;
} dt_counts;

dt_counts dt_world_counts(const dt_world *world); /* all communicators together */
dt_counts dt_comm_counts(const dt_comm *comm);
void dt_world_reset_counts(dt_world *world);
/* The last calls of this rank, newest last: sequence number, kind, label, bytes, state. */
void dt_world_print_ring(const dt_world *world, void (*print)(void *arg, const char *line),
                         void *arg);
