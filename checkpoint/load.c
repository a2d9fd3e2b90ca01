/* checkpoint/load.c - choosing a step, checking it, and reading it into a model on any mesh. */
#include "checkpoint/steps_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- which steps, in which order ---- */

dt_status dt_checkpoint_count(dt_checkpoint *c, int64_t *n_out)
{
    dt_world *world = c->save.world;
    int64_t *list = NULL, n = 0;
    DT_TRY(dt_checkpoint_wait(c));
    DT_TRY(dt_world_agree_sync(world, dt_world_rank(world) == 0 ? dti_steps_list(c->dir, &list, &n)
                                                                : DT_OK));
    free(list);
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(world), &n, 1, DT_REDUCE_MAX));
    *n_out = n;
    return DT_OK;
}

/* Where the link `latest` points to, or -1. */
static int64_t linked(const char *dir, const int64_t *step, int64_t n)
{
    char target[DTI_STEP_NAME] = "", name[DTI_STEP_NAME];
    char *link = dti_path(dir, "latest");
    if (link && readlink(link, target, sizeof target - 1) < 0)
        target[0] = '\0';
    free(link);
    for (int64_t i = 0; i < n; i++)
        if (strcmp(target, dti_step_name(step[i], name)) == 0)
            return i;
    return -1;
}

static void swap(int64_t *a, int64_t *b)
{
    const int64_t t = *a;
    *a = *b;
    *b = t;
}

static void reverse(int64_t *step, int64_t n)
{
    for (int64_t i = 0; i < n / 2; i++)
        swap(&step[i], &step[n - 1 - i]);
}

/* What `latest` names and what is older, newest first; then what is newer. */
static dt_status candidates(const char *dir, int64_t **step_out, int64_t *n_out)
{
    DT_TRY(dti_steps_list(dir, step_out, n_out));
    const int64_t at = linked(dir, *step_out, *n_out);
    const int64_t old = at < 0 ? *n_out : at + 1;
    reverse(*step_out, old);
    reverse(*step_out + old, *n_out - old);
    return DT_OK;
}

/* ---- one of them ---- */

