/* comm/comm_internal.h - how a call travels through comm/.
 *
 *   call.c      checks the arguments                                                host thread
 *   staged.c    arrays on cuda: copies them to the host and back                    host thread
 *   nccl.c      arrays on cuda: from device to device, beside all that follows      host thread
 *   plan.c      builds a dt_work: which bytes go to whom                            host thread
 *   record.c    counts it, keeps it in the ring, prints DT_EXPLAIN's line           host thread
 *   lane.c      queues it on its channel's lane; runs it in order                   host or worker
 *   run.c       the algorithm in terms of `exchange`, for backends that move bytes  host or worker
 *   mpi.c, fake.c   exchange                                                        host or worker
 *   shm_call.c  the algorithm where ranks see each other's memory: threads.c, shm.c host or worker
 *   work.c      waits, gives storage references back                                host thread
 *
 * A work owns all the memory that running it needs before it is queued, so that workers never
 * allocate. Read next: run.c, lane.c. */
#pragma once

#include "comm/dt_comm.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    DTI_CHANNELS = 4,
    DTI_LABEL_BYTES = 160,
    DTI_AXES_BYTES = 192, /* all of a mesh */
    DTI_NAME_BYTES = DTI_AXES_BYTES + 80,
    DTI_MESSAGE_BYTES = 1024,
    DTI_RING = 256,
    DTI_NCCL_GROUPS = 5, /* nccl_group_internal.h */
    DTI_SLICE_MS = 5,    /* a sleeping wait looks this often whether a peer has failed */
};

/* Bytes for or from one peer. A receive piece with bytes but no data borrows: the exchange sets
 * `data` to the sender's own bytes, which may be read until `finish` (backends that lend). */
typedef struct dti_piece {
    char *data;
    size_t bytes;
} dti_piece;

/* n parts, and in each a piece for every peer: send[part * width + rank of the communicator]. */
typedef struct dti_exchange {
    int n, width;
    size_t *element_bytes; /* of each part */
    dti_piece *send, *recv;
} dti_exchange;

typedef struct dti_backend {
    bool lends;  /* borrowing pieces are possible */
    bool shares; /* only arrays of the world's heap can be moved */
    bool polls;  /* point-to-point calls move only while somebody tests them */
    dt_status (*comm_open)(dt_comm *comm);
    void (*comm_close)(dt_comm *comm);
    void (*world_close)(dt_world *world); /* may be NULL */
    /* Bytes of w->scratch for this work; asked when its exchanges are built. */
    size_t (*scratch_bytes)(const dt_work *w);
    /* Move the pieces between all members (not those for oneself). Blocks until dti_late. */
    dt_status (*exchange)(dt_work *w, const dti_exchange *x);
    /* Blocks until no peer reads this rank's bytes any more. */
    dt_status (*finish)(dt_work *w);
    /* All of a collective call; NULL: run.c makes it of exchanges. */
    dt_status (*collective)(dt_work *w);
    /* Point to point: begin; look whether it is done; forget it (true if it was done after all). */
    dt_status (*start)(dt_work *w);
    dt_status (*test)(dt_work *w, bool *done_out);
    bool (*cancel)(dt_work *w);
} dti_backend;

/* Point to point through memory: of the two calls the one that came first keeps the account. */
typedef struct dti_flight {
    const dt_work *partner;    /* who came second, as that rank addresses it; valid when `open` */
    atomic_bool open;          /* chunks may be claimed */
    atomic_uint claimed, done; /* chunks */
    atomic_int landed;         /* 1 + status: what either call ends with */
    struct dti_place *place;   /* where it waits */
    unsigned looks;
} dti_flight;

typedef enum dti_state { DTI_QUEUED, DTI_RUNNING, DTI_FLYING, DTI_DONE } dti_state;

/* One part as the call gave it: references to the storages, and where a reduction goes. */
typedef struct dti_operand {
    dt_array in, out;
    dt_dtype dtype;
    char *sum;         /* reduce_scatter, all_reduce: my chunk of the result */
    int64_t sum_count; /* elements */
    char *saved;       /* for faults: these bytes replace ... */
    dti_piece restore; /* ... these after the call */
} dti_operand;

