/* fake_model.h - a stand-in behind model.h for tests of the scheduler: no weights, no sums, but a memory that tells.
 * Every slot remembers the token, the position and a hash of the whole prefix that its row read through the mirror of the
 * request table, and the next token is a function of that hash: a wrong slot, a stale row, a slot reused too early or an
 * edit that was forgotten gives another text, and most of them die at once with a message; so does a slot that goes to
 * another sequence while a step in flight still writes it.
 * It defines model_open .. model_perplexity; linked before libmodel.a, whose plan.c and tokenizer stay in use.
 * Steps are computed inside model_launch, in order, as on one stream; what is configured is when their results come. */
#ifndef LTD_TESTS_FAKE_MODEL_H
#define LTD_TESTS_FAKE_MODEL_H

#include "model/model.h"

typedef enum fake_rule {
    FAKE_HASH,  /* next token = f(prefix): sampled requests add their seed and position */
    FAKE_CHAIN, /* next token = next[last token]: the CHAIN table of the requirements unless `chain` is given */
} fake_rule;

typedef enum fake_timing {
    FAKE_LAZY,   /* a result comes when it is waited for: the deepest overlap, without a thread */
    FAKE_EAGER,  /* a result is there as soon as its step is launched */
    FAKE_THREAD, /* a thread delivers it step_us + rows * row_us after the step before */
    FAKE_RANDOM, /* whether a result is there is chance; it comes when it is waited for */
    FAKE_MANUAL, /* a step completes when fake_model_complete says so */
} fake_timing;

typedef struct fake_config {
    int32_t vocab, context_length; /* 0 = 320, 4096 */
    int32_t n_slots;               /* of the pool; 0 = 65536 (model_limits.max_slots wins) */
    fake_rule rule;
    const int32_t *chain;          /* [vocab] or NULL; -1 = no finite logit; must outlive the model */
    int32_t eos;                   /* 0 = 257; -1 = none */
    int32_t nan_token;             /* FAKE_HASH: after this token there is no finite logit; 0 = none */
    fake_timing timing;
    int32_t step_us;
    double row_us;
    int64_t fail_step;             /* this step's result is LTD_DEVICE; 0 = none */
    bool no_checks;                /* benchmarks: tokens only; prefixes are not verified */
} fake_config;

/* In force for the model_opens that follow.  NULL: the defaults. */
void fake_model_config(const fake_config *c);

/* FAKE_MANUAL [any thread]: n more steps are complete. */
void fake_model_complete(model *m, int32_t n);

typedef struct fake_stats {
    int64_t steps, rows, absorbed, segments, samples, edits, edit_slots;
    int64_t last_tokens;   /* rows whose token came from the device */
    int32_t max_in_flight; /* steps launched and not waited for */
    int64_t spent_ns;      /* inside model_launch and model_wait, for benchmarks */
} fake_stats;
fake_stats fake_model_stats(const model *m); /* the engine's thread, or while it stands */

/* Called inside model_launch with each plan, before it is run. */
typedef void fake_plan_fn(void *user, const model_plan *p);
void fake_model_on_plan(model *m, fake_plan_fn *fn, void *user);

/* The same functions without slots: what a request must give, whatever its company.  prompt and out may not overlap; up to max tokens, ended by eos
 * (which is counted) unless ignore_eos, or by a token -1 (not counted).  logprobs may be NULL.  Returns how many. */
int32_t fake_model_generate(const fake_config *c, const int32_t *prompt, int32_t n_prompt, const kern_sample_params *params, bool ignore_eos,
                            int32_t max, int32_t *out, float *logprobs);
/* The log-probability that the fake gives prompt[pos] after prompt[0..pos). */
float fake_model_score(const int32_t *prompt, int32_t pos);

#endif
