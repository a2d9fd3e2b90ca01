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

const char *dt_metrics_line(const dt_metrics *m, char *buf, size_t size_bytes)
{
    char rate[DT_METRICS_TEXT], memory[DT_METRICS_TEXT], comm[DT_METRICS_TEXT];
    char left[DT_METRICS_TEXT], mfu[DT_METRICS_TEXT] = "", eta[DT_METRICS_TEXT + 8] = "";
    char eval[DT_METRICS_TEXT] = "";
    if (m->evaluated)
        (void)snprintf(eval, sizeof eval, "  eval %.4f", m->eval_loss);
    if (m->mfu > 0)
        (void)snprintf(mfu, sizeof mfu, "mfu %.1f%%  ", 100 * m->mfu);
    if (m->left_s >= 0)
        (void)snprintf(eta, sizeof eta, "  eta %s", dt_metrics_time(m->left_s, left));
    (void)snprintf(buf, size_bytes,
                   "step %lld/%lld  loss %.4f%s  norm %.2f  lr %.1e  %s tok/s  %smem %s  comm %s%s",
                   (long long)m->step, (long long)m->steps, m->loss, eval, m->grad_norm, m->lr,
                   dt_metrics_count(m->tokens_per_s, rate), mfu,
                   dt_metrics_bytes(m->memory_peak_bytes, memory),
                   dt_metrics_bytes(m->comm_bytes, comm), eta);
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
