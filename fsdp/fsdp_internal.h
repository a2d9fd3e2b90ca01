/* fsdp/fsdp_internal.h - groups and what they share.
 *
 *     dti_fsdp   one for all groups at and below the outermost call: order, what is in flight
 *       dti_group   one a call: parameters that are gathered and reduced together */
#pragma once

#include "fsdp/dt_fsdp.h"

typedef struct dti_fsdp dti_fsdp;

typedef enum dti_state {
    DTI_SHARDED,
    DTI_GATHERING, /* in flight, or done and not yet waited for */
    DTI_UNSHARDED,
    DTI_GROUPED /* DT_RESHARD_GROUP: between forward and backward member.kept is a larger shard */
} dti_state;

/* One parameter of a group. */
typedef struct dti_member {
    dt_param *param;
    const dt_layout *before; /* its layout before the call; NULL: none */
    const dt_layout *use;    /* layout of what ops see */
    dt_dtype use_dtype, sum_dtype;
    bool alias;    /* nothing to gather and nothing to cast: ops see the parameter itself */
    bool open;     /* options.store: the shard is in memory */
    dt_local kept; /* DTI_GROUPED: its part, laid out on the group's view of the mesh */
    const dt_layout *use_view, *kept_view; /* on that view */
    /* carries the gradient in sum_dtype where that is not use_dtype; NULL: not needed yet */
    dt_tensor *sum;
} dti_member;

typedef struct dti_group {
    dti_fsdp *fsdp;
    dt_module **modules;  /* of the call; the first one's path names the group */
    int nmodules, hooked; /* hooked: modules that still point here */
    dt_mesh *mesh;
    dt_fsdp_options options;
    uint8_t shard_axes, replicate_axes; /* bits */
    bool is_root, grad_sync, reshard_after_backward;
    int n, nmoving; /* nmoving: members that are no alias, or rest elsewhere */
    dti_member *member;
    dti_state state;
    bool reading; /* DTI_SHARDED, options.store: shards come from there, ahead of their gather */
    dt_moving *gather;
    dt_local *gathered; /* room for the results of `gather`, gathering of them */
    int gathering;
    dt_moving *reduce; /* over shards, then over replicas if that is due after every backward */
    bool all_replicas, at_replicas; /* it is due; it is under way */
    bool forget;                    /* gradients were cleared since `reduce` began */
    int *reducing;                  /* members under reduction, nreducing of them */
    int nreducing;
    bool pretends; /* dry run: has gradients */
    /* Groups that the user wants gathered ahead of this one's forward [0] and backward [1]; n -1:
     * by the order. */
    struct {
        int n;
        struct dti_group **group;
    } ahead[2];
} dti_group;

struct dti_fsdp {
    dti_group **group;
    int64_t ngroups, group_capacity;
    /* One forward of the root, as the first one went: i: a pass of group[i] began; ~i: it ended. */
    int *pass;
    int64_t npasses, pass_capacity;
    bool recording, known, checked;
    int64_t at; /* position in `pass` of the pass that began last, forward or backward */
    /* Groups whose gradients are under way: over shards, and the one before over replicas. */
    dti_group *at_shards, *at_replicas;
    /* Not NULL: a dry run. Events are printed, states change, nothing else happens. */
    void (*print)(void *arg, const char *line);
    void *print_arg;
};

enum { DTI_GATHER_CHANNEL = 1, DTI_REDUCE_CHANNEL = 2 };

/* fsdp/group.c */
void dti_fsdp_group_release(void *arg); /* what hooks of one module hold of a group */

/* fsdp/root.c */
const char *dti_fsdp_name(const dti_group *g);
/* Before the first forward: one root over all groups of the model. */
dt_status dti_fsdp_check_root(dti_group *g);

/* fsdp/gather.c */
dt_status dti_fsdp_announce(dti_group *g); /* what ops see exists from now on */
dt_status dti_fsdp_unshard_begin(dti_group *g);
dt_status dti_fsdp_unshard(dti_group *g); /* begin where needed, and finish */
dt_status dti_fsdp_reshard(dti_group *g, bool after_forward);
/* options.store: begin to read the shards that will be gathered next. */
dt_status dti_fsdp_read(dti_group *g);

/* fsdp/reduce.c */
dt_status dti_fsdp_reduce_begin(dti_group *g);
/* Finish what is under way and begin what comes next: replicas, or delivery to the parameters. */
dt_status dti_fsdp_reduce_next(dti_group *g);
dt_status dti_fsdp_reduce_finish(dti_group *g);
/* With sync off: gradients stay where they arose, in sum_dtype. */
dt_status dti_fsdp_reduce_hold(dti_group *g);
void dti_fsdp_reduce_clear(dti_group *g); /* forget them */

/* fsdp/order.c: what happens when a pass begins and ends. */
dt_status dti_fsdp_forward_begins(dti_group *g);
dt_status dti_fsdp_forward_ends(dti_group *g, bool no_grad);
dt_status dti_fsdp_backward_begins(dti_group *g);
/* last: no earlier call of the group is on the tape. */
dt_status dti_fsdp_backward_ends(dti_group *g, bool last);
dt_status dti_fsdp_step_ends(dti_group *g);
/* An event for traces: kind "fsdp", name "gather model.layers.0". */
void dti_fsdp_event(const dti_group *g, const char *what);

/* fsdp/user.c */
extern const dt_sharder dti_fsdp_sharder;
/* fsdp/hooks.c */
dt_status dti_fsdp_install_hooks(dti_group *g);