/* What DT_CHECK=collective compares. */
typedef struct dti_record {
    uint64_t hash;
    char text[120];
} dti_record;

struct dt_work {
    dt_comm *comm;
    dt_array memory; /* this work's own, where peers read it; else it is malloc's */
    dt_call kind;
    dt_reduce op;
    int peer; /* root, to, from: a rank of the communicator; -1: none */
    int n;
    int64_t sequence; /* on its communicator; apart for collectives and point to point */
    int64_t bytes;    /* payload, as counted */
    int64_t whole;    /* bytes of all ranks' results, equal on all ranks: 0 for all_to_all */
    uint64_t shape;   /* hash of what must be equal on all ranks */
    bool host_values; /* a _sync call: not counted, no faults, no events */
    bool swap;        /* fault swap_shards */

    dti_operand *operand;
    dti_exchange first, second; /* second: all_reduce's all-gather */
    const void **source;        /* room for a reduction's terms, one a rank */
    dti_exchange compare;       /* n 0 unless DT_CHECK=collective */
    dti_record *record;
    dt_array staging;
    void *event;    /* nccl.c: cudaEvent_t, when it is done; NULL: not NCCL's */
    int group;      /* and in which of the communicator's groups */
    dt_array *home; /* staged.c: where each part's `out` is copied by the wait; NULL: nowhere */
    dt_work *next_away;
    char *host_copy; /* bytes of no array: a _sync call's values, a barrier's tokens */
    dt_array host_memory;
    void *scratch; /* the backend's */

    dt_trace *trace;
    double delay_s;    /* injected */
    double deadline_s; /* on dti_now's clock; 0: not set yet */
    double earliest_s; /* point to point: not done before (injected delay) */
    int64_t ring_index;

    dti_state state; /* guarded by the lane's lock, as are the next four */
    dt_status status;
    dt_work *next;
    dti_flight flight; /* shm_message.c */

    char label[DTI_LABEL_BYTES]; /* these two are not zeroed first */
    char message[DTI_MESSAGE_BYTES];
};

/* The FIFO of one channel of a world. Who holds `running` runs the head of the queue. */
typedef struct dti_lane {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the worker: there is something to do */
    pthread_cond_t done; /* waiters: a call has ended, or `running` is free */
    dt_work *head, *tail;
    dt_work *flying; /* point-to-point calls that have started */
    bool running, has_worker, stop;
    pthread_t worker;
} dti_lane;

/* Whether and why a world is dead; one for all ranks where they share memory. */
typedef struct dti_fate {
    atomic_int failed; /* 1 + the first rank that failed; 0: alive; -1: it is writing its message */
    atomic_bool told;  /* a rank has ended its job and printed why */
    char message[DTI_MESSAGE_BYTES];
} dti_fate;

typedef struct dti_ring_entry {
    atomic_ullong state; /* index << 2 | dti_ring_state */
    int64_t sequence, bytes;
    dt_call kind;
    char label[DTI_LABEL_BYTES], comm_name[DTI_NAME_BYTES];
} dti_ring_entry;

typedef enum dti_ring_state {
    DTI_RING_QUEUED,
    DTI_RING_RUNS,
    DTI_RING_DONE,
    DTI_RING_FAILED
} dti_ring_state;

struct dt_comm {
    dt_world *world;
    const dti_backend *ops;
    int *ranks, size, rank, channel, refs;
    char axes[DTI_AXES_BYTES], name[DTI_NAME_BYTES];
    int64_t collectives, messages; /* issued so far */
    dt_counts counts;
    struct dti_room *room; /* where its members, or those of one machine, share memory */
    struct dti_nccl *nccl[DTI_NCCL_GROUPS]; /* for arrays on cuda; NULL: none */
    bool asked_nccl, linked;
    dt_work *away; /* staged.c: calls not waited for, in order */
    void *data;    /* the backend's */
    bool *sends_to,
        *hears_from; /* hier.c: members on other machines, of whom this one is partner */
    dt_comm *next;
};

