/* checkpoint/checkpoint.c - a folder of steps: saves that become steps, and old ones that go.
 * Read first: checkpoint/save.c. Read next: checkpoint/load.c. */
#include "checkpoint/steps_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static dt_status check_options(const dt_checkpoint_options *o)
{
    DT_REQUIRE(dt_dtype_is_float(o->dtype) && o->dtype != DT_F64, DT_ERR_ARG,
               "parameters in files of type %s; legal: f32, bf16, f16", dt_dtype_name(o->dtype));
    DT_REQUIRE(o->keep >= 0 && o->file_bytes >= 0 && o->staging_bytes >= 0 && o->piece_bytes >= 0,
               DT_ERR_ARG,
               "keep %d, file_bytes %lld, staging_bytes %lld, piece_bytes %lld: must be "
               "0 or more",
               o->keep, (long long)o->file_bytes, (long long)o->staging_bytes,
               (long long)o->piece_bytes);
    return DT_OK;
}

static dt_status fill(dt_checkpoint *c, const char *dir, const dt_checkpoint_options *o)
{
    dt_heap *heap = NULL;
    DT_TRY(check_options(o));
    c->dir = strdup(dir);
    c->config_path = o->config_path ? strdup(o->config_path) : NULL;
    DT_REQUIRE(c->dir && (c->config_path || !o->config_path), DT_ERR_NOMEM, "%s", dir);
    DT_TRY(dt_world_heap(c->save.world, (dt_device){DT_CPU, 0}, &heap));
    DT_TRY(dti_writer_create(heap, &c->disk, &c->save.writer));
    if (dt_world_rank(c->save.world) != 0)
        return DT_OK;
    DT_TRY(dti_disk_make_folders(&c->disk, dir));
    DT_TRY(dti_steps_lock(dir, &c->lock));
    dti_steps_clean(dir);
    return DT_OK;
}

dt_status dt_checkpoint_open(dt_world *world, const char *dir, const dt_checkpoint_options *options,
                             dt_checkpoint **checkpoint_out)
{
    const dt_checkpoint_options o = options ? *options : (dt_checkpoint_options){0};
    dt_checkpoint *c = calloc(1, sizeof *c);
    dt_status st = c ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%s", dir);
    if (c) {
        c->disk = dti_disk_of(world);
        c->save = (dti_save){.world = world, .disk = &c->disk};
        c->keep = o.keep;
        c->lock = -1;
        c->say = o.say;
        c->say_arg = o.say_arg;
        c->how = (dti_save_options){
            .plan = {.dtype = o.dtype,
                     .file_bytes = o.file_bytes ? o.file_bytes : DTI_FILE_BYTES,
                     .piece_bytes = o.piece_bytes ? o.piece_bytes : DTI_PIECE_BYTES},
            .staging_bytes = o.staging_bytes,
            .async = o.async};
        st = fill(c, dir, &o);
        c->how.config_path = c->config_path;
    }
    DT_TRY_TO(fail, st, dt_world_agree_sync(world, st));
    *checkpoint_out = c;
    return DT_OK;
fail:
    dt_checkpoint_close(&c);
    return st;
}

void dt_checkpoint_close(dt_checkpoint **checkpoint)
{
    dt_checkpoint *c = *checkpoint;
    if (!c)
        return;
    dti_writer_destroy(&c->save.writer);
    dti_plan_destroy(&c->save.plan);
    if (c->lock >= 0)
        (void)close(c->lock);
    free(c->save.path);
    free(c->config_path);
    free(c->bad);
    free(c->dir);
    free(c);
    *checkpoint = NULL;
}

/* ---- the last part of a save, on world rank 0 ---- */

