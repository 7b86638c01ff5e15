/* server_private.h - what the files of server/ share.
 *
 *   connection (srv_conn)   one a socket, from accept to close; watches for a client that leaves
 *     request (srv_req)     one at a time on a connection, from its head to its last byte
 *       job (srv_job)       a request's stay on libuv's pool; outlives the request if the client leaves
 * meanwhile generation (srv_gen) what the engine has said about the request's group, and how much of it has
 * been sent
 *
 * Threads: everything belongs to the loop's thread, but for the message queue (srv_queue_*), which the engine
 * fills, and the functions marked [pool], which see nothing but their arguments and the immutable parts of
 * the srv. A request is suspended in libmicrohttpd whenever it has nothing to say; whoever has news marks it
 * (srv__req_wake) and one MHD_run at the end of the loop's turn delivers all of them (server-contracts.md).
 */
#ifndef LTD_SERVER_PRIVATE_H
#define LTD_SERVER_PRIVATE_H

#include <microhttpd.h>
#include <uv.h>

#include "server/server.h"

typedef struct srv srv;
typedef struct srv_req srv_req;
typedef struct srv_job srv_job;
typedef struct srv_gen srv_gen;

enum {
    SRV_TICK_MS = 250,
    SRV_LARGE_JOB_BYTES = 64 << 10, /* such jobs may take half of libuv's four threads */
    SRV_MAX_LARGE_JOBS = 2,
    SRV_MAX_PENDING_BYTES = 1 << 20, /* a stream's unread text and log-probabilities */
    SRV_MAX_JSON_VALUES = 1000000,   /* 80 MB of cJSON nodes; two such bodies are parsed at once */
    SRV_MAX_STOP_BYTES = 4096,
    SRV_MAX_LABEL = 256,     /* a client's request id */
    SRV_BODIES_AT_ONCE = 16, /* x max_body_bytes: all bodies in memory together */
    SRV_SNDBUF_BYTES = 64 << 10,
    SRV_ID_CHARS = 32,
};

/* ---------------------------------------------------------------- errors and answers (answer.c) */

typedef struct srv_error {
    int status;        /* HTTP */
    const char *type;  /* static */
    const char *code;  /* static, or NULL */
    const char *param; /* static, or NULL */
    int retry_after_s; /* 0 = none */
    char message[1100];
} srv_error;

/* Fills e and returns LTD_INVALID; the type follows from the status. */
ltd_status srv__error(srv_error *e, int status, const char *param, const char *code, const char *fmt, ...)
    LTD_PRINTF(5, 6);
void srv__error_json(const srv_error *e, ltd_buf *out);

/* A whole answer, ready to be queued. */
typedef struct srv_answer {
    int status;
    const char *content_type; /* static; NULL = application/json */
    const char *allow;        /* static; for 405 */
    int retry_after_s;
    bool close; /* the connection ends with it */
    ltd_buf body;
} srv_answer;
void srv__answer_error(srv_answer *a, const srv_error *e);

/* ---------------------------------------------------------------- messages from the engine (queue.c) */

/* A sched_event as a value.  Behind it: text_len bytes, then n_tokens packed score records. */
typedef struct srv_msg {
    uint32_t bytes; /* of the whole message, a multiple of 8 */
    uint8_t kind, finish;
    bool group_done;
    int8_t n_top; /* alternatives a record, -1: no records */
    uint64_t group;
    int32_t seq, pos0, n_tokens, stop_id, stop_string, prompt_tokens, cached_tokens, completion_tokens;
    uint32_t text_len;
    int64_t queued_us, first_token_us;
} srv_msg;
static inline const char *srv__msg_text(const srv_msg *m)
{
    return (const char *)(m + 1);
}
static inline const char *srv__msg_scores(const srv_msg *m)
{
    return srv__msg_text(m) + m->text_len;
}

/* A packed score record: id, logprob, ids of the alternatives, their logprobs; 4 bytes each. */
static inline size_t srv__score_bytes(int n_top)
{
    return 8 + 8 * (size_t)n_top;
}

typedef struct srv_chunk srv_chunk;
typedef struct srv_queue srv_queue;
srv_queue *srv__queue_create(void);
void srv__queue_destroy(srv_queue *q);
/* [engine] Appends; true if the queue was empty, so that the loop has to be woken. */
bool srv__queue_push(srv_queue *q, const sched_event *ev);
/* Takes all there is and calls fn for each, in order. Returns how many. */
int64_t srv__queue_drain(srv_queue *q, void (*fn)(void *user, const srv_msg *m), void *user);

