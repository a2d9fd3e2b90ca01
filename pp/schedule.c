/* pp/schedule.c - actions and schedules as text. Read next: pp/generate.c. */
#include "pp/pp_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KINDS_TEXT "F, I, W, B, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD"
#define OVERLAP    "OVERLAP_F_B"

enum { MOST = 65535 }; /* largest stage or microbatch that is read */

static const char *const kinds[] = {
#define X(name) #name,
    DT_PP_KIND_TABLE(X)
#undef X
};

static bool whole_stage(dt_pp_kind kind)
{
    return kind >= DT_PP_UNSHARD;
}

const char *dt_pp_action_print(dt_pp_action a, char *buf, size_t size_bytes)
{
    if (whole_stage(a.kind))
        (void)snprintf(buf, size_bytes, "%d%s", a.stage, kinds[a.kind]);
    else
        (void)snprintf(buf, size_bytes, "%d%s%d", a.stage, kinds[a.kind], a.microbatch);
    return buf;
}

/* Digits at *text, which moves past them; -1 if there are none or they are over MOST. */
static int number(const char **text)
{
    const size_t digits = strspn(*text, "0123456789");
    const long n = digits > 0 && digits <= 5 ? strtol(*text, NULL, 10) : MOST + 1L;
    *text += digits;
    return n <= MOST ? (int)n : -1;
}

dt_status dt_pp_action_parse(const char *text, dt_pp_action *action_out)
{
    const char *at = text;
    const int stage = number(&at);
    const size_t length = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    for (int k = 0; stage >= 0 && k < DT_PP_NKINDS; k++) {
        if (strlen(kinds[k]) != length || strncmp(kinds[k], at, length) != 0)
            continue;
        at += length;
        const int microbatch = whole_stage((dt_pp_kind)k) ? -1 : number(&at);
        if (*at || (microbatch < 0 && !whole_stage((dt_pp_kind)k)))
            break;
        *action_out = (dt_pp_action){(dt_pp_kind)k, stage, microbatch, false};
        return DT_OK;
    }
    return DT_ERROR(
        DT_ERR_FORMAT,
        "'%.60s' is no action; legal: stage, kind and microbatch as in 2F0 (stage alone "
        "as in 1UNSHARD), numbers up to %d, kinds " KINDS_TEXT,
        text, MOST);
}

dt_status dti_pp_push(dt_pp_row *row, dt_pp_action action)
{
    DT_TRY(dt_grow((void **)&row->action, &row->capacity, row->count + 1, sizeof *row->action));
    row->action[row->count++] = action;
    return DT_OK;
}

dt_status dti_pp_schedule_new(int nranks, int nstages, int nmicrobatches, int64_t capacity,
                              dt_pp_schedule **schedule_out)
{
    dt_status st = DT_ERR_NOMEM;
    dt_pp_schedule *s = calloc(1, sizeof *s);
    if (s)
        *s = (dt_pp_schedule){nranks, nstages, nmicrobatches,
                              calloc((size_t)nranks, sizeof *s->row)};
    if (!s || !s->row) {
        free(s);
        return DT_ERROR(DT_ERR_NOMEM, "a schedule of %d ranks", nranks);
    }
    for (int r = 0; r < nranks; r++)
        DT_TRY_TO(fail, st,
                  dt_grow((void **)&s->row[r].action, &s->row[r].capacity, capacity,
                          sizeof *s->row[r].action));
    *schedule_out = s;
    return DT_OK;
fail:
    dt_pp_schedule_destroy(&s);
    return st;
}

void dt_pp_schedule_destroy(dt_pp_schedule **schedule)
{
    dt_pp_schedule *s = *schedule;
    for (int r = 0; s && r < s->nranks; r++)
        free(s->row[r].action);
    if (s)
        free(s->row);
    free(s);
    *schedule = NULL;
}

/* One cell: nothing, an action, or a pair. */
static dt_status parse_cell(const char *cell, dt_pp_row *row)
{
    dt_pp_action first, second;
    char text[2 * DT_PP_ACTION_TEXT];
    if (!*cell)
        return DT_OK;
    if (*cell != '(') {
        DT_TRY(dt_pp_action_parse(cell, &first));
        return dti_pp_push(row, first);
    }
    const char *middle = strchr(cell, ';'), *close = strchr(cell, ')');
    DT_REQUIRE(middle && close && middle < close && strcmp(close + 1, OVERLAP) == 0 &&
                   (size_t)(close - cell) < sizeof text,
               DT_ERR_FORMAT, "'%.60s' is no pair; legal: (0F5;7B3)" OVERLAP, cell);
    (void)snprintf(text, sizeof text, "%.*s", (int)(middle - cell) - 1, cell + 1);
    DT_TRY(dt_pp_action_parse(text, &first));
    (void)snprintf(text, sizeof text, "%.*s", (int)(close - middle) - 1, middle + 1);
    DT_TRY(dt_pp_action_parse(text, &second));
    first.paired = true;
    DT_TRY(dti_pp_push(row, first));
    return dti_pp_push(row, second);
}

