/* scheduler.h - the life of requests between the server and the model.
 * Queue, continuous batching, prefix reuse, slots, stop rules, text.  Knows nothing of HTTP or JSON.
 * Threads: one engine thread runs sched_step; the calls marked [any] may come from any thread; everything else from the thread that owns the sched.
 * Across threads go values and ids: a group's id is never used again, and an unknown one is simply not found. */
#ifndef LTD_SCHEDULER_H
#define LTD_SCHEDULER_H

#include "config/config.h"
#include "model/model.h"
#include "model/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sched sched; /* opaque */

enum { SCHED_MAX_STOPS = 16, SCHED_MAX_STOP_IDS = 64 };

typedef enum sched_finish {
    SCHED_RUNNING = 0,
    SCHED_STOP,     /* eos, stop token or stop string */
    SCHED_LENGTH,   /* max_tokens, the context's or the pool's end */
    SCHED_ABORT,    /* cancelled (sched_cancel's reason) or over its time */
    SCHED_ERROR,    /* engine fault; no finite logit */
} sched_finish;
const char *sched_finish_name(sched_finish f); /* "stop", "length", "abort", "error"; NULL while running */

typedef enum sched_cancel_reason { SCHED_CANCEL_CLIENT, SCHED_CANCEL_SLOW_READER, SCHED_CANCEL_TIMEOUT, SCHED_CANCEL_SHUTDOWN } sched_cancel_reason;

/* One HTTP request = one group: n_prompts x n sequences.  Sequence index = prompt * n + choice. */
typedef struct sched_request {
    const int32_t *const *prompts; /* borrowed for the call; each >= 1 token, ids within the vocabulary */
    const int32_t *prompt_lens;
    int32_t n_prompts;
    int32_t n;
    int32_t max_tokens;          /* >= 0; 0 only scores the prompt */
    float temperature, top_p, min_p;
    int32_t top_k;               /* 0 = off */
    uint64_t seed;               /* choice i of a prompt draws from its own stream of it */
    int32_t n_logprobs;          /* of generated tokens: -1 none, 0 the token's own, up to 20 alternatives */
    int32_t n_prompt_logprobs;   /* of prompt tokens; such a request reads nothing from the tree */
    bool ignore_eos;
    bool skip_special;           /* special tokens give no text */
    const char *stops[SCHED_MAX_STOPS]; /* borrowed for the call; none empty */
    size_t stop_lens[SCHED_MAX_STOPS];
    int32_t n_stops;
    bool include_stop;           /* the stop string stays in the text */
    int32_t stop_ids[SCHED_MAX_STOP_IDS];
    int32_t n_stop_ids;
    int32_t priority;
    uint64_t tenant;
    uint64_t salt[2];
    int64_t deadline_us;         /* ltd_now_us time by which it ends as SCHED_ABORT; 0 = none */
    char label[64];              /* the client's request id, for logs */
} sched_request;

/* One token with its log-probabilities (arrays valid during the callback). */
typedef struct sched_token {
    int32_t id;
    float logprob;
    const int32_t *top_ids;      /* n_logprobs of them, best first */
    const float *top_logprobs;
} sched_token;

typedef enum sched_event_kind {
    SCHED_EV_PROMPT_LOGPROBS, /* tokens[i] scores the prompt's token at pos0 + i (from position 1 on); ascending, chunk by chunk */
    SCHED_EV_DELTA,           /* new text and tokens of one sequence; the last one of it has finish != RUNNING */
} sched_event_kind;

/* What the engine tells the server.  Text is whole UTF-8 characters, with nothing that a stop rule may still take back; a token is listed
 * with the text that completes it (tokens inside a held tail come later, those of a cut stop string and the one that ended it never), and only
 * where log-probabilities were asked for. */
typedef struct sched_event {
    sched_event_kind kind;
    uint64_t group;
    int32_t seq;
    const char *text;
    size_t text_len;
    const sched_token *tokens;
    int32_t n_tokens;
    int32_t n_top;               /* alternatives per token; -1: no log-probabilities */
    int32_t pos0;
    sched_finish finish;
    int32_t stop_id;             /* token id that stopped it, or -1 */
    int32_t stop_string;         /* index into the request's stops, or -1 */
    int32_t prompt_tokens, cached_tokens, completion_tokens; /* so far; completion counts the eos token */
    int64_t queued_us, first_token_us; /* times spent: until admitted; until the first token (0 = none yet) */
    bool group_done;             /* the last event of the group */
} sched_event;
typedef void sched_event_fn(void *user, const sched_event *ev); /* on the engine thread; must not block or call back into the sched */

