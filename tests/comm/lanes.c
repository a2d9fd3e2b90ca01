/* tests/comm/lanes.c - see lanes.h. */
#include "tests/comm/lanes.h"

#include <time.h>

/* x -> k x, eight times over without a wait in between: each call needs the one before. */
dt_status lane_chain(dt_world *world, void *arg)
{
    const int channel = *(const int *)arg, k = dt_world_size(world);
    dt_comm *comm;
    DT_TRY(dt_comm_create(world, (int[]){0, 1, 2, 3}, k, channel, &comm));
    dt_array x;
    DT_TRY(case_floats(world, 5, 1, &x));
    const dt_part part = {.in = &x, .out = &x};
    dt_work *work[8];
    for (int i = 0; i < 8; i++)
        DT_TRY(dt_all_reduce(comm, 1, &part, DT_REDUCE_SUM, "chain", &work[i]));
    for (int i = 7; i >= 0; i--) /* the last one first */
        DT_TRY(dt_work_wait(&work[i]));
    TEST_THAT(case_first(&x) == (float)(k * k * k * k) * (float)(k * k * k * k), "%d^8 is %g", k,
              (double)case_first(&x));
    dt_array_release(&x);
    dt_comm_destroy(&comm);
    return DT_OK;
}

/* A communicator goes before its calls are waited for: still under way, or done by the worker. */
dt_status lane_destroyed_early(dt_world *world, void *arg)
{
    const int channel = *(const int *)arg, k = dt_world_size(world);
    for (int nap = 0; nap < 2; nap++) {
        dt_comm *comm;
        dt_array x;
        dt_work *work;
        DT_TRY(dt_comm_create(world, (int[]){0, 1, 2, 3}, k, channel, &comm));
        DT_TRY(case_floats(world, 5, 1, &x));
        DT_TRY(
            dt_all_reduce(comm, 1, &(dt_part){.in = &x, .out = &x}, DT_REDUCE_SUM, "early", &work));
        if (nap)
            (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
        dt_comm_destroy(&comm);
        DT_TRY(dt_work_wait(&work));
        TEST_THAT(case_first(&x) == (float)k, "%g", (double)case_first(&x));
        dt_array_release(&x);
    }
    return DT_OK;
}

/* Ranks wait for two channels in opposite orders. */
dt_status lane_crossed_waits(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    for (int first = 0; first < 4; first++)
        for (int second = 0; second < 4; second++) {
            if (first == second)
                continue;
            dt_comm *comm[2];
            DT_TRY(dt_comm_create(world, (int[]){0, 1}, 2, first, &comm[0]));
            DT_TRY(dt_comm_create(world, (int[]){0, 1}, 2, second, &comm[1]));
            dt_array x[2];
            dt_work *work[2];
            for (int c = 0; c < 2; c++) {
                DT_TRY(case_floats(world, 3, (float)(me + c), &x[c]));
                DT_TRY(dt_all_reduce(comm[c], 1, &(dt_part){.in = &x[c], .out = &x[c]},
                                     DT_REDUCE_SUM, "crossed", &work[c]));
            }
            DT_TRY(dt_work_wait(&work[me]));
            DT_TRY(dt_work_wait(&work[1 - me]));
            TEST_THAT(case_first(&x[0]) == 1 && case_first(&x[1]) == 3, "%g %g",
                      (double)case_first(&x[0]), (double)case_first(&x[1]));
            for (int c = 0; c < 2; c++) {
                dt_array_release(&x[c]);
                dt_comm_destroy(&comm[c]);
            }
        }
    return DT_OK;
}

/* A call of channel >= 1 completes although this host does not wait for it: rank 1 tells rank 0
 * that it has its result, and only then rank 0 waits. */
dt_status lane_background(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_comm *comm, *notes;
    DT_TRY(dt_comm_create(world, (int[]){0, 1}, 2, 3, &comm));
    DT_TRY(dt_comm_create(world, (int[]){0, 1}, 2, 0, &notes));
    dt_array x;
    DT_TRY(case_floats(world, 1, 1, &x));
    dt_work *work, *note;
    DT_TRY(dt_all_reduce(comm, 1, &(dt_part){.in = &x, .out = &x}, DT_REDUCE_SUM, "", &work));
    if (me == 1)
        DT_TRY(dt_work_wait(&work));
    DT_TRY(dt_barrier(notes, "has its result", &note));
    DT_TRY(dt_work_wait(&note));
    DT_TRY(dt_work_wait(&work));
    TEST_THAT(case_first(&x) == 2, "%g", (double)case_first(&x));
    dt_array_release(&x);
    dt_comm_destroy(&notes);
    dt_comm_destroy(&comm);
    return DT_OK;
}

enum { MESSAGES = 6 };

/* Both send all, then receive all, and wait in a scrambled order. Matched in order of issue. */
dt_status lane_messages_cross(dt_world *world, void *arg)
{
    const int channel = *(const int *)arg, me = dt_world_rank(world);
    dt_comm *comm;
    DT_TRY(dt_comm_create(world, (int[]){0, 1}, 2, channel, &comm));
    DT_TRY(case_link(world, comm));
    dt_array out[MESSAGES], in[MESSAGES];
    dt_work *sent[MESSAGES], *got[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) {
        DT_TRY(case_floats(world, 10 + i, (float)(100 * me + i), &out[i]));
        DT_TRY(case_floats(world, 10 + i, -1, &in[i]));
        const dt_array *const array = &out[i];
        if (me == 0) /* rank 0 sends first, rank 1 receives first */
            DT_TRY(dt_send(comm, 1 - me, 1, &array, "there", &sent[i]));
        dt_array *const room = &in[i];
        DT_TRY(dt_recv(comm, 1 - me, 1, &room, "back", &got[i]));
        if (me == 1)
            DT_TRY(dt_send(comm, 1 - me, 1, &array, "there", &sent[i]));
    }
    for (int i = 0; i < MESSAGES; i++) {
        DT_TRY(dt_work_wait(&got[(i * 5 + me) % MESSAGES]));
        DT_TRY(dt_work_wait(&sent[(i * 5 + 3) % MESSAGES]));
    }
    for (int i = 0; i < MESSAGES; i++) {
        TEST_THAT(case_first(&in[i]) == (float)(100 * (1 - me) + i), "message %d: %g", i,
                  (double)case_first(&in[i]));
        dt_array_release(&in[i]);
        dt_array_release(&out[i]);
    }
    dt_comm_destroy(&comm);
    return DT_OK;
}

/* A collective uses what was received just before it, without a wait in between. */
dt_status lane_receive_then_sum(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_comm *comm;
    DT_TRY(dt_comm_create(world, (int[]){0, 1}, 2, 0, &comm));
    DT_TRY(case_link(world, comm));
    dt_array x;
    DT_TRY(case_floats(world, 4, me == 0 ? 7 : 0, &x));
    const dt_array *const from = &x;
    dt_array *const to = &x;
    dt_work *message, *sum;
    if (me == 0)
        DT_TRY(dt_send(comm, 1, 1, &from, "x", &message));
    else
        DT_TRY(dt_recv(comm, 0, 1, &to, "x", &message));
    DT_TRY(dt_all_reduce(comm, 1, &(dt_part){.in = &x, .out = &x}, DT_REDUCE_SUM, "x", &sum));
    DT_TRY(dt_work_wait(&sum));
    DT_TRY(dt_work_wait(&message));
    TEST_THAT(case_first(&x) == 14, "%g", (double)case_first(&x));
    dt_array_release(&x);
    dt_comm_destroy(&comm);
    return DT_OK;
}
