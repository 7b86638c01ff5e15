/* config.h - what every other folder stands on.
 * Status codes and checks, memory, strict JSON, logging, the daemon's options.  Includes nothing of ours.
 * Threads: everything here may be called from any thread unless its comment says otherwise. */
#ifndef LTD_CONFIG_H
#define LTD_CONFIG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LTD_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define LTD_NORETURN __attribute__((noreturn))
#define LTD_UNUSED __attribute__((unused))
#else
#define LTD_PRINTF(f, a)
#define LTD_NORETURN
#define LTD_UNUSED
#endif

/* ------------------------------------------------------------------ status codes (status.c) */

/* name, value, text.  0 is ok, all others negative.  FULL and AGAIN are answers, not errors: never logged. */
#define LTD_STATUS_MAP(X)                                                                                    \
    X(LTD_OK, 0, "ok")                                                                                       \
    X(LTD_FULL, -1, "no room now")                                                                           \
    X(LTD_AGAIN, -2, "not yet")                                                                              \
    X(LTD_INVALID, -3, "invalid argument")                                                                   \
    X(LTD_UNSUPPORTED, -4, "not supported")                                                                  \
    X(LTD_NOT_FOUND, -5, "not found")                                                                        \
    X(LTD_TOO_LARGE, -6, "over a limit")                                                                     \
    X(LTD_CORRUPT, -7, "malformed data")                                                                     \
    X(LTD_IO, -8, "input/output error")                                                                      \
    X(LTD_NO_MEMORY, -9, "out of memory")                                                                    \
    X(LTD_DEVICE, -10, "device error")                                                                       \
    X(LTD_CANCELLED, -11, "cancelled")                                                                       \
    X(LTD_TIMEOUT, -12, "timed out")                                                                         \
    X(LTD_STOPPING, -13, "shutting down")

typedef enum ltd_status {
#define X(name, value, text) name = value,
    LTD_STATUS_MAP(X)
#undef X
} ltd_status;

const char *ltd_status_text(ltd_status st); /* "no room now"; static storage */
const char *ltd_status_name(ltd_status st); /* "LTD_FULL"; static storage */

/* The one clear line that a failed start or a refused request shows to a person.  The caller owns it, usually
 * on its stack; functions that take `ltd_err *err` accept NULL and write it only when they fail. */
typedef struct ltd_err {
    char text[1024];
} ltd_err;

/* Writes the line (cut to fit, one line: control characters become '?') and returns st, so that
 * `return ltd_fail(err, LTD_CORRUPT, "%s: ...", path);` reads as one step. */
ltd_status ltd_fail(ltd_err *err, ltd_status st, const char *fmt, ...) LTD_PRINTF(3, 4);

/* ------------------------------------------------------------------ checks (status.c) */

