/* dtensor/ops/along.c - what split, concat, slice and select have in common: their rule, and keys
 * of attributes. */
#include "dtensor/ops/ops_internal.h"

dt_status dti_rule_along(dt_rule *r, int dim, bool keep)
{
    char spec[DT_OP_MAX_IN * (DT_MAX_DIMS + 1) + DT_MAX_DIMS + 3], *p = spec;
    dt_layout seen[DT_OP_MAX_IN];
    dt_letters options = {0};
    const int ndim = r->in[0]->shape.ndim;
    DT_REQUIRE(dim >= 0 && dim < ndim, DT_ERR_ARG, "%s: dim %d of a tensor with %d dims", r->name,
               dim, ndim);
    for (int i = 0; i < r->nin; i++) {
        DT_REQUIRE(r->in[i] && r->in[i]->shape.ndim == ndim, DT_ERR_SHAPE,
                   "%s: operand %d must have %d dims, as operand 0", r->name, i, ndim);
        seen[i] = *r->in[i];
        seen[i].shape.dim[dim] = 1;
        options.seen[i] = &seen[i];
        for (int d = 0; d < ndim; d++)
            *p++ = (char)((d == dim ? 'A' : 'a') + d);
        *p++ = i + 1 < r->nin ? '+' : '-';
    }
    *p++ = '>';
    for (int d = 0; d < ndim; d++)
        if (d != dim || keep)
            *p++ = (char)((d == dim ? 'A' : 'a') + d);
    *p = 0;
    return dt_rule_letters(r, spec, &options);
}

/* FNV-1a, then a scramble that spreads short inputs over all bits (splitmix64). */
uint64_t dti_hash(uint64_t hash, const void *bytes, size_t n)
{
    hash ^= 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    return hash ^ (hash >> 27);
}
