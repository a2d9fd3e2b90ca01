/* comm/nccl_group_internal.h - what nccl.c and nccl_call.c share. */
#pragma once

#include "comm/nccl_internal.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

enum { DTI_SPARE_EVENTS = 64 };

/* The groups of a communicator: for collectives, and in its ring for messages. */
enum {
    DTI_NCCL_ALL,
    DTI_NCCL_SEND_NEXT,
    DTI_NCCL_FROM_BEFORE,
    DTI_NCCL_SEND_BEFORE,
    DTI_NCCL_FROM_NEXT
};

struct dti_nccl {
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t before;                  /* the compute stream, when a call was issued */
    cudaEvent_t spare[DTI_SPARE_EVENTS]; /* of calls that were waited for */
    int nspare;
    bool aborted;
};
typedef struct dti_nccl dti_nccl;

/* Which group makes a call; -1: none. */
int dti_nccl_group(const dt_comm *comm, const dti_call_options *o);
dt_status dti_nccl_check(const dt_comm *comm, ncclResult_t result, const char *what);
/* Until what was put into the communicator without blocking has been accepted. Blocks. */
dt_status dti_nccl_ready(dt_comm *comm, dti_nccl *g);
