/* scheduler_private.h - groups, sequences, steps in flight: what the files of scheduler/ share.
 *
 *   submit ──> queue (groups, in order) ──> admitted ──> begun: prompt rows, then generated rows ──> ended ──> released
 *                                              │ a row of the request table, a lock on the tree, room reserved for all that it may need
 *
 * A sequence's positions, left to right:
 *     [0, path.n_tokens)            slots of the tree, under the sequence's lock
 *     [path.n_tokens, n_slots)      slots of its own (its private tail)
 *     [0, n_computed)               positions whose row has been launched: n_computed == n_slots between steps
 *                                   (until it begins: what it matched; the row of the table is not written yet)
 *     [0, n_tokens)                 tokens that the host knows; with a step in flight one more may be on the device only
 * Everything here belongs to the engine's thread, but for struct mailbox. */
#ifndef LTD_SCHEDULER_PRIVATE_H
#define LTD_SCHEDULER_PRIVATE_H

#include <pthread.h>

#include "mempool/mempool.h"
#include "radix/radix.h"
#include "scheduler/scheduler.h"

typedef struct group group;
typedef struct seq seq;

/* ---------------------------------------------------------------- output (output.c) */
/* A token waiting for its text to be released. */
typedef struct held_token {
    int32_t id;
    float logprob;
    int64_t end;            /* length of the sequence's text up to and with this token, unfinished bytes included */
    int32_t top_ids[KERN_MAX_TOP_LOGPROBS];
    float top_logprobs[KERN_MAX_TOP_LOGPROBS];
} held_token;

typedef struct seq_output {
    tok_stream stream;
    ltd_buf text;           /* produced but not released; starts at text_at */
    int64_t text_at;        /* bytes released so far */
    held_token *held;       /* where log-probabilities were asked for */
    int32_t n_held, cap_held;
    sched_token *tokens;    /* scratch of an event */
    int32_t cap_tokens;
} seq_output;

/* ---------------------------------------------------------------- sequences and groups (request.c) */
struct seq {
    group *g;
    int32_t index;          /* prompt * n + choice */
    int32_t choice;
    seq *prev, *next;       /* the running list, in order of admission */
    int32_t *tokens;        /* prompt, then output; room for n_prompt + max_out */
    int32_t n_prompt, n_tokens;
    int32_t max_out;        /* max_tokens, cut to the context and the pool */
    int32_t n_target;       /* prompt rows to compute: all, or all but the last where nothing is drawn */
    bool scores;            /* delivers its prompt's log-probabilities */
    kern_sample_params params;
    /* running */
    int32_t req_row;        /* -1 = none: waiting, or released */
    int32_t n_slots;        /* positions that have a slot in the row */
    int32_t n_computed;     /* positions launched */
    int32_t n_drawn;        /* output tokens launched: n_prompt + n_drawn is the first position without a token */
    int32_t n_cached;       /* matched when it began */
    int32_t in_flight;      /* launched steps that name it and are not applied */
    bool begun;             /* it has had its first row */
    bool absorb;            /* its prompt rows go down the absorbed path (--absorb-extend) */
    bool poisoned;          /* no finite logit: its rows must not be found by others */
    radix_path path;
    sched_finish finish;
    int32_t stop_id, stop_string;
    int64_t admitted_us, first_token_us;
    seq_output out;
};

struct group {
    uint64_t id;
    group *hash_next;
    group *prev, *next;     /* the queue, while some sequence waits */
    bool queued;
    int32_t timer;          /* place in sched.timers, -1 = none */
    int64_t due_us;
    int32_t n_seqs, n, n_waiting, n_ended, n_released;
    seq *seqs;              /* those not admitted yet: seqs[n_seqs - n_waiting ..] */
    int64_t submitted_us, deadline_us, expires_us; /* expires: --queue-timeout; 0 = none */
    int32_t n_logprobs, n_prompt_logprobs;
    bool ignore_eos, skip_special, include_stop;
    char *stops[SCHED_MAX_STOPS];
    size_t stop_lens[SCHED_MAX_STOPS], longest_stop;
    int32_t n_stops;
    int32_t stop_ids[SCHED_MAX_STOP_IDS];
    int32_t n_stop_ids;
    uint64_t salt[2];
    char label[64];
};

/* ---------------------------------------------------------------- steps in flight (batch.c) */
typedef struct step_entry { /* a sequence's part of a step */
    seq *q;
    int32_t first_sample, n_samples; /* scored rows, then the drawn one */
    int32_t score_pos;               /* position that the first scored sample is of */
    int32_t n_rows;
    bool draws;
} step_entry;

typedef struct step {
    int64_t number;
    step_entry *entries; /* [max_running] */
    int32_t n_entries;
} step;

/* A prompt's share of a step. */
typedef struct prompt_share { seq *q; int32_t want, rows, order; } prompt_share;

