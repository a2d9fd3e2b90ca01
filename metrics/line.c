/* metrics/line.c - the step line, and the small texts in it; memory by tag. */
#include "metrics/dt_metrics.h"

#include <math.h>
#include <stdio.h>

const char *dt_metrics_count(double count, char buf[DT_METRICS_TEXT])
{
    static const char *const suffix[] = {"", "k", "M", "G", "T"};
    int i = 0;
    while (count >= 999.95 && i + 1 < DT_COUNT(suffix)) { /* what would print as 1000.0 */
        count /= 1000;
        i++;
    }
    (void)snprintf(buf, DT_METRICS_TEXT, "%.*f%s", i == 0 && count >= 10 ? 0 : 1, count, suffix[i]);
    return buf;
}

const char *dt_metrics_bytes(int64_t bytes, char buf[DT_METRICS_TEXT])
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double count = (double)bytes;
    int i = 0;
    while (count >= 999.5 && i + 1 < DT_COUNT(unit)) {
        count /= 1000;
        i++;
    }
    (void)snprintf(buf, DT_METRICS_TEXT, "%.*f %s", i > 0 && count < 9.95 ? 1 : 0, count, unit[i]);
    return buf;
}

const char *dt_metrics_time(double seconds, char buf[DT_METRICS_TEXT])
{
    if (!(seconds >= 0 && seconds < 1e12)) {
        (void)snprintf(buf, DT_METRICS_TEXT, "?");
        return buf;
    }
    const long long s = llround(seconds), minutes = s / 60, hours = minutes / 60;
    if (hours == 0)
        (void)snprintf(buf, DT_METRICS_TEXT, "%lld:%02lld", minutes, s % 60);
    else if (hours < 24)
        (void)snprintf(buf, DT_METRICS_TEXT, "%lld:%02lld:%02lld", hours, minutes % 60, s % 60);
    else
        (void)snprintf(buf, DT_METRICS_TEXT, "%lldd %02lld:%02lld", hours / 24, hours % 24,
                       minutes % 60);
    return buf;
}

double dt_metrics_left(int64_t done, int64_t total, double elapsed_s)
{
    return done > 0 ? elapsed_s / (double)done * (double)(total - done) : -1;
}

/* The parts of the line in order; dropped: how many of the least wanted are left out. */
static int join(const dt_metrics *m, int dropped, char *buf, size_t size_bytes)
{
    enum { NORM, LR, RATE, MFU, MEMORY, COMM, ETA, PARTS };
    static const int least_wanted[] = {COMM, MEMORY, LR, MFU, NORM};
    char part[PARTS][DT_METRICS_TEXT + 12] = {""}, text[DT_METRICS_TEXT], eval[32] = "";
    if (m->evaluated)
        (void)snprintf(eval, sizeof eval, "  eval %.4f", m->eval_loss);
    (void)snprintf(part[NORM], sizeof part[0], "  norm %.2f", m->grad_norm);
    (void)snprintf(part[LR], sizeof part[0], "  lr %.1e", m->lr);
    (void)snprintf(part[RATE], sizeof part[0], "  %s tok/s",
                   dt_metrics_count(m->tokens_per_s, text));
    if (m->mfu > 0 && m->mfu < 1)
        (void)snprintf(part[MFU], sizeof part[0], "  mfu %.1f%%", 100 * m->mfu);
    (void)snprintf(part[MEMORY], sizeof part[0], "  mem %s",
                   dt_metrics_bytes(m->memory_peak_bytes, text));
    (void)snprintf(part[COMM], sizeof part[0], "  comm %s", dt_metrics_bytes(m->comm_bytes, text));
    if (m->left_s >= 0)
        (void)snprintf(part[ETA], sizeof part[0], "  eta %s", dt_metrics_time(m->left_s, text));
    for (int i = 0; i < dropped && i < DT_COUNT(least_wanted); i++)
        part[least_wanted[i]][0] = '\0';
    return snprintf(buf, size_bytes, "step %lld/%lld  loss %.4f%s%s%s%s%s%s%s%s",
                    (long long)m->step, (long long)m->steps, m->loss, eval, part[NORM], part[LR],
                    part[RATE], part[MFU], part[MEMORY], part[COMM], part[ETA]);
}

const char *dt_metrics_line(const dt_metrics *m, int columns, char *buf, size_t size_bytes)
{
    enum { DROPPABLE = 5 };
    int dropped = 0;
    while (join(m, dropped, buf, size_bytes) > columns && columns > 0 && dropped < DROPPABLE)
        dropped++;
    if (columns > 0 && (size_t)columns < size_bytes)
        buf[columns] = '\0';
    return buf;
}

void dt_memory_print(const dt_heap *heap, void (*print)(void *arg, const char *line), void *arg)
{
    const dt_heap_stats s = dt_heap_get_stats(heap);
    char line[128];
    for (int tag = 0; tag <= DT_NTAGS; tag++) {
        const bool total = tag == DT_NTAGS;
        if (!total && s.peak[tag] == 0)
            continue;
        (void)snprintf(line, sizeof line, "%-10s %15lld bytes live %15lld bytes peak",
                       total ? "together" : dt_tag_name((dt_tag)tag),
                       (long long)(total ? s.live_total : s.live[tag]),
                       (long long)(total ? s.peak_total : s.peak[tag]));
        print(arg, line);
    }
}
