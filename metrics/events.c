/* metrics/events.c - TensorBoard's event files. A file is a series of records:
 *
 *     u64 length  u32 crc(length)  bytes[length]  u32 crc(bytes)         little-endian
 *
 * crc is CRC-32C, turned right by 15 bits, plus 0xa282ead8. The bytes are a protocol buffer:
 *
 *     Event    1 wall_time double   2 step varint   3 file_version text   5 summary Summary
 *     Summary  1 value Value, repeated              Value  1 tag text   2 simple_value float
 *
 * Sources: tensorflow/core/util/event.proto, summary.proto; lib/io/record_writer.cc. */
#include "metrics/dt_metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TAG = 200 };

struct dt_events {
    char *path;
    FILE *file;
};

/* A record as it grows; a failure to grow stays in st. */
typedef struct buffer {
    uint8_t *byte;
    int64_t n, capacity;
    dt_status st;
} buffer;

static void put(buffer *b, const void *bytes, size_t n)
{
    if (b->st == DT_OK)
        b->st = dt_grow((void **)&b->byte, &b->capacity, b->n + (int64_t)n, 1);
    if (b->st != DT_OK)
        return;
    memcpy(b->byte + b->n, bytes, n);
    b->n += (int64_t)n;
}

static void put_varint(buffer *b, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        put(b, &(uint8_t){(uint8_t)(value | 128)}, 1);
    put(b, &(uint8_t){(uint8_t)value}, 1);
}

/* A field's number and kind: 0 varint, 1 eight bytes, 2 a length and bytes, 5 four bytes. */
static void put_key(buffer *b, unsigned field, unsigned kind)
{
    put_varint(b, field << 3 | kind);
}

static void put_bytes(buffer *b, unsigned field, const void *bytes, size_t n)
{
    put_key(b, field, 2);
    put_varint(b, n);
    put(b, bytes, n);
}

/* ---- records ---- */

static uint32_t masked_crc(const uint8_t *bytes, int64_t n)
{
    uint32_t crc = UINT32_MAX;
    for (int64_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static dt_status write_record(dt_events *e, const buffer *b)
{
    DT_TRY(b->st);
    const uint64_t length = (uint64_t)b->n;
    uint8_t head[sizeof length];
    memcpy(head, &length, sizeof head);
    const uint32_t crc[2] = {masked_crc(head, sizeof head), masked_crc(b->byte, b->n)};
    const bool good = fwrite(head, sizeof head, 1, e->file) == 1 &&
                      fwrite(&crc[0], sizeof *crc, 1, e->file) == 1 &&
                      fwrite(b->byte, length, 1, e->file) == 1 &&
                      fwrite(&crc[1], sizeof *crc, 1, e->file) == 1 && fflush(e->file) == 0;
    DT_REQUIRE(good, DT_ERR_IO, "%s: %s", e->path, strerror(errno));
    return DT_OK;
}

static buffer begin(void)
{
    buffer b = {0};
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    const double wall_time_s = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    put_key(&b, 1, 1);
    put(&b, &wall_time_s, sizeof wall_time_s);
    return b;
}

/* ---- files ---- */

static dt_status start_file(dt_events *e, const char *folder)
{
    static const char version[] = "brain.Event:2";
    DT_REQUIRE(mkdir(folder, 0777) == 0 || errno == EEXIST, DT_ERR_IO, "%s: %s", folder,
               strerror(errno));
    DT_REQUIRE(asprintf(&e->path, "%s/events.out.tfevents.%010lld.dtensor.%ld", folder,
                        (long long)time(NULL), (long)getpid()) > 0,
               DT_ERR_NOMEM, "a path");
    e->file = fopen(e->path, "abe");
    DT_REQUIRE(e->file, DT_ERR_IO, "%s: %s", e->path, strerror(errno));
    buffer b = begin();
    put_bytes(&b, 3, version, sizeof version - 1);
    const dt_status st = write_record(e, &b);
    free(b.byte);
    return st;
}

dt_status dt_events_open(const char *folder, dt_events **events_out)
{
    dt_events *e = calloc(1, sizeof *e);
    DT_REQUIRE(e, DT_ERR_NOMEM, "an event file");
    const dt_status st = start_file(e, folder);
    if (st != DT_OK)
        dt_events_close(&e);
    else
        *events_out = e;
    return st;
}

dt_status dt_events_scalars(dt_events *e, int64_t step, int n, const char *const *tags,
                            const double *values)
{
    buffer all = begin(), summary = {0};
    put_key(&all, 2, 0);
    put_varint(&all, (uint64_t)step);
    for (int i = 0; i < n; i++) {
        buffer one = {0};
        const float value = (float)values[i];
        put_bytes(&one, 1, tags[i], strnlen(tags[i], MOST_TAG));
        put_key(&one, 2, 5);
        put(&one, &value, sizeof value);
        put_bytes(&summary, 1, one.byte, (size_t)one.n);
        summary.st = one.st != DT_OK ? one.st : summary.st;
        free(one.byte);
    }
    put_bytes(&all, 5, summary.byte, (size_t)summary.n);
    all.st = summary.st != DT_OK ? summary.st : all.st;
    const dt_status st = write_record(e, &all);
    free(summary.byte);
    free(all.byte);
    return st;
}

void dt_events_close(dt_events **events)
{
    dt_events *e = *events;
    if (!e)
        return;
    if (e->file)
        (void)fclose(e->file);
    free(e->path);
    free(e);
    *events = NULL;
}