static int by_place(const void *a, const void *b)
{
    const dti_sum *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Parts of one file: no gap, no overlap, header first. */
static dt_status check_parts(const dti_out_file *f, const dti_summed *s)
{
    int64_t at = 0;
    for (int64_t i = 0; i < s->nsums; i++) {
        DT_REQUIRE(s->sum[i].offset == at, DT_ERR_STATE,
                   "%s: byte %lld was written twice or by nobody", f->name, (long long)at);
        at += s->sum[i].bytes;
    }
    DT_REQUIRE(at == f->bytes, DT_ERR_STATE, "%s: %lld bytes were written, of %lld", f->name,
               (long long)at, (long long)f->bytes);
    return DT_OK;
}

/* sum[0 .. n) of all ranks, and room for a header each. */
static dt_status put_state(dt_checkpoint *c, dti_sum *sum, int64_t n, dti_summed *file)
{
    const dti_plan *p = c->save.plan;
    int64_t nfiles = 0;
    for (int64_t f = 0; f < p->nfiles; f++)
        sum[n++] = (dti_sum){f, 0, (int64_t)p->file[f].header_bytes,
                             XXH3_64bits(p->file[f].header, p->file[f].header_bytes)};
    qsort(sum, (size_t)n, sizeof *sum, by_place);
    for (int64_t i = 0, f = 0; f < p->nfiles; f++) {
        dti_summed *one = &file[nfiles++];
        *one = (dti_summed){.name = p->file[f].name, .bytes = p->file[f].bytes, .sum = &sum[i]};
        for (; i < n && sum[i].file == f; i++)
            one->nsums++;
        DT_TRY(check_parts(&p->file[f], one));
    }
    for (int i = 0; i < c->save.nsmall; i++) {
        const dti_small *s = &c->save.small[i];
        file[nfiles++] = (dti_summed){s->name, s->sum.bytes, &s->sum, 1};
    }
    DT_TRY(dti_state_put(&c->disk, c->save.path, &c->state, file, nfiles));
    return DT_OK;
}

static dt_status publish(dt_checkpoint *c, const char *all, int64_t n)
{
    const int64_t nfiles = c->save.plan->nfiles;
    dti_sum *sum = malloc((size_t)(n + nfiles + 1) * sizeof *sum);
    dti_summed *file = calloc((size_t)(nfiles + DTI_MAX_SMALL), sizeof *file);
    dt_status st = sum && file ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%lld checksums", (long long)n);
    if (st == DT_OK) {
        memcpy(sum, all, (size_t)n * sizeof *sum);
        st = put_state(c, sum, n, file);
    }
    if (st == DT_OK)
        st = dti_disk_sync_folder(&c->disk, c->save.path);
    if (st == DT_OK)
        st = dti_step_publish(&c->disk, c->dir, c->state.is.step, c->save.path);
    free(sum);
    free(file);
    DT_TRY(st);
    dti_steps_purge(c->dir, c->state.is.step, c->keep, c->bad, c->nbad);
    return DT_OK;
}

/* All ranks' threads are done, or waited for. */
static dt_status finish(dt_checkpoint *c)
{
    const dti_sum *mine = NULL;
    int64_t n = 0, total = 0, *counts = NULL;
    char *all = NULL;
    dt_world *world = c->save.world;
    DT_TRY(dti_save_join(&c->save, &mine, &n));
    dt_status st = dti_gather_bytes(world, mine, (size_t)n * sizeof *mine, &all, &counts);
    for (int r = 0; st == DT_OK && r < dt_world_size(world); r++)
        total += counts[r];
    if (st == DT_OK)
        st = dt_world_agree_sync(world, dt_world_rank(world) == 0
                                            ? publish(c, all, total / (int64_t)sizeof(dti_sum))
                                            : DT_OK);
    free(all);
    free(counts);
    if (st != DT_OK)
        dti_save_abandon(&c->save);
    dti_plan_destroy(&c->save.plan);
    DT_TRY(st);
    return DT_OK;
}

/* ---- saving ---- */

dt_status dt_checkpoint_save(dt_checkpoint *c, dt_module *module, dt_optim *optim,
                             const dt_checkpoint_state *state)
{
    char name[DTI_STEP_NAME];
    DT_TRY(dt_checkpoint_wait(c));
    DT_REQUIRE(state->step >= 0, DT_ERR_ARG, "step %lld", (long long)state->step);
    c->state = (dti_state){
        .is = *state, .optimizer_steps = optim ? dt_optim_steps(optim) : 0, .model_only = !optim};
    free(c->save.path);
    if (asprintf(&c->save.path, "%s/%s.tmp", c->dir, dti_step_name(state->step, name)) < 0)
        c->save.path = NULL;
    DT_TRY(dt_world_agree_sync(c->save.world,
                               c->save.path ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%s", c->dir)));
    DT_TRY(dti_save_begin(&c->save, module, optim, &c->how));
    const dt_mesh *mesh = state->mesh ? state->mesh : c->save.plan->mesh;
    if (mesh)
        (void)dt_mesh_print(mesh, c->state.mesh, sizeof c->state.mesh);
    c->state.mesh[strcspn(c->state.mesh, "]") + (c->state.mesh[0] != 0)] = '\0'; /* not the rank */
    if (!c->how.async)
        DT_TRY(finish(c));
    return DT_OK;
}

dt_status dt_checkpoint_wait(dt_checkpoint *c)
{
    if (c->save.plan)
        DT_TRY(finish(c));
    return DT_OK;
}

dt_status dt_checkpoint_poll(dt_checkpoint *c, bool *busy_out)
{
    int64_t busy = 0;
    if (c->save.plan) {
        busy = !dti_writer_is_done(c->save.writer);
        DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(c->save.world), &busy, 1, DT_REDUCE_MAX));
    }
    if (!busy)
        DT_TRY(dt_checkpoint_wait(c));
    *busy_out = busy != 0;
    return DT_OK;
}
