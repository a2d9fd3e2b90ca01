/* comm/nccl_group_internal.h - what nccl.c and nccl_call.c share. */
#pragma once

#include "comm/nccl_internal.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

enum { DTI_SPARE_EVENTS = 64 };

struct dti_nccl {
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t before;                  /* the compute stream, when a call was issued */
    cudaEvent_t spare[DTI_SPARE_EVENTS]; /* of calls that were waited for */
    int nspare;
    bool aborted;
};
typedef struct dti_nccl dti_nccl;

dt_status dti_nccl_check(const dt_comm *comm, ncclResult_t result, const char *what);
/* Until what was put into the communicator without blocking has been accepted. Blocks. */
dt_status dti_nccl_ready(dt_comm *comm, dti_nccl *g);
