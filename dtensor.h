/* dtensor.h - the whole public interface, lowest layer first; this is also the order to read it in.
 *
 * Programs include this; the library itself never does (tools/check_layers). README.md has a
 * training step, docs/STYLE.md the words and rules used everywhere. */
#pragma once

#include "base/dt_status.h"
#include "base/dt_types.h"
#include "base/dt_json.h"
#include "base/dt_options.h"
#include "base/dt_random.h"
#include "base/dt_trace.h"

#include "placements/dt_layout.h"
#include "placements/dt_plan.h"

#include "array/dt_array.h"
#include "array/dt_half.h"
#include "array/dt_kernels.h"
#include "array/dt_kernels_math.h"
#include "array/dt_kernels_nn.h"
#include "array/dt_kernels_optim.h"
#include "array/dt_matmul.h"
#include "array/dt_store.h"

#include "comm/dt_comm.h"
#include "mesh/dt_mesh.h"

#include "dtensor/dt_tensor.h"
#include "dtensor/dt_tape.h"
#include "dtensor/ops/dt_ops.h"
#include "dtensor/dt_rule.h"
#include "dtensor/dt_op.h"

#include "nn/dt_module.h"
#include "nn/dt_layers.h"
#include "nn/dt_recompute.h"
#include "tp/dt_tp.h"
#include "pp/dt_pipeline.h"
#include "pp/dt_schedule.h"
#include "fsdp/dt_fsdp.h"
#include "optim/dt_optim.h"
#include "optim/dt_scaler.h"
#include "data/dt_data.h"
#include "data/dt_tokenizer.h"
#include "checkpoint/dt_safetensors.h"
#include "checkpoint/dt_checkpoint.h"
#include "metrics/dt_metrics.h"
#include "models/dt_models.h"