/* ---------------------------------------------------------------- requests to the model (openai.c) */

typedef struct srv_prompt {
    int32_t *ids;
    int32_t n;
    bool auto_head,
        auto_tail; /* the first or last id was added by the tokenizer and has no text in an echo */
    bool from_text;
    char *text; /* for echo only */
    size_t text_len;
    ltd_buf scores; /* packed records of positions 1.. (echo with logprobs) */
    int32_t n_scored;
} srv_prompt;

/* A parsed and checked /v1/completions body. */
typedef struct srv_call {
    srv_prompt *prompts;
    int32_t n_prompts, n;
    sched_request r; /* its prompts and label are filled in when it is submitted */
    char *stops[SCHED_MAX_STOPS];
    int64_t prompt_tokens; /* of all prompts */
    bool stream, include_usage, echo, logprobs;
    bool seeded;                   /* else the server draws r.seed */
    const char *model;             /* one of the options' served names */
    char label[SRV_MAX_LABEL + 1]; /* the body's request_id, or empty */
} srv_call;

/* The parts of a srv that pool threads read; immutable once the model is loaded. */
typedef struct srv_const {
    const ltd_options *o;
    const model_info *info;
    const tok *tok;
    uint64_t salt_key[2];
    int64_t max_body_bytes;
} srv_const;

/* [pool] Parses, checks and tokenises.  LTD_OK: *out is the caller's (srv__call_destroy); else e is the
 * answer. */
ltd_status srv__call_parse(const srv_const *c, const char *body, size_t len, srv_call **out, srv_error *e);
void srv__call_destroy(srv_call *call);
/* [pool] /tokenize and /detokenize: body in, JSON out. */
ltd_status srv__tokenize(const srv_const *c, const char *body, size_t len, ltd_buf *out, srv_error *e);
ltd_status srv__detokenize(const srv_const *c, const char *body, size_t len, ltd_buf *out, srv_error *e);

/* Of parse.c: one field each, null counting as absent; they leave *out alone when it is absent. */
struct cJSON;
ltd_status srv__parse_body(const char *body, size_t len, struct cJSON **out, srv_error *e);
ltd_status srv__field_bool(const struct cJSON *o, const char *name, bool *out, srv_error *e);
ltd_status srv__field_int(const struct cJSON *o, const char *name, int64_t lo, int64_t hi, int64_t *out,
                          srv_error *e);
ltd_status srv__field_num(const struct cJSON *o, const char *name, double lo, double hi, float *out,
                          srv_error *e);
ltd_status srv__field_model(const srv_const *c, const struct cJSON *o, const char **out, srv_error *e);
ltd_status srv__field_id(const srv_const *c, const struct cJSON *v, const char *name, int32_t *out,
                         srv_error *e);
/* Refuses what is known but not served yet, unless it has its neutral value. */
ltd_status srv__fields_unserved(const struct cJSON *o, int64_t n, srv_error *e);
void srv__hash128(const uint64_t key[2], const void *data, size_t n, uint64_t out[2]);

/* ---------------------------------------------------------------- generations (completions.c, respond.c,
 * sse.c) */

typedef struct srv_choice {
    ltd_buf text;   /* stream: not yet sent; else all of it */
    ltd_buf scores; /* packed records, likewise */
    int32_t n_sent; /* records that were sent and dropped */
    int32_t stop_id, stop_string, cached_tokens, completion_tokens;
    sched_finish finish;
    bool echo_sent, end_sent;
    tok_stream offsets; /* decodes what has been listed, for text_offset */
    int64_t chars;      /* characters of the text before the next token listed */
} srv_choice;

/* Where the writer of a logprobs object is. */
typedef struct srv_lp_cursor {
    int phase;           /* 0..3: the four arrays; 4: done */
    bool open;           /* the array's key is written */
    int32_t from, to, i; /* entries: the echoed prompt's tokens, then the generated ones */
} srv_lp_cursor;

struct srv_gen {
    srv_req *req;
    const srv_const *c;
    srv_call *call;
    uint64_t group;
    bool active;  /* the sched has it */
    bool failed;  /* error is the answer */
    bool aborted; /* some choice ended as SCHED_ABORT */
    srv_error error;
    int32_t n_choices, n_finished;
    srv_choice *choices;
    char id[SRV_ID_CHARS + 8];
    int64_t created;
    size_t pending_bytes; /* stream: text and scores not yet sent */
    int64_t queued_us, first_token_us;
    /* sending */
    ltd_buf head; /* everything of an object before "choices" */
    ltd_buf out;  /* made but not yet taken by libmicrohttpd */
    size_t out_at;
    bool ping_due, usage_sent, done_sent;
    int32_t at_choice; /* non-streamed: where the writer is */
    int phase;
    size_t text_at;
    srv_lp_cursor lp;
};

