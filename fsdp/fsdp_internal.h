/* fsdp/fsdp_internal.h - groups and what they share.
 *
 *     dti_fsdp   one for all groups below the outermost call: order of events, what is in flight
 *       dti_group   one a call: parameters that are gathered and reduced together */
#pragma once

#include "fsdp/dt_fsdp.h"

typedef struct dti_fsdp dti_fsdp;

typedef enum dti_state {
    DTI_SHARDED,
    DTI_GATHERING, /* g->gather is in flight */
    DTI_UNSHARDED,
    DTI_GROUPED /* DT_RESHARD_GROUP: between forward and backward a larger shard is kept in member.kept */
} dti_state;

/* One parameter of a group. */
typedef struct dti_member {
    dt_param *param;
    const dt_layout *use;  /* layout of what ops see */
    bool alias;            /* nothing to gather and nothing to cast: ops see the parameter itself */
    dt_local kept;         /* DTI_GROUPED: its part, laid out on the group's view of the mesh */
    const dt_layout *use_view, *kept_view; /* on that view */
    dt_tensor *sum; /* carries the gradient in reduce_dtype where that is not param_dtype; NULL: not needed yet */
} dti_member;

typedef struct dti_group {
    dti_fsdp *fsdp;
    dt_module **modules; /* of the call; the first one's path names the group */
    int nmodules, hooked; /* hooked: modules that still point here */
    dt_mesh *mesh;
    dt_fsdp_options options;
    uint8_t shard_axes, replicate_axes; /* bits */
    bool is_root, grad_sync, reshard_after_backward;
    int n;
    dti_member *member;
    dti_state state;
    dt_moving *gather;
    dt_local *gathered; /* room for the results of `gather` ... */
    int gathering;      /* ... of so many members; 0: nothing to gather or cast */
    dt_moving *reduce;
    int *reducing;      /* members under reduction, nreducing of them */
    int nreducing;
} dti_group;

struct dti_fsdp {
    dti_group **group;
    int64_t ngroups, group_capacity;
    /* The order in which groups ran forward on the first tape, with multiplicity. */
    int *order;
    int64_t norder, order_capacity;
    bool order_known;
    int64_t at; /* position in `order` of the pass now under way: the next one forward, the last one backward */
    dti_group *in_flight; /* the one whose reduction has not been finished */
};

enum { DTI_GATHER_CHANNEL = 1, DTI_REDUCE_CHANNEL = 2 };

/* fsdp/group.c: what hooks of one module hold of a group. */
void dti_fsdp_group_release(void *arg);

/* fsdp/gather.c */
dt_status dti_fsdp_unshard_begin(dti_group *g);
dt_status dti_fsdp_unshard(dti_group *g); /* begin where needed, and finish */
dt_status dti_fsdp_reshard(dti_group *g, bool after_forward);

/* fsdp/reduce.c */
dt_status dti_fsdp_reduce_begin(dti_group *g, bool replicas);
dt_status dti_fsdp_reduce_finish(dti_group *g);
/* With sync off: gradients stay, in reduce_dtype. */
dt_status dti_fsdp_reduce_hold(dti_group *g);

/* fsdp/hooks.c */
extern const dt_sharder dti_fsdp_sharder;
dt_status dti_fsdp_install_hooks(dti_group *g);
/* An event for traces: kind "fsdp", name "gather model.layers.0". */
void dti_fsdp_event(const dti_group *g, const char *what);
