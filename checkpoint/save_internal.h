/* checkpoint/save_internal.h - the parts of a parallel save, in the order in which they act:
 *
 *     plan.c    which tensors there are
 *     lay_out.c where they go in which files, and which rank writes what
 *     stage.c   bring bytes to their writers, round by round, in bounded memory
 *     writer.c  a thread that writes what was staged; it makes no communication
 *     steps.c   folders that appear whole, the link `latest`, old ones
 *     state.c   state.json and its checksums
 *     save.c    a save of all of it */
#pragma once

#include "base/dt_json.h"
#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/dt_checkpoint.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- plan.c ---- */

/* A tensor in files. */
typedef struct dti_item {
    char *name;
    bool optimizer; /* of optimizer-*.safetensors */
    dt_dtype dtype;
    dt_shape shape;
    int64_t file, at; /* which of the plan's, and its first byte there */
    /* what this rank has of it; layout NULL: it is on others */
    const dt_layout *layout;
    dt_array src; /* borrowed; cast to dtype on its way */
} dti_item;

typedef struct dti_out_file {
    char name[64];
    char *header; /* length, JSON, spaces */
    size_t header_bytes;
    int64_t bytes; /* of the whole file */
} dti_out_file;

/* Elements [lo, hi) of an item in file order: what one rank writes in one go. */
typedef struct dti_share {
    int64_t item, lo, hi;
    int writer; /* rank of the plan's mesh */
} dti_share;

typedef struct dti_plan {
    dt_world *world;
    dti_item *item; /* of all ranks, in natural order of (optimizer, name): alike on any mesh */
    int64_t nitems, item_capacity;
    dti_out_file *file;
    int64_t nfiles, file_capacity;
    dt_mesh *mesh;    /* of the items that are here; NULL: none are */
    dti_share *share; /* of that mesh's ranks, by writer */
    int64_t *first;   /* writer w has share[first[w]] .. share[first[w + 1]] */
} dti_plan;

typedef struct dti_plan_options {
    dt_dtype dtype;      /* of parameters in files */
    int64_t file_bytes;  /* more than one tensor in a file only up to this */
    int64_t piece_bytes; /* a tensor is cut for several writers only into pieces of so many */
    bool plain;          /* one file is model.safetensors, without an index */
} dti_plan_options;

/* Collective. optim NULL: parameters only. */
DT_NODISCARD dt_status dti_plan_create(dt_world *world, dt_module *module, dt_optim *optim,
                                       const dti_plan_options *options, dti_plan **plan_out);
void dti_plan_destroy(dti_plan **plan); /* accepts NULL inside */
/* lay_out.c: its files, of the list; its shares, of the files. */
DT_NODISCARD dt_status dti_plan_files(dti_plan *plan, const dti_plan_options *options);
DT_NODISCARD dt_status dti_plan_shares(dti_plan *plan, int64_t piece_bytes);
/* The text of an index file; NULL: memory is out. free() it. */
char *dti_plan_index(const dti_plan *plan, bool optimizer);
/* The bytes of all ranks, one rank's after the other's; free() both. Collective: the world. */
DT_NODISCARD dt_status dti_gather_bytes(dt_world *world, const void *mine, size_t bytes,
                                        char **all_out, int64_t **counts_out);

/* ---- disk.c: system calls on the way to the disk, with the faults that tests inject ---- */

/* DT_FAULT=checkpoint_kill:N[@RANK]: the process ends (SIGKILL) at the Nth such call, in the middle
 * of a write. checkpoint_full:N[@RANK]: writes fail from the Nth call on, as on a full disk. */
typedef struct dti_disk {
    atomic_llong calls;
    int64_t kill_at, full_at; /* 0: never */
} dti_disk;

DT_NODISCARD dt_status dti_disk_write(dti_disk *disk, int fd, const char *path, const void *data,
                                      int64_t bytes, int64_t offset);
DT_NODISCARD dt_status dti_disk_sync(dti_disk *disk, int fd, const char *path);
DT_NODISCARD dt_status dti_disk_sync_folder(dti_disk *disk, const char *folder);
/* The folder, and parents that are not there; they stay after a failure. */
DT_NODISCARD dt_status dti_disk_make_folders(dti_disk *disk, const char *path);
DT_NODISCARD dt_status dti_disk_rename(dti_disk *disk, const char *from, const char *to);
/* Put a new file there, synced. */
DT_NODISCARD dt_status dti_disk_put(dti_disk *disk, const char *folder, const char *name,
                                    const void *data, size_t bytes);
/* No calls yet; faults from the world's. */
dti_disk dti_disk_of(const dt_world *world);
/* "folder/name"; NULL: memory is out. */
char *dti_path(const char *folder, const char *name);

/* ---- writer.c ---- */

/* Bytes [offset, offset + bytes) of a file and their hash. */
typedef struct dti_sum {
    int64_t file, offset, bytes;
    uint64_t hash; /* XXH3, 64 bits */
} dti_sum;

typedef struct dti_write {
    int64_t file, offset, bytes; /* in the file */
    int64_t at;                  /* in the buffer */
    bool first, last;            /* of its dti_share */
} dti_write;

typedef struct dti_buffer {
    dt_array bytes; /* U8 */
    dti_write *write;
    int64_t n, capacity;
} dti_buffer;

