/* comm/shm_internal.h - ranks that see each other's memory: threads of one process (threads.c), or
 * processes of one machine that have mapped each other's heaps (shm.c).
 *
 * Each member of a communicator has a desk that all can read. It comes to a rendezvous by leaving a
 * slip on its desk, the rendezvous' number on it, written last; slips of two rendezvous lie side by
 * side, even and odd: whoever writes slip 9 over slip 7 has seen all come to rendezvous 8, so
 * nobody reads 7 any more.
 *
 *   rank 0   slip 7 | read the others' | slip 8 | ...
 *   rank 1      slip 7 | read          | slip 8
 *
 * Addresses in slips and works are their owner's; dti_there turns them into ours. Read next:
 * shm_room.c (rendezvous), shm_call.c (collectives), shm_message.c (point to point). */
#pragma once

#include "comm/comm_internal.h"

enum {
    DTI_STAGE_BYTES = 4096, /* smaller calls travel on the slip itself: one rendezvous, not two */
    DTI_BOX = 1024,         /* messages of a pair that may wait unreceived; the next one blocks */
};
#define DTI_STREAM_BYTES ((int64_t)16 << 20) /* of a whole call, above which copies are streamed */

/* Where a peer's memory lies here: its heap and its notes. A peer in our own address space has
 * bytes[0] SIZE_MAX and both addresses 0. */
typedef struct dti_peer {
    uintptr_t from[2], to[2];
    size_t bytes[2];
    int pidfd; /* -1: none */
    int pid;
} dti_peer;

static inline void *dti_there(const dti_peer *peer, const void *address)
{
    const uintptr_t a = (uintptr_t)address;
    const int stretch = a - peer->from[0] < peer->bytes[0] ? 0 : 1;
    return (void *)(a - peer->from[stretch] + peer->to[stretch]);
}

typedef enum dti_step {
    DTI_STEP_STAGED,
    DTI_STEP_DIRECT,
    DTI_STEP_COMPARE,
    DTI_STEP_LEAVE
} dti_step;

/* What all others read, number first, lies on one cache line. */
typedef struct dti_slip {
    _Alignas(64) atomic_uint number; /* of the rendezvous; others sleep on it (futex) */
    dti_step step;
    dt_call kind;
    int peer, n;
    int64_t whole;
    uint64_t shape;
    const dt_work *work;
    const dti_exchange *table;
    _Alignas(64) char staged[DTI_STAGE_BYTES];
} dti_slip;

/* Where the two calls of a message meet. One cache line: all that a small message needs to know. */
typedef struct dti_place {
    _Alignas(64) atomic_uintptr_t first; /* the call that came first, and marks; 0: none waits */
    dti_piece piece[2]; /* of the receiver and the sender, as each addresses it; size SIZE_MAX: look
                           at its call */
} dti_place;

/* Between the owner of a desk and one other member. */
typedef struct dti_pair {
    unsigned sent, received; /* messages that the owner has begun */
    dti_place box[DTI_BOX];  /* messages to the owner */
} dti_pair;

typedef struct dti_desk {
    dti_slip slip[2];
    _Alignas(64) atomic_uint sleepers;
    dti_pair pair[]; /* one a member */
} dti_desk;

/* One rank's view of a communicator, or of its members on one machine. Members count from 0. */
typedef struct dti_room {
    int size, me;
    int *ranks;    /* world ranks of the members */
    unsigned here; /* rendezvous this rank has come to */
    dti_desk **desk;
    const dti_peer **peer;
    char **to;         /* room for an address of each member: destinations */
    const void **from; /* sources */
} dti_room;

size_t dti_desk_bytes(int members);
/* Desks and peers are still missing; free() it. NULL: no memory. */
dti_room *dti_room_new(int members, int me, const int *ranks);

/* shm_room.c */
void dti_room_enter(dti_room *room); /* desks are there; they may have been used before */
dti_slip *dti_room_own_slip(const dti_room *room); /* of the next rendezvous, to be filled */
const dti_slip *dti_room_slip(const dti_room *room, int member); /* of the last one */
/* Come to the next rendezvous and wait for all; then all slips can be read. Fails where they belong
 * to different calls, a rank dies, fails or does not come. */
dt_status dti_room_meet(dt_work *w, dti_step step, const dti_exchange *table);
bool dti_peer_is_dead(const dti_peer *peer);

/* shm_call.c: after a rendezvous with a table, store a piece into that cell of the tables' `recv`
 * of all in the room; not where it lies already. */
void dti_store_piece(const dt_work *w, int cell, dti_piece from, bool stream);

/* hier.c: a communicator that mpi.c has opened and that has a room on this machine; machine[world
 * rank]. Sets its ops. */
dt_status dti_hier_open(dt_comm *comm, const int *machine);

/* Entries of dti_backend. */
dt_status dti_shm_collective(dt_work *w);
dt_status dti_shm_exchange(dt_work *w, const dti_exchange *x);
dt_status dti_shm_finish(dt_work *w);
dt_status dti_shm_start(dt_work *w);
dt_status dti_shm_test(dt_work *w, bool *done_out);
bool dti_shm_cancel(dt_work *w);
