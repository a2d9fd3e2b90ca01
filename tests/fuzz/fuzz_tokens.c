/* tests/fuzz/fuzz_tokens.c - llm.c's token files and labels: the first two bytes choose the batch,
 * the third where labels begin. */
#include "data/dt_data.h"
#include "tests/fuzz/fuzz.h"

enum { MOST = 4096 };

static void read_batch(const dt_dataset *ds, const dt_batch *b)
{
    static int32_t a[MOST], c[MOST];
    if (b->hi * b->seq_len > MOST)
        return;
    if (dt_dataset_batch(ds, b, a, c) == DT_OK)
        for (int64_t i = 0; i < b->hi * b->seq_len; i++)
            FUZZ_THAT(a[i] >= 0 && a[i] < 300 &&
                      (c[i] == DT_LABEL_IGNORED || (c[i] >= 0 && c[i] < 300)));
    if (dt_dataset_documents(ds, b, a, c) == DT_OK)
        for (int64_t i = 0; i < b->hi * b->seq_len; i++)
            FUZZ_THAT(a[i] >= 0 && a[i] < b->seq_len && c[i] >= 0 && c[i] < b->seq_len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    dt_dataset *ds = NULL;
    if (size_bytes < 3)
        return 0;
    const size_t rest = size_bytes - 3, cut = rest - rest * data[2] / 256;
    const dt_dataset_options o = {.format = data[0] & 1 ? DT_DATA_TOKENS : DT_DATA_AUTO,
                                  .vocab = 300,
                                  .labels_path =
                                      data[0] & 2 ? fuzz_file(1, data + 3 + cut, rest - cut) : NULL,
                                  .shuffle = data[0] & 4,
                                  .held_out = data[0] & 8 ? 0.25 : 0,
                                  .evaluation = data[0] & 16,
                                  .documents = true,
                                  .has_end_token = true,
                                  .end_token = 7};
    if (dt_dataset_open(fuzz_file(0, data + 3, cut), &o, &ds) == DT_OK) {
        const dt_batch b = {data[1], 1 + data[1] % 3, 1 + data[1] / 3, 0, 1 + data[1] % 3};
        read_batch(ds, &b);
    }
    dt_dataset_close(&ds);
    return 0;
}
