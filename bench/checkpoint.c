/* bench/checkpoint.c - saving a Llama with its optimizer state on two ranks, against `dd` writing
 * as many bytes to the same folder and syncing them; both by turns, best of three. Also how long an
 * async save keeps training waiting, loading, and the memory that saving took above what is held.
 *
 *   build/bench/checkpoint [MB] [FOLDER]      300 MB, or so many; in FOLDER, or $TMPDIR, or /tmp */
#include "array/dt_kernels.h"
#include "checkpoint/dt_checkpoint.h"
#include "fsdp/dt_fsdp.h"
#include "models/dt_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 3, HIDDEN = 512 };

typedef struct job {
    char dir[200];
    int64_t layers;
    double dd_s, save_s, staged_s, load_s; /* best */
    int64_t bytes;                         /* of a step's tensors */
    int64_t held, staging;                 /* of rank 0: parameters and state; above that */
} job;

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void keep_best(double *best, double s)
{
    if (*best <= 0 || s < *best)
        *best = s;
}

static dt_status run_dd(job *j)
{
    char command[512];
    (void)snprintf(command, sizeof command,
                   "dd if=/dev/zero of=%s/dd bs=1M count=%lld conv=fsync 2>/dev/null && rm %s/dd",
                   j->dir, (long long)(j->bytes >> 20), j->dir);
    const double since_s = now_s();
    DT_REQUIRE(system(command) == 0, DT_ERR_IO, "%s", command);
    keep_best(&j->dd_s, now_s() - since_s);
    return DT_OK;
}

static dt_status make(dt_world *world, const job *j, dt_mesh **mesh, dt_module **model,
                      dt_optim **optim)
{
    const dt_llama_config config = {.vocab_size = 4096,
                                    .hidden_size = HIDDEN,
                                    .intermediate_size = 1376,
                                    .num_hidden_layers = j->layers,
                                    .num_attention_heads = 8,
                                    .num_key_value_heads = 8,
                                    .head_dim = 64,
                                    .max_position_embeddings = 64,
                                    .rope.theta = 1e4,
                                    .rms_norm_eps = 1e-5,
                                    .initializer_range = 0.02};
    const dt_mesh_options axes = {.axes = {{"dp_shard", dt_world_size(world)}}};
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &axes, mesh));
    DT_TRY(dt_llama_create(&config, model));
    DT_TRY(dt_fully_shard(*model, *mesh, "dp_shard", NULL));
    DT_TRY(dt_module_materialize(*model, *mesh, 1));
    return dt_adamw_create(*model, NULL, optim);
}

/* One save; *staged_s: when training could have gone on. */
static dt_status save(dt_world *world, job *j, dt_module *model, dt_optim *optim, bool async)
{
    const bool first = dt_world_rank(world) == 0;
    const dt_checkpoint_options o = {.keep = 1, .async = async};
    dt_checkpoint *c = NULL;
    DT_TRY(dt_checkpoint_open(world, j->dir, &o, &c));
    DT_TRY(dt_world_agree_sync(world, DT_OK)); /* all begin */
    const double since_s = now_s();
    DT_TRY(dt_checkpoint_save(c, model, optim, &(dt_checkpoint_state){.step = async}));
    const double staged_s = now_s() - since_s;
    DT_TRY(dt_checkpoint_wait(c));
    if (first)
        keep_best(async ? &j->staged_s : &j->save_s, async ? staged_s : now_s() - since_s);
    dt_checkpoint_close(&c);
    return DT_OK;
}

static dt_status load(dt_world *world, job *j, dt_module *model, dt_optim *optim)
{
    dt_checkpoint *c = NULL;
    dt_checkpoint_state state;
    bool found = false;
    DT_TRY(dt_checkpoint_open(world, j->dir, NULL, &c));
    const double since_s = now_s();
    DT_TRY(dt_checkpoint_load(c, -1, model, optim, &state, &found));
    if (dt_world_rank(world) == 0)
        keep_best(&j->load_s, now_s() - since_s);
    dt_checkpoint_close(&c);
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    job *j = arg;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_optim *optim = NULL;
    dt_compute_threads_set(1);
    DT_TRY(make(world, j, &mesh, &model, &optim));
    dt_heap_reset_peaks(dt_mesh_heap(mesh));
    const int64_t held = dt_heap_get_stats(dt_mesh_heap(mesh)).live_total;
    const bool first = dt_world_rank(world) == 0;
    if (first) {
        j->bytes = dt_module_count(model) * 3 * (int64_t)sizeof(float);
        j->held = held;
    }
    for (int i = 0; i < ROUNDS; i++) {
        DT_TRY(dt_world_agree_sync(world, first ? run_dd(j) : DT_OK));
        DT_TRY(save(world, j, model, optim, false));
        if (first && i == 0)
            j->staging = dt_heap_get_stats(dt_mesh_heap(mesh)).peak_total - held;
        DT_TRY(save(world, j, model, optim, true));
        DT_TRY(load(world, j, model, optim));
    }
    dt_optim_destroy(&optim);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    const char *base = argc > 2 ? argv[2] : getenv("TMPDIR");
    job j = {.layers = (argc > 1 ? strtoll(argv[1], NULL, 10) : 300) * (1 << 20) / 40000000};
    j.layers = j.layers > 0 ? j.layers : 1;
    (void)snprintf(j.dir, sizeof j.dir, "%s/dt_bench_XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(j.dir)) {
        perror(j.dir);
        return EXIT_FAILURE;
    }
    DT_MUST(dt_world_run_threads(2, NULL, body, &j));
    const double mb = (double)j.bytes / 1e6;
    printf("%.0f MB on 2 ranks: dd %.0f MB/s, save %.0f MB/s, ratio %.2f\n", mb, mb / j.dd_s,
           mb / j.save_s, j.dd_s / j.save_s);
    printf("async: training waits %.3f s of a save's %.3f s\n", j.staged_s, j.save_s);
    printf("load with checksums: %.0f MB/s\n", mb / j.load_s);
    printf("a rank held %.0f MB; saving took %.0f MB more\n", (double)j.held / 1e6,
           (double)j.staging / 1e6);
    char command[256];
    (void)snprintf(command, sizeof command, "rm -r %s", j.dir);
    return system(command) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
