/* tests/fuzz/fuzz_index.c - Megatron's .idx files; the first byte is the size of the .bin file. */
#include "data/data_internal.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    dti_index x = {0};
    if (size_bytes == 0)
        return 0;
    const char *path = fuzz_file(0, data + 1, size_bytes - 1);
    if (dti_index_open(path, "bin", data[0], &x) == DT_OK) {
        for (int64_t i = 0; i < x.documents; i++)
            FUZZ_THAT(dti_index_start(&x, i) >= 0 && dti_index_start(&x, i) <= x.tokens);
        for (int64_t t = 0; t < x.tokens; t++) {
            const int64_t d = dti_index_find(&x, t);
            FUZZ_THAT(dti_index_start(&x, d) <= t && t < dti_index_start(&x, d + 1));
        }
    }
    dti_map_close(&x.map);
    return 0;
}
