/* tools/schedule.c - print, draw, check and time pipeline schedules, by name or from CSV.
 *
 *   build/tools/schedule --schedule=zbv --ranks=4 --microbatches=8
 *   build/tools/schedule --schedule=all --grid=false          a line for each schedule
 *   build/tools/schedule --schedule=mine.csv --svg=mine.svg --cost.transfer=0.1
 *
 * Read next: docs/pipeline.md. */
#include "base/dt_options.h"
#include "pp/dt_schedule.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const dt_option table[] = {
    {"help", DT_OPTION_COMMAND, NULL, "these lines", NULL, 0, 0},
    {"schedule", DT_OPTION_STRING, "1f1b", "a name, a CSV file (.csv), or all", NULL, 0, 0},
    {"ranks", DT_OPTION_INT, "4", "p, for a name", NULL, 1, 4096},
    {"microbatches", DT_OPTION_INT, "8", "m, for a name", NULL, 1, 65536},
    {"stages_per_rank", DT_OPTION_INT, "0", "v, for a name; 0: its own", NULL, 0, 4096},
    {"grid", DT_OPTION_BOOL, "true", "draw as text", NULL, 0, 0},
    {"svg", DT_OPTION_STRING, NULL, "file to draw into", NULL, 0, 0},
    {"csv", DT_OPTION_STRING, NULL, "file to write the schedule into; -: print it", NULL, 0, 0},
    {"lower", DT_OPTION_BOOL, "false", "add sends, receives, reductions", NULL, 0, 0},
    {"unshard", DT_OPTION_INT, "0", "with lower: stages whole at once; 0: no such actions", NULL, 0,
     1024},
    {"cost.f", DT_OPTION_FLOAT, "1", "time of F", NULL, 0, INFINITY},
    {"cost.i", DT_OPTION_FLOAT, "1", "time of I", NULL, 0, INFINITY},
    {"cost.w", DT_OPTION_FLOAT, "1", "time of W", NULL, 0, INFINITY},
    {"cost.b", DT_OPTION_FLOAT, "0", "time of B; 0: I and W together", NULL, 0, INFINITY},
    {"cost.pair", DT_OPTION_FLOAT, "0", "time of a paired F and B; 0: one by one", NULL, 0,
     INFINITY},
    {"cost.transfer", DT_OPTION_FLOAT, "0", "from rank to rank", NULL, 0, INFINITY},
    {"synchronous", DT_OPTION_BOOL, "false", "a lowered schedule's sends wait", NULL, 0, 0},
};

static dt_status open_output(const char *path, FILE **file_out)
{
    *file_out = strcmp(path, "-") == 0 ? stdout : fopen(path, "w");
    DT_REQUIRE(*file_out, DT_ERR_IO, "%s: %s", path, strerror(errno));
    return DT_OK;
}

static dt_status close_output(const char *path, FILE *file)
{
    DT_REQUIRE((file == stdout ? fflush(file) : fclose(file)) == 0, DT_ERR_IO, "%s: %s", path,
               strerror(errno));
    return DT_OK;
}

static void print_times(const char *name, const dt_pp_schedule *s, const dt_pp_timeline *t)
{
    printf("%-16s time %g, peak live", name, t->makespan);
    for (int r = 0; r < s->nranks; r++)
        printf(" %d", t->lane[r].peak_live);
    printf(", idle %.1f %%\n", 100 * dt_pp_idle(t));
}

static dt_status show(const dt_options *o, const char *name, const dt_pp_schedule *s)
{
    const dt_pp_costs costs = {.f = dt_options_float(o, "cost.f"),
                               .i = dt_options_float(o, "cost.i"),
                               .w = dt_options_float(o, "cost.w"),
                               .b = dt_options_float(o, "cost.b"),
                               .pair = dt_options_float(o, "cost.pair"),
                               .transfer = dt_options_float(o, "cost.transfer"),
                               .synchronous = dt_options_bool(o, "synchronous")};
    const char *csv = dt_options_string(o, "csv"), *svg = dt_options_string(o, "svg");
    dt_pp_timeline *timeline = NULL;
    FILE *file = NULL;
    DT_TRY(dt_pp_check(s));
    DT_TRY(dt_pp_simulate(s, &costs, &timeline));
    print_times(name, s, timeline);
    if (dt_options_bool(o, "grid"))
        DT_TRY(dt_pp_draw_text(s, timeline, 0, stdout));
    if (csv) {
        DT_TRY(open_output(csv, &file));
        DT_TRY(dt_pp_schedule_write(s, file));
        DT_TRY(close_output(csv, file));
    }
    if (svg) {
        DT_TRY(open_output(svg, &file));
        DT_TRY(dt_pp_draw_svg(1, &(dt_pp_picture){name, s, timeline}, file));
        DT_TRY(close_output(svg, file));
    }
    dt_pp_timeline_destroy(&timeline);
    return DT_OK;
}

static dt_status show_named(const dt_options *o, const char *name)
{
    dt_pp_schedule *s = NULL, *lowered = NULL;
    const size_t n = strlen(name);
    if (n > 4 && strcmp(name + n - 4, ".csv") == 0)
        DT_TRY(dt_pp_schedule_read(name, &s));
    else
        DT_TRY(dt_pp_schedule_create(name, (int)dt_options_int(o, "ranks"),
                                     (int)dt_options_int(o, "microbatches"),
                                     (int)dt_options_int(o, "stages_per_rank"), &s));
    if (dt_options_bool(o, "lower"))
        DT_TRY(dt_pp_lower(s, (int)dt_options_int(o, "unshard"), &lowered));
    DT_TRY(show(o, name, lowered ? lowered : s));
    dt_pp_schedule_destroy(&lowered);
    dt_pp_schedule_destroy(&s);
    return DT_OK;
}

int main(int argc, char **argv)
{
    dt_options *o = NULL;
    DT_MUST(dt_options_parse(table, DT_COUNT(table), argc, (const char *const *)argv, &o));
    const char *name = dt_options_string(o, "schedule");
    if (dt_options_bool(o, "help")) {
        dt_options_print_help(table, DT_COUNT(table), "schedule [--key=value ...]", stdout);
    } else if (strcmp(name, "all") == 0) {
        /* Those that do not take this p, m and v say so, and the others go on. */
        for (int i = 0; dt_pp_rule_at(i); i++)
            if (show_named(o, dt_pp_rule_at(i)->name) != DT_OK)
                printf("%s\n", dt_error_trace());
    } else {
        DT_MUST(show_named(o, name));
    }
    dt_options_destroy(&o);
    return EXIT_SUCCESS;
}