typedef struct dti_writer dti_writer;
DT_NODISCARD dt_status dti_writer_create(dt_heap *heap, dti_disk *disk, dti_writer **writer_out);
void dti_writer_destroy(dti_writer **writer); /* accepts NULL inside; waits for the thread */
/* Start on the plan's files in `folder`, of which `mine` are written here; they exist. At least
 * nbuffers of buffer_bytes each are there after that; they are kept for the next save. */
DT_NODISCARD dt_status dti_writer_begin(dti_writer *w, const dti_plan *plan, const char *folder,
                                        int nbuffers, int64_t buffer_bytes);
/* A free buffer; waits for one. Then hand it over. */
dti_buffer *dti_writer_take(dti_writer *w);
void dti_writer_put(dti_writer *w);
/* Nothing follows: sync and close. */
void dti_writer_end(dti_writer *w);
bool dti_writer_is_done(dti_writer *w);
/* Wait for the thread; its first failure. Sums are the writer's, until the next begin. */
DT_NODISCARD dt_status dti_writer_join(dti_writer *w, const dti_sum **sums_out, int64_t *n_out);

/* ---- stage.c ---- */

/* dti_stage - every rank's bytes to their writers and into the buffers of `w`.
 * Collective: the world, one all-to-all a round. On failure of one rank all go on to the end. */
DT_NODISCARD dt_status dti_stage(const dti_plan *plan, int64_t round_bytes, dti_writer *w);
/* Bytes that this rank writes, with their padding in buffers. */
int64_t dti_stage_bytes(const dti_plan *plan);

/* ---- steps.c: a folder of steps ---- */

enum { DTI_STEP_NAME = 40 };
const char *dti_step_name(int64_t step, char name[DTI_STEP_NAME]);
/* Finished steps, oldest first; free() it. */
DT_NODISCARD dt_status dti_steps_list(const char *folder, int64_t **step_out, int64_t *n_out);
/* The folder for this process alone, until the file is closed or the process ends; *lock_out -1
 * where nothing can be written, or a file system has no locks. Errors: DT_ERR_STATE names the other
 * process. */
DT_NODISCARD dt_status dti_steps_lock(const char *folder, int *lock_out);
/* What saves that were killed have left. */
void dti_steps_clean(const char *folder);
void dti_remove_tree(const char *path);
/* A folder gets the name of its step, durably; then `latest` names it. */
DT_NODISCARD dt_status dti_step_publish(dti_disk *disk, const char *folder, int64_t step,
                                        const char *path);
/* Steps up to `newest`, but not the last `keep` of them; those in `bad` do not count. Later steps,
 * of a run that went back to an earlier one, stay. Failures are left for the next time. */
void dti_steps_purge(const char *folder, int64_t newest, int keep, const int64_t *bad,
                     int64_t nbad);

/* ---- state.c ---- */

typedef struct dti_state {
    dt_checkpoint_state is;
    int64_t optimizer_steps;
    bool model_only;
    char mesh[DT_MESH_TEXT];
} dti_state;

/* A file of a step and the parts whose sums are known. */
typedef struct dti_summed {
    const char *name;
    int64_t bytes;
    const dti_sum *sum;
    int64_t nsums;
} dti_summed;

DT_NODISCARD dt_status dti_state_put(dti_disk *disk, const char *folder, const dti_state *state,
                                     const dti_summed *file, int64_t nfiles);
/* Read and check state.json; `files`, its list of files, is the caller's (json_decref). */
DT_NODISCARD dt_status dti_state_read(const char *folder, dti_state *state_out, json_t **files_out);
/* Compare checksums: part `rank` of `nranks`; sizes all. Errors: DT_ERR_FORMAT names the file. */
DT_NODISCARD dt_status dti_state_verify(const char *folder, json_t *files, int rank, int nranks);

/* ---- save.c: one save ---- */

#define DTI_FILE_BYTES  INT64_C(5000000000) /* as Hugging Face's */
#define DTI_PIECE_BYTES (INT64_C(4) << 20)

typedef struct dti_save_options {
    dti_plan_options plan;
    const char *config_path; /* NULL: none */
    int64_t staging_bytes;   /* as dt_checkpoint_options has it */
    bool async;
} dti_save_options;

/* A file that world rank 0 wrote in one go. */
enum { DTI_MAX_SMALL = 3 };
typedef struct dti_small {
    const char *name;
    dti_sum sum;
} dti_small;

typedef struct dti_save {
    dt_world *world;
    dti_disk *disk;
    dti_writer *writer;
    char *path;     /* of the new folder */
    dti_plan *plan; /* from begin to the end of the save */
    dti_small small[DTI_MAX_SMALL];
    int nsmall;
} dti_save;

/* Both collective, with alike outcomes on all ranks; a failure has abandoned the save.
 * begin: all is staged. join: all is written and synced, but the folder itself. */
DT_NODISCARD dt_status dti_save_begin(dti_save *s, dt_module *module, dt_optim *optim,
                                      const dti_save_options *options);
DT_NODISCARD dt_status dti_save_join(dti_save *s, const dti_sum **sums_out, int64_t *n_out);
/* Rank-local. Removes the folder. */
void dti_save_abandon(dti_save *s);
