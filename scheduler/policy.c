/* policy.c - who is admitted next.
 * fcfs: the queue's order; the head is never overtaken, so nothing starves.  Other orders have their place here: they choose among waiting
 * groups and change nothing else. */
#include "scheduler/scheduler_private.h"

/* A choice's siblings compute the same prompt: they wait until the first one has put it into the tree. */
static bool waits_for_sibling(const sched *s, const group *g, const seq *q)
{
    if (q->choice == 0 || !s->tree) return false;
    const seq *first = &g->seqs[q->index - q->choice];
    return first->finish == SCHED_RUNNING && first->n_computed < first->n_target;
}

seq *sched__policy_next(sched *s)
{
    group *g = s->queue_head;
    if (!g) return NULL;
    seq *q = &g->seqs[g->n_seqs - g->n_waiting];
    return waits_for_sibling(s, g, q) ? NULL : q;
}