/* Collective. All ranks together compare the checksums. */
static dt_status check_step(dt_checkpoint *c, const char *folder, dti_state *state)
{
    json_t *files = NULL;
    dt_world *world = c->save.world;
    dt_status st = dti_state_read(folder, state, &files);
    st = dt_world_agree_sync(world, st);
    if (st == DT_OK)
        st = dt_world_agree_sync(
            world, dti_state_verify(folder, files, dt_world_rank(world), dt_world_size(world)));
    json_decref(files);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

/* The first line of the trace, or as much as fits. */
static void pass_over(dt_checkpoint *c, int64_t step, const char *why)
{
    char line[1024];
    (void)snprintf(line, sizeof line, "%s: step %lld is passed over: %.*s", c->dir, (long long)step,
                   (int)strcspn(why, "\n"), why);
    if (c->say && dt_world_rank(c->save.world) == 0)
        c->say(c->say_arg, line);
}

typedef struct chosen {
    int64_t step; /* -1: there is none */
    char *folder;
    dti_state state;
} chosen;

static dt_status try_step(dt_checkpoint *c, int64_t step, bool need_optimizer, chosen *out)
{
    char name[DTI_STEP_NAME];
    char *folder = dti_path(c->dir, dti_step_name(step, name));
    DT_REQUIRE(folder, DT_ERR_NOMEM, "%s", c->dir);
    dt_status st = check_step(c, folder, &out->state);
    if (st == DT_OK && need_optimizer && out->state.model_only)
        st =
            DT_ERROR(DT_ERR_STATE, "%s: a save of the model only, without optimizer state", folder);
    if (st != DT_OK) {
        free(folder);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    out->step = step;
    out->folder = folder;
    return DT_OK;
}

/* World rank 0's list of candidates, one after the other. */
static dt_status choose(dt_checkpoint *c, bool need_optimizer, chosen *out)
{
    dt_world *world = c->save.world;
    const bool first = dt_world_rank(world) == 0;
    int64_t *list = NULL, n = 0;
    dt_status st = DT_OK, why = DT_OK;
    DT_TRY(dt_world_agree_sync(world, first ? candidates(c->dir, &list, &n) : DT_OK));
    for (int64_t i = 0; out->step < 0; i++) {
        int64_t step = i < n ? list[i] : -1;
        DT_TRY_TO(done, st, dt_all_reduce_i64_sync(dt_world_comm(world), &step, 1, DT_REDUCE_MAX));
        if (step < 0)
            break;
        why = try_step(c, step, need_optimizer, out);
        if (why == DT_OK)
            break;
        if (why != DT_ERR_IO && why != DT_ERR_FORMAT && why != DT_ERR_STATE)
            DT_TRY_TO(done, st, why); /* not the step's fault */
        pass_over(c, step, dt_error_trace());
        DT_TRY_TO(done, st,
                  dt_grow((void **)&c->bad, &c->bad_capacity, c->nbad + 1, sizeof *c->bad));
        if (why != DT_ERR_STATE)
            c->bad[c->nbad++] = step;
    }
    if (why != DT_OK)
        st = DT_ERROR(why, "%s: there are steps, but none of them can be used", c->dir);
done:
    free(list);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

/* ---- reading it ---- */

/* `to` may rest in a file. */
static dt_status read_into(dt_safetensors *st, const dt_safetensors_entry *e, dt_shape shape,
                           const int64_t *at, dt_array *to)
{
    DT_TRY(dt_storage_open(to->storage));
    dt_status result = dt_safetensors_read(st, e, shape, at, to);
    if (result == DT_OK)
        result = dt_storage_put(to->storage);
    dt_storage_close(to->storage);
    return result;
}

static dt_status cast_into(dt_array *to, dt_array *from)
{
    DT_TRY(dt_storage_open(from->storage));
    dt_status st = dt_storage_open(to->storage);
    if (st == DT_OK) {
        dt_array_cast(to, from);
        st = dt_storage_put(to->storage);
        dt_storage_close(to->storage);
    }
    dt_storage_close(from->storage);
    return st;
}

static dt_status read_part(dt_safetensors *st, const dt_param *p, const char *suffix, bool must,
                           dt_array *to, bool *found_out)
{
    char *name = NULL;
    int64_t at[DT_MAX_DIMS];
    DT_REQUIRE(asprintf(&name, "%s%s", p->name, suffix) >= 0, DT_ERR_NOMEM, "%s", p->name);
    const dt_safetensors_entry *e = dt_safetensors_find(st, name);
    (void)dt_mesh_local(dt_tensor_layout(p->tensor), at);
    dt_status result = DT_OK;
    if (e)
        result = read_into(st, e, p->shape, at, to);
    else if (must)
        result = DT_ERROR(DT_ERR_FORMAT, "%s: no tensor '%s'", st->file[0].path, name);
    free(name);
    if (result != DT_OK)
        return dt_error_push(result, __FILE__, __LINE__, __func__);
    *found_out = e != NULL;
    return DT_OK;
}

/* What the optimizer has of one parameter; its exact value, if model files round it. */
static dt_status read_state(dt_safetensors *model, dt_safetensors *st, dt_param *p,
                            dt_optim_state *s)
{
    bool found = false;
    dt_array *local = dt_tensor_local(p->tensor);
    const bool master = s && s->master.storage;
    DT_TRY(read_part(st, p, ".master", false, master ? &s->master : local, &found));
    if (master && !found)
        DT_TRY(read_part(model, p, "", true, &s->master, &found));
    if (master)
        DT_TRY(cast_into(local, &s->master));
    if (s) {
        DT_TRY(read_part(st, p, ".exp_avg", true, &s->exp_avg, &found));
        DT_TRY(read_part(st, p, ".exp_avg_sq", true, &s->exp_avg_sq, &found));
    }
    return DT_OK;
}

static dt_status read_step(const char *folder, dt_module *m, dt_optim *optim, bool model_only)
{
    dt_safetensors *model = NULL, *states = NULL;
    char *index = dti_path(folder, "optimizer.safetensors.index.json");
    DT_REQUIRE(index, DT_ERR_NOMEM, "%s", folder);
    dt_status st = DT_OK;
    int n = 0, nstates = 0, at = 0;
    dt_optim_state *state = optim ? dt_optim_states(optim, &nstates) : NULL;
    dt_param *const *p = dt_module_params(m, &n);
    DT_TRY_TO(done, st, dt_safetensors_open(folder, &model));
    DT_TRY_TO(done, st, dt_module_load_from(m, model));
    if (!model_only)
        DT_TRY_TO(done, st, dt_safetensors_open(index, &states));
    for (int i = 0; states && i < n; i++) {
        const bool has = at < nstates && state[at].param == p[i];
        DT_TRY_TO(done, st, read_state(model, states, p[i], has ? &state[at++] : NULL));
    }
done:
    dt_safetensors_close(&model);
    dt_safetensors_close(&states);
    free(index);
    return st;
}

dt_status dt_checkpoint_load(dt_checkpoint *c, int64_t step, dt_module *module, dt_optim *optim,
                             dt_checkpoint_state *state_out, bool *found_out)
{
    chosen it = {.step = -1};
    DT_TRY(dt_checkpoint_wait(c));
    if (step < 0)
        DT_TRY(choose(c, optim != NULL, &it));
    else
        DT_TRY(try_step(c, step, optim != NULL, &it));
    *found_out = it.step >= 0;
    if (!*found_out)
        return DT_OK;
    const dt_status st = dt_world_agree_sync(
        c->save.world, read_step(it.folder, module, optim, it.state.model_only));
    free(it.folder);
    DT_TRY(st);
    if (optim)
        dt_optim_set_steps(optim, it.state.optimizer_steps);
    *state_out = it.state.is;
    return DT_OK;
}
