/* policy.c - who is admitted next, and whose time is up.
 * fcfs: the queue's order; the head is never overtaken, so nothing starves.  Other orders have their place in sched__policy_next: they choose among
 * waiting groups and change nothing else. */
#include "scheduler/scheduler_private.h"

seq *sched__policy_next(sched *s)
{
    group *g = s->queue_head;
    return g ? &g->seqs[g->n_seqs - g->n_waiting] : NULL;
}

/* ---------------------------------------------------------------- times: a binary heap of groups, the earliest on top */

/* --queue-timeout counts until the first of its sequences is admitted. */
static int64_t due_of(const group *g)
{
    if (g->n_ended == g->n_seqs) return 0;
    int64_t queue = g->n_waiting == g->n_seqs ? g->expires_us : 0;
    if (!queue || !g->deadline_us) return queue + g->deadline_us;
    return queue < g->deadline_us ? queue : g->deadline_us;
}

static void place(sched *s, group *g, int32_t at)
{
    s->timers[at] = g;
    g->timer = at;
}

/* Puts g where it belongs, starting from the free place at. */
static void settle(sched *s, group *g, int32_t at)
{
    for (int32_t up; at > 0 && s->timers[up = (at - 1) / 2]->due_us > g->due_us; at = up)
        place(s, s->timers[up], at);
    for (int32_t down; (down = 2 * at + 1) < s->n_timers; at = down) {
        if (down + 1 < s->n_timers && s->timers[down + 1]->due_us < s->timers[down]->due_us) down++;
        if (s->timers[down]->due_us >= g->due_us) break;
        place(s, s->timers[down], at);
    }
    place(s, g, at);
}

void sched__timer_set(sched *s, group *g)
{
    int64_t due = due_of(g);
    if (g->timer < 0) {
        if (!due) return;
        if (s->n_timers == s->cap_timers) {
            s->cap_timers = 2 * s->cap_timers + 64;
            s->timers = ltd_realloc(s->timers, sizeof *s->timers * (size_t)s->cap_timers);
        }
        g->due_us = due;
        settle(s, g, s->n_timers++);
    } else if (due) {
        g->due_us = due;
        settle(s, g, g->timer);
    } else {
        int32_t at = g->timer;
        group *last = s->timers[--s->n_timers];
        g->timer = -1;
        if (last != g) settle(s, last, at);
    }
}
