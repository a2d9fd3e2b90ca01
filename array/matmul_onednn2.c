/* array/matmul_onednn2.c - a product described to oneDNN 2.x. Read first: array/matmul_onednn.c. */
#include "array/onednn_internal.h"

dnnl_status_t dti_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1);
}

dnnl_status_t dti_product_create(dnnl_engine_t engine, const dti_operand operand[3],
                                 const_dnnl_primitive_attr_t attr, dti_product *product_out)
{
    dnnl_memory_desc_t md[3];
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_memory_t memory[3] = {NULL};
    dnnl_status_t st = dnnl_success;
    for (int i = 0; i < 3 && st == dnnl_success; i++)
        st = dnnl_memory_desc_init_by_strides(&md[i], 2, operand[i].dims, operand[i].type,
                                              operand[i].strides);
    if (st == dnnl_success)
        st = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]);
    if (st == dnnl_success)
        st = dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL);
    if (st == dnnl_success)
        st = dnnl_primitive_create(&primitive, pd);
    for (int i = 0; i < 3 && st == dnnl_success; i++)
        st = dnnl_memory_create(&memory[i], &md[i], engine, DNNL_MEMORY_NONE);
    dnnl_primitive_desc_destroy(pd);
    if (st == dnnl_success) {
        *product_out = (dti_product){primitive, memory[0], memory[1], memory[2]};
        return st;
    }
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(memory[i]);
    dnnl_primitive_destroy(primitive);
    return st;
}
