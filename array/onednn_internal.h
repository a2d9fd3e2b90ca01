/* array/onednn_internal.h - what differs between oneDNN 2.x and 3.x: how a product is described. */
#pragma once

#include "array/matmul_internal.h"

#include <dnnl.h>

/* A compiled product and its three memories, whose addresses are set before each run. */
typedef struct dti_product {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
} dti_product;

/* Extents and strides of op(A), op(B) and C as oneDNN's [row, column]. */
typedef struct dti_operand {
    dnnl_dims_t dims, strides;
    dnnl_data_type_t type;
} dti_operand;

/* matmul_onednn2.c, matmul_onednn3.c. attr: NULL, or what else to do. On failure *product_out is
 * untouched. */
dnnl_status_t dti_product_create(dnnl_engine_t engine, const dti_operand operand[3],
                                 const_dnnl_primitive_attr_t attr, dti_product *product_out);
/* The result is added to what C holds. */
dnnl_status_t dti_append_sum(dnnl_post_ops_t ops);