/* A duplicate slot: given back once every step launched before its row was rewritten is applied. */
typedef struct dup_slot { int32_t slot; int64_t after; } dup_slot;

/* ---------------------------------------------------------------- commands (engine.c) */
typedef enum command_kind { CMD_SUBMIT, CMD_CANCEL, CMD_DEBUG } command_kind;
typedef struct command {
    struct command *next;
    command_kind kind;
    group *g;               /* SUBMIT */
    uint64_t id;            /* CANCEL */
    sched_cancel_reason why;
    sched_debug_op op;      /* DEBUG: lives on the caller's stack, who waits for done */
    int64_t arg;
    ltd_buf *text;
    ltd_status result;
    bool done;
} command;

/* What other threads touch, all under lock. */
typedef struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived, answered;
    command *head, **tail;
    uint64_t next_id;
    int32_t n_waiting;      /* groups with a sequence that waits */
    bool draining, stop, faulted;
    bool running;           /* the engine thread exists */
    bool ended;             /* and takes no more commands */
    sched_stats stats;      /* published after each step */
} mailbox;

enum { GROUP_BUCKETS = 4096 };

struct sched {
    sched_options o;
    model *m;
    const model_info *mi;
    const tok *t;
    sched_event_fn *fn;
    void *user;
    model_limits limits;

    pool_slots *slots;
    pool_req_table *table;
    radix *tree;            /* NULL: --disable-radix-cache */
    model_plan *plan;
    int32_t *scratch;       /* [context]: slots on their way */

    group *queue_head, *queue_tail;
    group *buckets[GROUP_BUCKETS];
    seq *running, *running_last;
    int32_t n_running;
    prompt_share *shares;   /* [max_running] */
    int64_t reserved;       /* slots that running sequences may still take */
    int32_t edit_slots;     /* noted in the table since the last plan */
    const seq *blocked;     /* the head of the queue that found no room, */
    int64_t progress, blocked_at; /* and when: it is tried again after something has changed */
    group **timers;         /* a heap by due_us */
    int32_t n_timers, cap_timers;

    step steps[MODEL_STEPS_IN_FLIGHT];
    int64_t launched, applied;
    model_result due;       /* waited for, not applied yet */
    bool has_due, guarded;
    dup_slot *dups;         /* a ring of n_slots, oldest first */
    int32_t dup_head, n_dups;

    int64_t now_us;
    int64_t sleep_until_us; /* SCHED_DEBUG_SLEEP */
    bool lost;              /* the device failed */
    sched_stats counts;     /* the engine's own copy; counters only */

    mailbox box;
    pthread_t thread;
};

/* request.c */
ltd_status sched__group_create(const sched *s, const sched_request *r, group **out, ltd_err *err);
void sched__group_destroy(group *g);
void sched__group_enqueue(sched *s, group *g);
group *sched__group_find(const sched *s, uint64_t id);
/* Ends a sequence: the last event goes out, its place is released as soon as no step in flight names it. */
void sched__seq_end(sched *s, seq *q, sched_finish why);
void sched__seq_release(sched *s, seq *q); /* idempotent; only with in_flight == 0 */
void sched__group_cancel(sched *s, group *g, sched_finish why);
void sched__cancel_all(sched *s, sched_finish why);
void sched__expire(sched *s); /* deadlines and queue time-outs */
int32_t sched__seq_future(const sched *s, const seq *q); /* slots that it may still take */
/* Frees the group if nothing is left of it; g may be gone afterwards. */
void sched__group_reap(sched *s, group *g);

/* policy.c: the next sequence to admit, or NULL. */
seq *sched__policy_next(sched *s);

/* policy.c: a heap of times.  (Re)sets the group's timer from its deadline and --queue-timeout. */
void sched__timer_set(sched *s, group *g);

/* batch.c */
bool sched__plan(sched *s);       /* fills s->plan; false: nothing to run */
void sched__launched(sched *s);   /* after a successful launch: what was computed goes into the tree */
void sched__apply(sched *s, const model_result *r);
void sched__admit(sched *s);      /* from the queue, as long as there is room */
void sched__dups_give(sched *s);  /* gives back the duplicates that no step in flight names */

/* output.c */
void sched__output_init(sched *s, seq *q);
void sched__output_deinit(seq *q);
/* Takes a drawn token; sets q->finish when it ends the sequence, and posts the event that is due. */
void sched__output_token(sched *s, seq *q, int32_t id, float logprob, const int32_t *top_ids, const float *top_logprobs);
/* Posts what is held and the last event; q->finish says why. */
void sched__output_end(sched *s, seq *q);
void sched__output_scores(sched *s, seq *q, const model_result *r, int32_t first_sample, int32_t n, int32_t pos0);

/* engine.c */
void sched__post(sched *s, const sched_event *ev);
/* No allocation between a step's plan and its events, but in the callback. */
void sched__guard(sched *s, bool on);
ltd_status sched__check(sched *s, ltd_err *err);

#endif