typedef struct sched_options {
    int32_t n_slots;               /* model_start's */
    int32_t context_length;
    int32_t max_running;           /* sequences with a row of the request table */
    int32_t max_queued;            /* groups waiting */
    int32_t chunk_rows;            /* prompt rows a step */
    bool radix_cache, reuse_generated, overlap;
    int32_t absorb_extend;
    int64_t queue_timeout_us;      /* 0 = none */
    bool check_every_step;         /* verify free + private + tree == total after every step (tests) */
} sched_options;
void sched_options_from(const ltd_options *o, const model_info *mi, sched_options *out); /* all but n_slots */
/* What model_start must allow for these options. */
void sched_model_limits(const sched_options *o, model_limits *out);

/* model and tok are borrowed and outlive the sched. */
ltd_status sched_create(const sched_options *o, model *m, const tok *t, sched_event_fn *fn, void *user, sched **out, ltd_err *err);
void sched_destroy(sched *s); /* stopped, or never started */

/* ---------------------------------------------------------------- requests [any] */
/* Queues a group, all or nothing; *id names it from now on, and its events may come before the call returns.
 * LTD_TOO_LARGE: a prompt can never fit (err has both numbers); LTD_FULL: the queue is full; LTD_STOPPING. */
ltd_status sched_submit(sched *s, const sched_request *r, uint64_t *id, ltd_err *err);
/* Ends a group wherever it is; unknown or ended ids are ignored.  One last event (SCHED_ABORT) comes for each sequence still running. */
void sched_cancel(sched *s, uint64_t group, sched_cancel_reason why);

typedef struct sched_stats {
    int32_t running, waiting;        /* sequences; groups */
    int32_t slots_total, slots_free, slots_cached, slots_locked; /* cached: in the tree, of which locked */
    int64_t steps, absorbed_rows, prompt_rows;
    int64_t prompt_tokens, cached_tokens, generated_tokens; /* counted once a request */
    int64_t requests, finished[5];   /* groups; sequences by sched_finish */
    int64_t wasted_rows;             /* computed for sequences that had ended */
    int64_t double_gives;
    int64_t last_step_us;            /* ltd_now_us of the last step's end: the watchdog's pulse */
    bool faulted;                    /* the device is lost */
    bool idle;
} sched_stats;
void sched_get_stats(sched *s, sched_stats *out); /* [any] a consistent snapshot */

typedef enum sched_debug_op {
    SCHED_DEBUG_CHECK,      /* all _check functions and the slot count */
    SCHED_DEBUG_DUMP,       /* the tree */
    SCHED_DEBUG_FLUSH,      /* evict everything unlocked */
    SCHED_DEBUG_SLEEP,      /* the engine plans nothing for arg milliseconds, but takes commands; answered as it begins */
    SCHED_DEBUG_FAIL_TAKE,  /* the arg-th pool_slots_take fails */
} sched_debug_op;
/* [any but the engine] Runs on the engine thread between steps, waits for it, appends text to out.  LTD_STOPPING while the engine is ending. */
ltd_status sched_debug(sched *s, sched_debug_op op, int64_t arg, ltd_buf *out);

/* ---------------------------------------------------------------- the engine */
/* One turn: takes commands, applies the results that are due, plans and launches the next step.  Waits for the model only where nothing else
 * can be done.  Returns LTD_OK if it did something, LTD_AGAIN if there is nothing to do until a command comes or *wake_us (0 = never) is reached,
 * LTD_DEVICE once the model is lost.  now_us: any clock, as long as it is the same one. */
ltd_status sched_step(sched *s, int64_t now_us, int64_t *wake_us);

ltd_status sched_start(sched *s);      /* starts the engine thread */
void sched_drain(sched *s);            /* [any] takes no more groups (LTD_STOPPING); what is queued and running goes on */
void sched_stop(sched *s);             /* cancels what is left (SCHED_CANCEL_SHUTDOWN), waits for what is in flight, joins the thread if there is one */

#ifdef __cplusplus
}
#endif
#endif