struct dt_world {
    int rank, size;
    dt_backend backend;
    const dti_backend *ops; /* NULL: self */
    void *data;             /* the backend's */
    void *mpi;              /* mpi.c's, for mpi and shm */
    dt_heap *notes;         /* what else than arrays peers read; NULL: malloc will do */
    double timeout_s;
    int64_t piece;
    dt_heap_options heap_options;
    dt_heap *heap[3]; /* by dt_device_kind */
    dt_trace *trace;
    bool explain;
    bool staged; /* said that arrays go by way of the host */
    char checks[128], faults[256];
    double delay_s;
    unsigned delay_mask; /* 1 << dt_call */
    dti_fate *fate, own_fate;
    atomic_bool saw_peer_fail; /* an error of this rank was only that of another */
    dti_lane lane[DTI_CHANNELS];
    int spins; /* looks of a wait before it gives its core away; 0 where ranks outnumber cores */
    dt_comm *comms, *all;
    int comms_created;
    /* failed works: peers may still look at them, so they live as long as the world */
    dt_work *graves;
    dt_work *on_device; /* NCCL's that nobody has waited for: who fails may never do so */
    dt_counts counts;
    dti_ring_entry ring[DTI_RING];
    int64_t ring_next;
};

/* world.c */
dt_status dti_world_new(const dt_world_options *options, dt_backend backend, dt_world **world_out);
dt_status dti_world_ready(dt_world *world); /* after the backend has set rank, size, ops */
double dti_now(void);                       /* seconds, monotonic */
struct timespec dti_timespec(double seconds);
/* Whether a waiting call has passed its deadline, which counts from the first time it asks. */
bool dti_late(dt_work *w);
/* Copies what fits; cheaper than snprintf. */
void dti_copy_text(char *to, size_t size_bytes, const char *text);
/* A polling wait: yield for 100 us after `since_s`, then sleep 50 us at a time. */
void dti_pause(double since_s);

/* fate.c */
void dti_break(dt_world *world, const char *message); /* the first failure is kept */
bool dti_broken(const dt_world *world);
int dti_broken_by(dt_world *world); /* the rank; -1: it died before it had said how */
/* The world is broken: by whom and how, while this rank did what. */
dt_status dti_peer_failed(dt_world *world, const char *meanwhile);
/* Fail a work: message = "<call> #<n> '<label>' on <communicator>: ...". Breaks the world. */
DT_PRINTF(3, 4) dt_status dti_work_fail(dt_work *w, dt_status st, const char *fmt, ...);
dt_status dti_work_fail_peer(dt_work *w); /* the world is broken: say by whom */
dt_status dti_work_fail_absent(dt_work *w,
                               const bool *absent); /* deadline passed; one flag a member */
void dti_describe(const dt_work *w, char *text, size_t size_bytes);

/* switches.c */
dt_status dti_switches_read(dt_world *world);
bool dti_fault_hits(const dt_world *world, const char *name, const char *label);

/* comm.c */
void dti_comm_free(dt_comm *comm);
void dti_print_ranks(const int *ranks, int n, char *text, size_t size_bytes);

/* work.c: one block of memory with all arrays of a work */
typedef struct dti_work_plan {
    dt_call kind;
    int n, width;
    bool moves; /* false: only shapes (meta), no pieces */
    bool reduces, two_steps, compares;
} dti_work_plan;
dt_status dti_work_create(dt_comm *comm, dti_work_plan plan, const char *label, dt_work **work_out);
dt_status dti_work_scratch(dt_work *w); /* when the exchanges are built */
/* Memory of a work beside it: host_copy. Zeroed, freed with it. */
dt_status dti_work_host_copy(dt_work *w, size_t bytes);
void dti_work_free(dt_work *w);

/* plan.c */
typedef struct dti_call_options {
    dt_call kind;
    dt_reduce op;
    int peer;
    const char *label;
} dti_call_options;
/* Elements of rank r's piece: as the caller counts them, or even. */
int64_t dti_piece_of(const int64_t *counts, int64_t total, int k, int r);
dt_status dti_plan_work(dt_work *w, const dti_call_options *o, const dt_part *part);

