/* sched_rig.h - a scheduler on the fake model and the BYTE tokenizer, driven by hand on a clock of its own or by its
 * thread, with everything that it says written down and checked against the contract of sched_event:
 * whole characters only, no empty event but the last (or one with tokens), one last event a sequence, one group_done. */
#ifndef LTD_TESTS_SCHED_RIG_H
#define LTD_TESTS_SCHED_RIG_H

#include <pthread.h>

#include "scheduler/scheduler.h"
#include "tests/support/fake_model.h"

typedef struct rig_seq {
    ltd_buf text;
    ltd_buf frames; /* each event's text followed by '|' */
    int32_t *ids;   /* tokens listed */
    float *logprobs;
    int32_t n_ids, cap_ids;
    float *scores;  /* scores[i] is of position i + 1 */
    int32_t n_scores, cap_scores;
    int32_t n_events;
    sched_event last; /* its last event; pointers in it are void */
} rig_seq;

typedef struct rig_group {
    int32_t n_seqs;
    rig_seq *seqs;
    bool done;
} rig_group;

typedef struct rig {
    fake_config fake;
    sched_options o;
    model *m;
    tok *t;
    sched *s;
    int64_t now_us;
    pthread_mutex_t lock; /* groups, for runs with the thread */
    pthread_cond_t ended;
    rig_group *groups;    /* [id] */
    int64_t n_groups;
    int64_t n_done;
    void (*on_event)(void *user, const sched_event *ev); /* before it is written down */
    void *user;
} rig;

/* 16 running, 64 queued, chunks of 32, everything on, checks after every step; n_slots of the fake's pool. */
sched_options rig_options(void);
/* fake and o may be NULL. */
void rig_open(rig *g, const fake_config *fake, const sched_options *o);
void rig_close(rig *g); /* checks that nothing is left, and that every slot is back */

/* One prompt, n 1, greedy, no log-probabilities; prompts point to *ids and *n. */
sched_request rig_request(const int32_t *const *ids, const int32_t *n, int32_t max_tokens);
uint64_t rig_submit(rig *g, const sched_request *r); /* must be taken */
uint64_t rig_ask(rig *g, const char *prompt, int32_t max_tokens, const char *stop); /* bytes as ids; stop may be NULL */

ltd_status rig_step(rig *g); /* one turn, a millisecond after the last */
void rig_run(rig *g);        /* turns until there is nothing to do; dies after very many */
rig_seq *rig_of(rig *g, uint64_t group, int32_t seq);
bool rig_ended(rig *g, uint64_t group); /* also with the thread */
void rig_idle(rig *g);       /* nothing runs or waits, nothing is locked, free + cached == total */
void rig_wait(rig *g, int64_t n_done); /* with the thread: until so many groups have ended */
void rig_text(rig *g, uint64_t group, int32_t seq, const char *text, sched_finish finish); /* asserts */

/* What a greedy request must give for one of its prompts: tokens of the fake's function, then the stop rules, one token at a time. */
typedef struct rig_expect {
    int32_t ids[4096];
    int32_t n; /* completion_tokens */
    ltd_buf text;
    sched_finish finish;
} rig_expect;
void rig_expected(rig *g, const sched_request *r, int32_t prompt, rig_expect *e); /* e->text: ltd_buf_deinit */

#endif
