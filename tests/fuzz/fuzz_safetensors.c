/* tests/fuzz/fuzz_safetensors.c - a safetensors file: every tensor that is found lies in it. */
#include "checkpoint/dt_safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    dt_safetensors *s = NULL;
    if (dt_safetensors_open(fuzz_file(0, data, size_bytes), &s) == DT_OK) {
        for (int i = 0; i < dt_safetensors_count(s); i++) {
            const dt_safetensors_entry *e = dt_safetensors_get(s, i);
            FUZZ_THAT(e->offset >= 8 && e->bytes >= 0 &&
                      (uint64_t)e->offset + (uint64_t)e->bytes <= size_bytes);
            FUZZ_THAT(dt_safetensors_find(s, e->name) == e);
            FUZZ_THAT(e->dtype == DT_NDTYPES ||
                      dt_shape_count(e->shape) * (int64_t)dt_dtype_size(e->dtype) == e->bytes);
        }
    }
    dt_safetensors_close(&s);
    return 0;
}