/* A bug of ours.  Kept in release builds: prints file:line, the condition and the state given, then aborts. */
#define LTD_CHECK(cond, ...)                                                                                 \
    do {                                                                                                     \
        if (__builtin_expect(!(cond), 0)) ltd_check_failed(__FILE__, __LINE__, #cond, __VA_ARGS__);          \
    } while (0)
void ltd_check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
    LTD_PRINTF(4, 5) LTD_NORETURN;

/* For what is checked only where LTD_DEBUG is defined (flavours debug, asan, tsan). */
#ifdef LTD_DEBUG
#define LTD_DCHECK(cond, ...) LTD_CHECK(cond, __VA_ARGS__)
#else
#define LTD_DCHECK(cond, ...) ((void)0)
#endif

/* ------------------------------------------------------------------ memory (alloc.c) */

/* Host memory.  These die on failure; sizes are checked for overflow.  Zeroed: ltd_calloc only. */
void *ltd_alloc(size_t bytes);
void *ltd_calloc(size_t n, size_t bytes);
void *ltd_realloc(void *p, size_t bytes);
char *ltd_strdup(const char *s);
void ltd_free(void *p); /* NULL is fine; also for ltd_try_alloc and ltd_alloc_aligned */
/* Only where a client chooses the size: NULL when there is none. */
void *ltd_try_alloc(size_t bytes);
/* align: a power of two; not for ltd_realloc. */
void *ltd_alloc_aligned(size_t align, size_t bytes);

/* While the calling thread's guard is on, ltd_*alloc and ltd_realloc die in debug flavours: nothing allocates
 * between a batch planned and its tokens posted.  Nests.  Free of cost in release. */
void ltd_alloc_guard(bool on);

/* ------------------------------------------------------------------ time (status.c) */

int64_t ltd_now_us(void);  /* CLOCK_MONOTONIC, microseconds */
int64_t ltd_unix_s(void);  /* CLOCK_REALTIME, seconds */

/* ------------------------------------------------------------------ strict JSON (json.c)
 * cJSON behind one scan that refuses what cJSON lets through: bad UTF-8, raw control characters, \u0000, numbers
 * outside JSON's grammar or not finite, lone surrogates, depth and value counts over the limits, duplicate keys of one object, anything
 * but white space after the value. */
struct cJSON;

typedef struct ltd_json_limits {
    int max_depth;      /* arrays and objects within one another; 0 = 64 */
    int64_t max_values; /* values in all; 0 = no limit but the text's length */
} ltd_json_limits;

/* Parses text[0..len).  *out is the caller's (cJSON_Delete).  LTD_CORRUPT with line, column and reason;
 * LTD_TOO_LARGE over a limit; LTD_NO_MEMORY.  Integers of more than 15 digits keep their digits in the
 * node's valuestring, which is how ltd_json_int64 gives all 64 bits.  Linear time (duplicate keys by hashing). */
ltd_status ltd_json_parse(const char *text, size_t len, const ltd_json_limits *limits, struct cJSON **out, ltd_err *err);
/* Reads a whole file (at most max_bytes; 0 = 1 GiB) and parses it; errors name the file. */
ltd_status ltd_json_parse_file(const char *path, size_t max_bytes, struct cJSON **out, ltd_err *err);
/* The member by that exact name, or NULL; obj may be NULL. */
const struct cJSON *ltd_json_get(const struct cJSON *obj, const char *key);
bool ltd_json_is_null(const struct cJSON *v); /* absent or null */
/* The exact integer, also when written 3.0 or 3e2: LTD_INVALID when v is no number, has a fraction or leaves int64_t. */
ltd_status ltd_json_int64(const struct cJSON *v, int64_t *out);

/* A growing byte string for building JSON and text; zero-initialised is empty.  data is NUL-terminated. */
typedef struct ltd_buf {
    char *data;
    size_t len, cap;
} ltd_buf;
void ltd_buf_deinit(ltd_buf *b);
void ltd_buf_clear(ltd_buf *b);
void ltd_buf_reserve(ltd_buf *b, size_t more);
void ltd_buf_add(ltd_buf *b, const void *bytes, size_t n);
void ltd_buf_str(ltd_buf *b, const char *s);
void ltd_buf_fmt(ltd_buf *b, const char *fmt, ...) LTD_PRINTF(2, 3);
/* Appends a JSON string literal with its quotes; bytes that are not UTF-8 become U+FFFD, one per maximal bad part. */
void ltd_buf_json_str(ltd_buf *b, const char *s, size_t n);
/* Appends a finite double in the shortest form that reads back the same; NaN and infinities become null. */
void ltd_buf_json_num(ltd_buf *b, double v);

/* Length in bytes (1..4) of the valid UTF-8 character at s[0..n); 0 if it is cut off at n but valid so far;
 * -k if the first k bytes (1..3) are a maximal invalid part (Unicode 3.9, "substitution of maximal subparts"). */
int ltd_utf8_len(const char *s, size_t n);

/* Reads a whole regular file; *out is the caller's (ltd_free) and NUL-terminated past *len. */
ltd_status ltd_read_file(const char *path, size_t max_bytes, char **out, size_t *len, ltd_err *err);

/* ------------------------------------------------------------------ logging (log.c)
 * One event, one line: key=value pairs, request id first where there is one.  A ring of lines and a writer thread:
 * a caller never waits for the disk or a pipe; lines that do not fit are counted and reported.  Before log_start and
 * after log_stop lines are written at once, by the caller. */
typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;

typedef struct log_config {
    log_level level;
    bool json;      /* one JSON object a line instead of text */
    int fd;         /* where to; usually 2 */
} log_config;
ltd_status log_start(const log_config *c);
void log_stop(void); /* writes what is left */
bool log_enabled(log_level level);
void log_write(log_level level, const char *folder, const char *fmt, ...) LTD_PRINTF(3, 4);
int64_t log_dropped(void);
#define log_error(folder, ...) log_write(LOG_ERROR, folder, __VA_ARGS__)
#define log_warn(folder, ...) log_write(LOG_WARN, folder, __VA_ARGS__)
#define log_info(folder, ...) log_write(LOG_INFO, folder, __VA_ARGS__)
#define log_debug(folder, ...)                                                                               \
    do {                                                                                                     \
        if (log_enabled(LOG_DEBUG)) log_write(LOG_DEBUG, folder, __VA_ARGS__);                               \
    } while (0)

/* ------------------------------------------------------------------ options (options.c)
 * One table row an option: name, alias, type, default, range, unit, help, group.  The command line, the environment
 * (LATENTD_<NAME>), the JSON file, --help and GET /info all come from that table.
 * Precedence: default < --config file < environment < command line. */
typedef enum opt_device { OPT_DEVICE_AUTO, OPT_DEVICE_CPU, OPT_DEVICE_CUDA } opt_device;
typedef enum opt_dtype { OPT_DTYPE_AUTO, OPT_DTYPE_F32, OPT_DTYPE_BF16 } opt_dtype;
typedef enum opt_debug { OPT_DEBUG_NO, OPT_DEBUG_LOCAL, OPT_DEBUG_YES } opt_debug;

enum { OPT_MAX_NAMES = 16 };

/* The values in force.  Strings belong to the struct (opt_deinit). */
typedef struct ltd_options {
    /* model */
    char *model;                           /* checkpoint folder */
    char *served_names[OPT_MAX_NAMES];     /* --served-model-name, repeatable; default: the folder's base name */
    int n_served_names;
    int64_t context_length;                /* tokens; 0 = the checkpoint's max_position_embeddings */
    opt_dtype dtype;                       /* activations: auto = f32 on the CPU, bf16 on CUDA */
    opt_dtype kv_cache_dtype;              /* auto = as dtype */
    bool disable_mla;                      /* decompressed K and V in the MHA pool */
    int64_t context_block;                 /* tokens of one prefill context block; a multiple of 128 */
    int64_t absorb_extend;                 /* extends of up to so many rows go down the absorbed path; 0 = none */
    /* device */
    opt_device device;
    int64_t cpu_threads;                   /* 0 = all that the process may use */
    double mem_fraction;                   /* of the device's memory, everything that we allocate */
    int64_t max_total_tokens;              /* slots of the token pool; 0 = what fits */
    /* scheduler */
    int64_t max_running_requests;          /* sequences decoding or prefilling at once */
    int64_t max_queued_requests;           /* HTTP requests waiting */
    int64_t chunked_prefill_size;          /* prompt rows a step; 0 = 8192 on CUDA, 128 on the CPU */
    bool disable_radix_cache;
    bool disable_overlap;                  /* one step in flight instead of two */
    bool reuse_generated;                  /* a later prompt may reuse generated rows; off = same bits for conversations too */
    /* server */
    char *host;
    int64_t port;                          /* 0 = any free one, logged */
    int64_t max_connections;
    int64_t max_body_bytes;                /* 0 = max(4 MiB, 48 x context length) */
    int64_t max_n;                         /* choices a prompt */
    int64_t max_choices;                   /* choices a request: prompts x n */
    int64_t header_timeout_s, idle_timeout_s, write_timeout_s, request_timeout_s, queue_timeout_s, shutdown_timeout_s; /* 0 = none but for shutdown */
    int64_t sse_ping_interval_s;           /* 0 = none */
    /* operation */
    log_level log_level;
    bool log_json;
    bool log_requests;
    opt_debug debug_endpoints;
    /* actions instead of serving */
    bool check_config;
    char *perplexity_file;
} ltd_options;

typedef enum opt_action { OPT_SERVE, OPT_EXIT_OK } opt_action; /* EXIT_OK: --help, --version were printed */

/* Fills *o from argv, environment (envp as of main) and the file; checks ranges and combinations.
 * LTD_INVALID with the option named, where it came from, its range and what to do. */
ltd_status opt_load(int argc, char **argv, char **envp, ltd_options *o, opt_action *action, ltd_err *err);
void opt_deinit(ltd_options *o);
/* Appends a JSON object of all options; with only_changed just those that differ from their default. */
void opt_dump_json(const ltd_options *o, bool only_changed, ltd_buf *out);
/* The same as "name=value name=value" for the start's log line. */
void opt_dump_text(const ltd_options *o, bool only_changed, ltd_buf *out);

extern const char ltd_version[];  /* "0.1.0" */
extern const char ltd_build_id[]; /* git description of the build, or "unknown" */

#ifdef __cplusplus
}
#endif
#endif