/* Takes the call. */
srv_gen *srv__gen_create(srv_req *req, const srv_const *c, srv_call *call);
void srv__gen_destroy(srv_gen *g);
/* Applies a message; returns whether there is something new to send or to end. */
bool srv__gen_apply(srv_gen *g, const srv_msg *m);
void srv__gen_fail(srv_gen *g, const srv_error *e);
bool srv__gen_done(const srv_gen *g); /* every choice has ended, or it failed */
void srv__gen_usage(const srv_gen *g, ltd_buf *out);
const char *srv__gen_finish_name(const srv_choice *ch);
void srv__gen_stop_reason(const srv_gen *g, const srv_choice *ch, ltd_buf *out);
int32_t srv__gen_echo_entries(const srv_gen *g,
                              int32_t choice); /* tokens of the prompt that an echo with logprobs lists */
int32_t srv__gen_entries(const srv_gen *g, int32_t choice); /* those and the generated ones so far */

/* Appends about `want` bytes of the logprobs object of entries cur->from..to; true when it is complete. */
bool srv__logprobs_write(srv_gen *g, int32_t choice, srv_lp_cursor *cur, ltd_buf *out, size_t want);
/* Appends the next part of a non-streamed answer, at least `want` bytes if there are as many; true when it is
 * complete. */
bool srv__respond_fill(srv_gen *g, ltd_buf *out, size_t want);
/* Appends the frames that are due, at least `want` bytes if there are as many; true when the stream has
 * ended. */
bool srv__sse_fill(srv_gen *g, ltd_buf *out, size_t want);
void srv__sse_error(const srv_error *e, ltd_buf *out);
/* A JSON string's inside, without the quotes. */
void srv__json_chars(ltd_buf *out, const char *s, size_t n);
/* The longest prefix of s[0..n) of at most max bytes that does not end inside a character. */
size_t srv__utf8_cut(const char *s, size_t n, size_t max);
int64_t srv__utf8_chars(const char *s, size_t n);

/* ---------------------------------------------------------------- connections and requests (http.c) */

typedef struct srv_conn {
    srv *s;
    uv_poll_t poll;
    int fd;
    bool polling, left, over_limit, local;
    int64_t deadline_ms; /* uv_now by which a request's head, or the next part of its body, must be there */
    srv_req *req;        /* the one in hand, or NULL */
    struct srv_conn *prev, *next;
} srv_conn;

typedef enum srv_state {
    SRV_BODY,      /* reading it */
    SRV_POOL,      /* a job parses */
    SRV_ENGINE,    /* the engine has it; nothing has been answered */
    SRV_ANSWER,    /* ans is ready to be queued */
    SRV_GENERATED, /* the head of gen's answer is ready to be queued */
    SRV_SENDING,   /* queued */
} srv_state;

typedef struct srv_route srv_route;

struct srv_req {
    srv *s;
    srv_conn *conn;
    struct MHD_Connection *mhd;
    const srv_route *route; /* NULL: an early error waits in ans */
    srv_state state;
    bool suspended, gone, counted, drop_body;
    ltd_buf body;
    size_t body_seen, body_held; /* bytes that came; that count in s->body_bytes */
    srv_answer ans;
    srv_job *job;
    srv_gen *gen;
    char *tail; /* what follows a prefix route's path */
    char method[8], path[96];
    char own_id[SRV_ID_CHARS + 1];
    char label[SRV_MAX_LABEL + 1]; /* the client's id, or own_id */
    int64_t t0_us, last_sent_ms;
    int status;
    struct srv_req *prev, *next;
};

/* Answers at once (fills req->ans), starts a job, or both later. */
typedef void srv_handler_fn(srv_req *req);
struct srv_route {
    const char *path;
    bool prefix;       /* what follows path is an argument */
    const char *allow; /* methods, as the Allow header gives them */
    bool needs_model;
    bool debug;
    srv_handler_fn *fn;
};
extern const srv_route srv__routes[]; /* ends with path NULL (endpoints.c) */

void srv__req_wake(srv_req *req);                      /* resumes it, if it is suspended, in this turn */
void srv__req_leave(srv_req *req);                     /* its client has gone: cancels and wakes */
void srv__req_error(srv_req *req, const srv_error *e); /* answers with it */
void srv__req_fail_format(srv_req *req, int status, const char *param, const char *code, int retry_after_s,
                          const char *fmt, ...) LTD_PRINTF(6, 7);
