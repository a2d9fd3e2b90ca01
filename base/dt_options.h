/* base/dt_options.h - the options of a program, from one table: parsing, help and printing read it.
 *
 *     prog [CONFIG.json] [--key=value | --key value | --flag] ...
 *
 * Keys are dotted; in CONFIG.json the dots are nested objects, and null means "not given". The
 * command line wins over the file, and its last mention of a key over earlier ones. Read next:
 * base/options.c. */
#pragma once

#include "base/dt_types.h"

#include <stdio.h>

typedef enum dt_option_type {
    DT_OPTION_INT,
    DT_OPTION_FLOAT,
    DT_OPTION_BOOL, /* true or false; on the command line --key alone means true */
    DT_OPTION_STRING,
    DT_OPTION_SIZE,   /* bytes: 4096; 64K, 64KiB (K M G T of 1024); 64KB, 64MB (of 1000) */
    DT_OPTION_COMMAND /* a bool of the command line only, no part of the configuration: --help */
} dt_option_type;

/* A line of the table. Tables are static and outlive the options read by them. Keys of one group
 * (the part before the first dot) stand together. */
typedef struct dt_option {
    const char *key; /* "train.seq_len" */
    dt_option_type type;
    const char *fallback; /* default as text; NULL: no value unless set */
    const char *help;
    const char *legal; /* STRING: "none|linear", in any case, kept as written here; NULL: any */
    double min, max;   /* INT, FLOAT, SIZE: checked where min < max; max may be INFINITY */
} dt_option;

typedef struct dt_options dt_options;

/* Letters to insert, delete or replace between two texts, each counted by its first 96 bytes: for
 * messages that name the nearest. */
int dt_text_distance(const char *a, const char *b);

/* dt_options_parse - read argv (argv[0] is skipped) by a table of `count` lines.
 * Errors: DT_ERR_ARG: unknown key (with the nearest legal one), a value of the wrong type or range
 * (with what is legal), a key without a value, a model's config.json (it has "model_type") in place
 * of CONFIG.json; what dt_json_load says of the file. */
DT_NODISCARD dt_status dt_options_parse(const dt_option *table, int count, int argc,
                                        const char *const *argv, dt_options **options_out);
void dt_options_destroy(dt_options **options);

/* The value of a key of the table, of that type, that has a value; all else is the program's
 * mistake and fails an assert. Only a string without a value may be asked for: it is NULL. Strings
 * belong to the options. dt_options_bool also reads commands, which are false by default. */
int64_t dt_options_int(const dt_options *options, const char *key);
double dt_options_float(const dt_options *options, const char *key);
bool dt_options_bool(const dt_options *options, const char *key);
const char *dt_options_string(const dt_options *options, const char *key);
int64_t dt_options_size(const dt_options *options, const char *key);

/* Did the user give it (file or command line)? Does it have a value (given or by default)? */
bool dt_options_is_set(const dt_options *options, const char *key);
bool dt_options_has(const dt_options *options, const char *key);

/* Every key with its type, default and help, group by group; those without a group
 * together, where the last of them stands. usage: what follows "usage: ", such as
 * "train [CONFIG.json] [--key=value ...]". */
void dt_options_print_help(const dt_option *table, int count, const char *usage, FILE *out);

/* The values as nested JSON, which the same program reads back as CONFIG.json to the same values.
 * Keys without a value are left out. Errors: DT_ERR_IO. */
DT_NODISCARD dt_status dt_options_print_config(const dt_options *options, FILE *out);
