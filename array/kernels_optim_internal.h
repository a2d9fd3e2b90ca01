/* array/kernels_optim_internal.h - sums of powers, of the CPU's dt_optim_kernels. */
#pragma once

#include "array/dt_kernels_optim.h"

void dti_power_sum(int count, const dt_power_args *list, double power);