void srv__http_notify_conn(void *cls, struct MHD_Connection *c, void **ctx,
                           enum MHD_ConnectionNotificationCode code);
void srv__http_completed(void *cls, struct MHD_Connection *c, void **con_cls,
                         enum MHD_RequestTerminationCode code);
void *srv__http_uri(void *cls, const char *uri, struct MHD_Connection *c);
enum MHD_Result srv__http_handle(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                 const char *version, const char *data, size_t *n, void **con_cls);
void srv__http_tick(srv *s);

/* ---------------------------------------------------------------- jobs (jobs.c) */

struct srv_job {
    uv_work_t work;
    srv *s;
    srv_req *req; /* NULL once its client has left */
    ltd_buf body; /* the request's, moved here */
    size_t held;  /* of it in s->body_bytes */
    bool large, started;
    void (*run)(srv_job *job);  /* [pool] */
    void (*done)(srv_job *job); /* on the loop; req is there */
    int64_t arg;
    ltd_status st;
    srv_error error;
    srv_call *call;
    ltd_buf out;
    struct srv_job *next;
};
/* Moves the request's body into a job that runs `run` on the pool, then `done` on the loop. */
void srv__job_start(srv_req *req, void (*run)(srv_job *), void (*done)(srv_job *), int64_t arg);
void srv__job_leave(srv_job *job); /* the request has gone */

/* ---------------------------------------------------------------- endpoints */

void srv__completions(srv_req *req); /* completions.c */
void srv__completions_event(srv *s, const srv_msg *m);
void srv__completions_leave(
    srv_req *req, sched_cancel_reason why); /* cancels its group; the engine's last words find nobody */
void srv__debug_check(srv_req *req);        /* debug.c */
void srv__debug_dump(srv_req *req);
void srv__debug_flush(srv_req *req);
void srv__debug_sleep(srv_req *req);
void srv__debug_fail_take(srv_req *req);
void srv__debug_stats(srv_req *req);

/* ---------------------------------------------------------------- group ids to requests (groups.c) */

typedef struct srv_groups {
    uint64_t *ids; /* 0 = empty */
    srv_req **reqs;
    size_t cap, n; /* cap a power of two */
} srv_groups;
void srv__groups_put(srv_groups *g, uint64_t id, srv_req *req);
srv_req *srv__groups_get(const srv_groups *g, uint64_t id);
void srv__groups_remove(srv_groups *g, uint64_t id);
void srv__groups_deinit(srv_groups *g);

/* ---------------------------------------------------------------- the loop (loop.c) */

typedef enum srv_phase { SRV_LOADING, SRV_READY, SRV_DRAINING, SRV_STOPPING, SRV_FAULTED } srv_phase;

struct srv {
    const ltd_options *o;
    srv_const c;
    sched *sched; /* NULL while loading */
    srv_phase phase;
    srv_end end;
    ltd_err *err;

    uv_loop_t loop;
    uv_poll_t mhd_poll;
    uv_timer_t mhd_timer, tick, stop_timer;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_async_t wake;
    uv_signal_t sigterm, sigint;
    struct MHD_Daemon *mhd;
    bool need_run, closing, look_for_fault;
    int n_handles;
    int n_signals;

    uv_thread_t loader;
    bool loader_started, loader_joined;
    srv_load_fn *load;
    void *load_user;
    uv_mutex_t load_lock; /* guards the next three */
    bool load_done;
    ltd_status load_status;
    srv_parts parts;
    ltd_err load_err;

    srv_queue *queue;
    srv_groups groups;
    srv_req *reqs; /* all there are */
    srv_conn *conns;
    int n_conns, n_active, n_suspended; /* active: dispatched, not yet completed */
    size_t body_bytes;
    srv_job *large_head, **large_tail; /* waiting for a thread */
    int large_running, n_jobs;

    char fingerprint[40]; /* system_fingerprint */
    int64_t created;
    uint64_t id_seed[2], id_next;
    int64_t n_requests, n_left, n_slow_readers, n_messages, n_runs;
};

const char *srv__phase_name(const srv *s);
/* Whether a completion would work; else e says why not. */
ltd_status srv__check_ready(const srv *s, srv_error *e);
void srv__check_fault(srv *s); /* asks the engine; a lost one begins the end */
void srv__new_id(srv *s, char out[SRV_ID_CHARS + 1]);
uint64_t srv__random(srv *s);

/* listen.c */
ltd_status srv__listen(const ltd_options *o, int *fd, char *address, size_t cap, ltd_err *err);
void srv__raise_nofile(int64_t want);

#endif