static dt_status parse_line(char *line, const char *where, int number_of_line, dt_pp_row *row)
{
    int cell = 0;
    for (char *at = line, *next = line; next; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = 0;
        cell++;
        at += strspn(at, " \t\r");
        for (size_t n = strlen(at); n > 0 && strchr(" \t\r", at[n - 1]); n--)
            at[n - 1] = 0;
        if (parse_cell(at, row) != DT_OK)
            return DT_ERROR(DT_ERR_FORMAT, "%s:%d: cell %d: '%.60s' is not an action", where,
                            number_of_line, cell, at);
    }
    return DT_OK;
}

/* Stages and microbatches are as many as the actions speak of. */
static void count_stages(dt_pp_schedule *s)
{
    s->nstages = s->nmicrobatches = 0;
    for (int r = 0; r < s->nranks; r++) {
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const dt_pp_action a = s->row[r].action[i];
            s->nstages = a.stage >= s->nstages ? a.stage + 1 : s->nstages;
            s->nmicrobatches =
                a.microbatch >= s->nmicrobatches ? a.microbatch + 1 : s->nmicrobatches;
        }
    }
}

dt_status dt_pp_schedule_parse(const char *text, const char *where, dt_pp_schedule **schedule_out)
{
    dt_status st = DT_OK;
    dt_pp_schedule *s = NULL;
    int nlines = 0;
    for (const char *at = text; *at; nlines++) {
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    DT_REQUIRE(nlines > 0, DT_ERR_FORMAT, "%s: empty; a schedule has a line for each rank", where);
    char *copy = strdup(text);
    DT_REQUIRE(copy, DT_ERR_NOMEM, "%zu bytes of %s", strlen(text), where);
    DT_TRY_TO(done, st, dti_pp_schedule_new(nlines, 0, 0, 0, &s));
    char *line = copy;
    for (int r = 0; r < nlines; r++) {
        char *end = line + strcspn(line, "\n");
        char *const next = *end ? end + 1 : end;
        *end = 0;
        DT_TRY_TO(done, st, parse_line(line, where, r + 1, &s->row[r]));
        line = next;
    }
    count_stages(s);
    *schedule_out = s;
    s = NULL;
done:
    dt_pp_schedule_destroy(&s);
    free(copy);
    return st;
}

dt_status dt_pp_schedule_read(const char *path, dt_pp_schedule **schedule_out)
{
    FILE *file = fopen(path, "rb");
    DT_REQUIRE(file, DT_ERR_IO, "%s: %s", path, strerror(errno));
    char *text = NULL;
    size_t room = 0;
    /* No byte of a schedule is 0, so this reads all of it. */
    const ssize_t size = getdelim(&text, &room, 0, file);
    const bool failed = ferror(file) != 0;
    (void)fclose(file);
    dt_status st = DT_OK;
    if (failed)
        st = DT_ERROR(DT_ERR_IO, "%s: cannot be read", path);
    else if (size >= 0 && strlen(text) != (size_t)size)
        st = DT_ERROR(DT_ERR_FORMAT, "%s: a byte 0 after %zu bytes", path, strlen(text));
    else
        st = dt_pp_schedule_parse(size < 0 ? "" : text, path, schedule_out);
    free(text);
    return st;
}

dt_status dt_pp_schedule_write(const dt_pp_schedule *s, FILE *out)
{
    char text[DT_PP_ACTION_TEXT];
    for (int r = 0; r < s->nranks; r++) {
        bool second = false; /* of a pair */
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const dt_pp_action a = s->row[r].action[i];
            (void)fprintf(out, "%s%s%s%s", second ? ";" : (i > 0 ? "," : ""), a.paired ? "(" : "",
                          dt_pp_action_print(a, text, sizeof text), second ? ")" OVERLAP : "");
            second = a.paired;
        }
        (void)fputc('\n', out);
    }
    DT_REQUIRE(!ferror(out), DT_ERR_IO, "the schedule could not be written");
    return DT_OK;
}

int dti_pp_neighbour(const dt_pp_schedule *s, dt_pp_action a)
{
    const bool before = a.kind == DT_PP_F || a.kind == DT_PP_RECV_F || a.kind == DT_PP_SEND_B;
    const int stage = before ? a.stage - 1 : a.stage + 1;
    return stage < s->nstages ? stage : -1;
}

dt_status dti_pp_owners(const dt_pp_schedule *s, int **owner_out)
{
    const size_t cells = (size_t)dti_pp_cell(s, s->nstages, 0);
    int *owner = malloc((cells + 1) * sizeof *owner);
    DT_REQUIRE(owner, DT_ERR_NOMEM, "%zu cells", cells);
    memset(owner, -1, cells * sizeof *owner);
    for (int r = 0; r < s->nranks; r++) {
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const dt_pp_action a = s->row[r].action[i];
            if (a.kind == DT_PP_F)
                owner[dti_pp_cell(s, a.stage, a.microbatch)] = r;
        }
    }
    *owner_out = owner;
    return DT_OK;
}
