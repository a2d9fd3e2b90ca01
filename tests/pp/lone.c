/* tests/pp/lone.c - processes in a pipeline of which one alone fails in the backward of stage 1,
 * where the others of its stage do not; that ends the job. tests/pp/test_lone.sh runs it.
 * Arguments: a schedule, ranks of pp, dp_shard and tp, the rank of the world that fails. */
#include "tests/pp/trouble.h"

#include <stdlib.h>

static dt_status body(const pipe_plan *plan, int spoilt, dt_world *world)
{
    pipe p;
    trouble x = {.stage = 1, .spot = IN_BACKWARD, .first_sample = PIPE_SAMPLES / plan->m};
    witness list[MOST_STAGES];
    double loss = 0;
    DT_TRY(pipe_open(plan, world, &p));
    DT_TRY(trouble_watch(&p, &x, list));
    DT_TRY(pipe_run(&p, &loss));
    dt_module_clear_grads(dt_pipeline_module(p.pipe));
    x.armed = dt_world_rank(world) == spoilt;
    DT_TRY(pipe_run(&p, &loss));
    pipe_close(&p);
    return DT_OK;
}

int main(int argc, char **argv)
{
    dt_world *world = NULL;
    if (argc != 6)
        return EXIT_FAILURE;
    pipe_plan plan = {
        .schedule = argv[1], .ranks = atoi(argv[2]), .dp = atoi(argv[3]), .tp = atoi(argv[4])};
    const pipe one = {.plan = &plan};
    plan.m = plan.ranks > 2 ? 8 : 4;
    plan.zero = plan.dp > 1 ? 2 : 0;
    plan.sp = plan.tp > 1;
    plan.layers = pipe_stages(&one);
    DT_MUST(dt_world_create(&(dt_world_options){.timeout_s = 60}, &world));
    DT_MUST(body(&plan, atoi(argv[5]), world));
    dt_world_destroy(&world);
    return EXIT_SUCCESS;
}
