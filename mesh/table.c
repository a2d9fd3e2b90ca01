/* mesh/table.c - a hash table from a few 64-bit words to a pointer. Op dispatch looks up a rule in
 * it for every op, so a hit costs one multiply a word, one probe and one comparison. Read next:
 * mesh/layout.c. */
#include "mesh/mesh_internal.h"

#include <stdlib.h>
#include <string.h>

/* A polynomial in an odd constant (2^64 / golden ratio). Multiplication carries upwards only, and
 * pointers differ in their middle bits, so callers use the top bits. */
static uint64_t hash_words(int n, const uint64_t *key)
{
    uint64_t h = (uint64_t)n;
    for (int i = 0; i < n; i++)
        h = (h + key[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return h;
}

static bool same_words(const dti_entry *entry, int n, const uint64_t *key)
{
    uint64_t diff = (uint64_t)(entry->n ^ n);
    for (int i = 0; diff == 0 && i < n; i++)
        diff = entry->key[i] ^ key[i];
    return diff == 0;
}

/* The slot that holds the key, or the free one where it belongs. The table is never full. */
static dti_slot *find(const dti_table *table, uint64_t hash, int n, const uint64_t *key)
{
    const uint64_t mask = (uint64_t)table->capacity - 1;
    for (uint64_t i = hash >> table->shift;; i++) {
        dti_slot *slot = &table->slot[i & mask];
        if (!slot->entry || (slot->hash == hash && same_words(slot->entry, n, key)))
            return slot;
    }
}

void *dti_table_get(const dti_table *table, int n, const uint64_t *key)
{
    if (table->count == 0)
        return NULL;
    const dti_slot *slot = find(table, hash_words(n, key), n, key);
    return slot->entry ? slot->entry->value : NULL;
}

static dt_status double_capacity(dti_table *table)
{
    dti_table bigger = {.shift = table->capacity ? table->shift - 1 : 60};
    bigger.capacity = INT64_C(1) << (64 - bigger.shift);
    bigger.slot = calloc((size_t)bigger.capacity, sizeof *bigger.slot);
    DT_REQUIRE(bigger.slot, DT_ERR_NOMEM, "table of %lld entries", (long long)bigger.capacity);
    bigger.count = table->count;
    for (int64_t i = 0; i < table->capacity; i++) {
        const dti_slot old = table->slot[i];
        if (old.entry)
            *find(&bigger, old.hash, old.entry->n, old.entry->key) = old;
    }
    free(table->slot);
    *table = bigger;
    return DT_OK;
}

dt_status dti_table_put(dti_table *table, int n, const uint64_t *key, void *value)
{
    if (2 * (table->count + 1) > table->capacity)
        DT_TRY(double_capacity(table));
    const uint64_t hash = hash_words(n, key);
    dti_slot *slot = find(table, hash, n, key);
    DT_REQUIRE(!slot->entry, DT_ERR_STATE, "the key of %d words is in the table already", n);
    const size_t key_bytes = (size_t)n * sizeof *key;
    dti_entry *entry = malloc(sizeof *entry + key_bytes);
    DT_REQUIRE(entry, DT_ERR_NOMEM, "entry with a key of %d words", n);
    entry->value = value;
    entry->n = n;
    memcpy(entry->key, key, key_bytes);
    *slot = (dti_slot){hash, entry};
    table->count++;
    return DT_OK;
}

void dti_table_free(dti_table *table, void (*release)(void *value))
{
    for (int64_t i = 0; i < table->capacity; i++) {
        dti_entry *entry = table->slot[i].entry;
        if (entry)
            release(entry->value);
        free(entry);
    }
    free(table->slot);
    *table = (dti_table){0};
}