/* call.c: a checked call of arrays that the backend moves. */
dt_status dti_call(dt_comm *comm, const dti_call_options *o, int n, const dt_part *part,
                   dt_work **work_out);

/* staged.c: the same of arrays on cuda; what the wait does; giving the references back. */
dt_status dti_call_staged(dt_comm *comm, const dti_call_options *o, int n, const dt_part *part,
                          dt_work **work_out);
dt_status dti_bring_home(dt_work *w);
void dti_forget_home(dt_work *w);

/* lane.c */
void dti_lane_open(dti_lane *lane);
void dti_lane_close(dt_world *world, dti_lane *lane);
dt_status dti_lane_issue(dt_work *w);
/* Has it run? Starts queued messages, looks once, never waits. */
bool dti_lane_done(dt_work *w);
void dti_lane_wait(dt_work *w);

/* run.c */
dt_status dti_work_run(dt_work *w);
void dti_prepare_faults(dt_work *w);
void dti_apply_faults(dt_work *w);
void dti_prepare_compare(dt_work *w);
/* A hash of what must be equal on all ranks; bytes of the whole (0 for all_to_all). */
uint64_t dti_shape_of(const dt_work *w, int64_t *whole_out);
/* Elements [lo, hi) of n that rank r of k owns: chunks of ceil(n / k). */
int64_t dti_chunk(int64_t n, int k, int r);

/* reduce.c: dst may be one of the sources; a NULL source is zero. Serial. */
void dti_add_terms(void *dst, int nsources, const void *const *source, int64_t n, dt_dtype dtype,
                   dt_reduce op);
/* The same into n destinations, past the caches where `stream`. */
typedef struct dti_targets {
    char *const *at;
    int n;
    bool stream;
} dti_targets;
void dti_add_terms_to(dti_targets to, int nsources, const void *const *source, int64_t n,
                      dt_dtype dtype, dt_reduce op);

/* copy.c: dst and src do not overlap. A streaming copy goes past the caches; dti_copy_fence makes
 * it visible. */
void dti_copy(char *dst, const char *src, size_t bytes, bool stream);
void dti_copy_fence(void);

/* record.c */
void dti_count_issue(dt_work *w);
void dti_ring_mark(const dt_work *w, dti_ring_state state);
void dti_event(const dt_work *w, const char *kind, dt_trace_phase phase, int lane);

/* sync.c: every rank's bytes, in rank order. */
dt_status dti_gather_sync(dt_comm *comm, const void *mine, size_t bytes, void *all,
                          const char *label);

/* Backends. */
dt_status dti_mpi_open(dt_world *world);
bool dti_mpi_launched(void);
dt_status dti_mpi_open_comm(dt_comm *comm);
void dti_mpi_close_comm(dt_comm *comm);
void dti_mpi_close_world(dt_world *world);
/* Every member's note, in the order of its ranks; those who meet create the same communicator. */
dt_status dti_mpi_meet(dt_comm *comm, uint64_t note, uint64_t *notes);
/* Everybody's bytes, in rank order. When worlds are created only: no deadline. */
dt_status dti_mpi_gather(dt_world *world, const void *mine, size_t bytes, void *all);
/* A number that ranks of one machine share. */
dt_status dti_mpi_machine(dt_world *world, int *machine_out);
/* After dti_mpi_open: move data through shared memory between ranks of one machine (`machines` > 0:
 * pretended ones, of equally many ranks). DT_ERR_UNSUPPORTED on every rank if one cannot. */
dt_status dti_shm_open(dt_world *world, int machines);
dt_status dti_fake_open(dt_world *world, int rank, int size);
typedef struct dti_group dti_group;
dt_status dti_group_create(int nranks, dti_group **group_out);
void dti_group_destroy(dti_group **group);
void dti_threads_open(dt_world *world, dti_group *group, int rank, int size);
