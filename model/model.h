/* model.h - a DeepSeek-V2-family checkpoint, ready to run steps.
 * Opens a Hugging Face folder, owns weights, token pool and workspaces, and runs the forward pass and the sampling of one step at a time, described
 * by a flat plan.  Knows slots and rows; knows nothing of requests, queues, text rules or HTTP.
 * Threads: model_open/start/close: one thread.  model_launch/model_wait: one thread (the engine's).  Steps run on the model's own thread(s), in order. */
#ifndef LTD_MODEL_H
#define LTD_MODEL_H

#include "config/config.h"
#include "mempool/mempool.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct model model; /* opaque */
struct tok;

enum { MODEL_MAX_EOS = 16, MODEL_STEPS_IN_FLIGHT = 2 };

typedef struct model_info {
    char architecture[64];            /* "DeepseekV2ForCausalLM" */
    char device[128];                 /* kern_backend's description */
    char dtype[16], cache_dtype[16], cache_kind[8]; /* "float32", "bfloat16"; "mla", "mha" */
    int32_t vocab_size;
    int32_t context_length;           /* in force: --context-length, else max_position_embeddings */
    int32_t n_layers, n_heads, hidden_size;
    int64_t n_parameters;
    size_t weight_bytes;
    int32_t eos[MODEL_MAX_EOS];       /* config.json and generation_config.json together */
    int32_t n_eos;
    int32_t bos;                      /* -1 = none */
    float default_temperature, default_top_p, default_min_p; /* generation_config.json, else 1, 1, 0; do_sample false: as if not stated */
    int32_t default_top_k;            /* 0 = off */
    uint64_t fingerprint;             /* of config and weights' headers: the same checkpoint, the same number */
} model_info;

/* Reads o->model (and the options of the groups model and device).  Any fault of the checkpoint, an unsupported field or missing memory is one line in err. */
ltd_status model_open(const ltd_options *o, model **out, ltd_err *err);
const model_info *model_get_info(const model *m);

typedef struct model_limits {
    int32_t n_req_rows;       /* sequences that may have a row of the request table at once */
    int32_t max_rows;         /* rows of one step */
    int32_t max_samples;      /* samples of one step */
    int32_t max_edit_slots;   /* slots that one plan's edits may carry */
    int64_t max_slots;        /* 0 = what the device's memory holds (on the CPU at most max(65536, 4 x context)) */
} model_limits;
/* Sizes and creates the token pool, the request table's mirror and the workspaces, prints the size table to the log, starts the threads. *n_slots receives the pool's size. */
ltd_status model_start(model *m, const model_limits *l, int32_t *n_slots, ltd_err *err);
void model_close(model *m); /* waits for what runs; NULL is fine */

/* ---------------------------------------------------------------- the plan of one step
 * One flat block: a header, then arrays at byte offsets from its start; no pointers, so that it can be sent to ranks, recorded, replayed.
 * Rows: absorbed rows first (generated tokens, drafts, recomputed output; numerics.md, rule 4), then prompt rows, segment by segment. */
enum { MODEL_TOKEN_LAST = -1 }; /* row_token: the token last sampled for the row's request row, on the device */

typedef struct plan_segment { /* consecutive prompt rows of one sequence; decompressed */
    int32_t req_row;
    int32_t first_row, n_rows; /* rows first_row .. first_row + n_rows of the plan */
    int32_t pos0;              /* position of the first; positions ascend by one; 0 .. pos0-1 are in the pool already */
} plan_segment;

typedef struct plan_sample {
    int32_t row;        /* of the plan */
    int32_t req_row;    /* whose last token the result becomes; -1: nobody's (a scored row) */
    kern_sample_params params;
} plan_sample;

typedef struct model_plan {
    int64_t step;       /* ascending by one from 1 */
    int32_t bytes;      /* of the whole block */
    int32_t cap_rows, cap_segments, cap_samples, cap_edits, cap_edit_slots;
    int32_t n_rows, n_absorbed, n_segments, n_samples, n_edits, n_edit_slots;
    int32_t off_tokens, off_pos, off_slots, off_req, off_segments, off_samples, off_edits, off_edit_slots;
} model_plan;

static inline int32_t *plan_tokens(const model_plan *p) { return (int32_t *)((char *)p + p->off_tokens); } /* id, or MODEL_TOKEN_LAST */
static inline int32_t *plan_pos(const model_plan *p) { return (int32_t *)((char *)p + p->off_pos); }       /* position in the sequence */
static inline int32_t *plan_slots(const model_plan *p) { return (int32_t *)((char *)p + p->off_slots); }   /* where the row's KV goes */
static inline int32_t *plan_req(const model_plan *p) { return (int32_t *)((char *)p + p->off_req); }       /* row of the request table */
static inline plan_segment *plan_segments(const model_plan *p) { return (plan_segment *)((char *)p + p->off_segments); }
static inline plan_sample *plan_samples(const model_plan *p) { return (plan_sample *)((char *)p + p->off_samples); }
static inline pool_req_edit *plan_edits(const model_plan *p) { return (pool_req_edit *)((char *)p + p->off_edits); }
static inline int32_t *plan_edit_slots(const model_plan *p) { return (int32_t *)((char *)p + p->off_edit_slots); }

/* An empty plan with room for what the limits allow; the caller's (ltd_free). */
model_plan *model_plan_create(const model_limits *l);
void model_plan_clear(model_plan *p); /* counts to 0; step kept */
/* Every index in range, rows in order, segments consecutive, slots not 0: LTD_INVALID with what is wrong.  For tests and debug flavours. */
ltd_status model_plan_check(const model_plan *p, const model_limits *l, int32_t n_slots, int32_t vocab, ltd_err *err);

/* Queues a step; the plan is copied.  LTD_FULL while MODEL_STEPS_IN_FLIGHT are running or not yet waited for. */
ltd_status model_launch(model *m, const model_plan *p);

typedef struct model_result {
    int64_t step;
    ltd_status status;         /* LTD_DEVICE: nothing below is valid, the model is lost */
    int32_t n_samples;         /* as the plan's, same order */
    const int32_t *tokens;     /* drawn (or the target's id); -1: no finite logit or NaN */
    const float *logprobs;     /* natural log, of `tokens`; valid where n_logprobs >= 0 */
    const int32_t *top_ids;    /* [n_samples][KERN_MAX_TOP_LOGPROBS], best first */
    const float *top_logprobs;
    int64_t device_us;         /* time that the step took on the device */
} model_result;

/* Waits for the oldest launched step that was not waited for.  r's arrays are valid until the second next model_launch.  LTD_NOT_FOUND: nothing is in flight. */
ltd_status model_wait(model *m, model_result *r);
/* Whether model_wait would return at once. */
bool model_done(const model *m);

/* ---------------------------------------------------------------- perplexity
 * Tokens of the text (without BOS) in consecutive windows of `window` tokens, each preceded by BOS; the mean negative log-likelihood of each window's tokens
 * given those before them.  A started model with at least window + 1 slots. */
typedef struct model_ppl { int64_t n_tokens; double nll, perplexity; } model_ppl;
ltd_status model_perplexity(model *m, const struct tok *t, const char *text, size_t n, int32_t window, model_ppl *out, ltd_err *err);

#ifdef __cplusplus
}
#endif
#endif
