/* tests/fuzz/fuzz_encode.c - any text, encoded by the golden tokenizers: back to the same bytes, or
 * an error where it is not UTF-8. */
#include "data/dt_tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dt_tokenizer *opened(const char *name)
{
    dt_tokenizer *t = NULL;
    char path[512];
    const char *folder = getenv("DT_GOLDEN");
    (void)snprintf(path, sizeof path, "%s/tokenizer/%s", folder ? folder : "tests/golden", name);
    DT_MUST(dt_tokenizer_open(path, &t));
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static dt_tokenizer *t[2];
    if (!t[0]) {
        t[0] = opened("gpt2.json");
        t[1] = opened("llama3.json");
    }
    for (int k = 0; k < 2; k++) {
        dt_tokens tokens = {0};
        size_t at = 0, n = 0;
        if (dt_tokenizer_encode(t[k], (const char *)data, size_bytes, &tokens) == DT_OK) {
            for (int64_t i = 0; i < tokens.n; i++, at += n) {
                const char *text = dt_tokenizer_text(t[k], tokens.id[i], &n);
                FUZZ_THAT(text && at + n <= size_bytes && memcmp(data + at, text, n) == 0);
            }
            FUZZ_THAT(at == size_bytes);
        }
        free(tokens.id);
    }
    return 0;
}
