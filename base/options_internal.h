/* base/options_internal.h - what options.c and options_print.c share. */
#pragma once

#include "base/dt_options.h"

/* Where a value came from, the weaker first. */
typedef enum dti_source { DTI_DEFAULT, DTI_FILE, DTI_COMMAND_LINE } dti_source;

/* Arrays have one entry a line of the table. Values are kept as the text that was checked when it
 * came in; getters convert it again. */
struct dt_options {
    const dt_option *table;
    int count;
    char **value; /* NULL: no value */
    dti_source *source;
    bool *in_file;
};

typedef struct dti_number {
    int64_t integer; /* INT, SIZE; BOOL and COMMAND as 0 or 1 */
    double real;     /* FLOAT */
} dti_number;

/* False if `text` is no value of `type`. Any text is a STRING. */
bool dti_option_convert(dt_option_type type, const char *text, dti_number *number_out);

/* Line of the table, or -1. */
int dti_option_find(const dt_options *options, const char *key);
