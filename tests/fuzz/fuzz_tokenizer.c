/* tests/fuzz/fuzz_tokenizer.c - any tokenizer.json, and what it makes of a text. */
#include "data/dt_tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static const char text[] = "a bab 12<e>'s \xc3\xa9\n\n  x";
    dt_tokenizer *t = NULL;
    dt_tokens tokens = {0};
    if (dt_tokenizer_open(fuzz_file(0, data, size_bytes), &t) == DT_OK &&
        dt_tokenizer_encode(t, text, sizeof text - 1, &tokens) == DT_OK) {
        size_t all = 0, n = 0;
        for (int64_t i = 0; i < tokens.n; i++, all += n)
            FUZZ_THAT(dt_tokenizer_text(t, tokens.id[i], &n) != NULL);
        FUZZ_THAT(all == sizeof text - 1);
    }
    free(tokens.id);
    dt_tokenizer_close(&t);
    return 0;
}
