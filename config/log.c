/* log.c - one event, one line, and nobody waits for the disk.
 * Callers format into their own stack and copy the line into a ring of fixed lines; one thread writes them
 * out.  A ring that is full (nobody reads our pipe, a slow disk) loses lines, counts them and says so later.
 * The ring is the bounded queue with a sequence number a cell: cell i is free for ticket t when seq == t, and
 * holds the line of ticket t when seq == t + 1.  Producers take tickets by compare-and-swap and never wait
 * for one another. Without the thread (before log_start, after log_stop, in a forked child) lines are written
 * by the caller. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/config_private.h"

enum {
    RING_LINES = 1024,  /* a power of two */
    LINE_BYTES = 2040,  /* whole line with its newline; a cell is 2 KiB */
    MSG_BYTES = 1900,   /* of the message before escaping */
    BATCH_BYTES = 4096, /* what a pipe that polls writable takes without blocking (PIPE_BUF) */
    STOP_WAIT_MS = 2000,
    DYING_WAIT_MS = 200,
    DIRECT_WAIT_MS = 1000,
};

typedef struct log_cell {
    atomic_size_t seq;
    uint16_t len;
    char text[LINE_BYTES];
} log_cell;

static log_cell ring[RING_LINES];
static atomic_size_t ring_tail; /* next ticket of the producers */
static atomic_size_t ring_head; /* next ticket of the writer (only it writes this) */
static sem_t ring_ready;        /* posted after each line and at the stop */
static atomic_bool running;     /* lines go to the ring */
static atomic_bool stopping, writer_idle;
static atomic_int n_inside; /* producers between their look at `running` and their line's end */
static atomic_llong n_dropped;
static long long dropped_at_start; /* what the writer reports counts from here */
static pthread_t writer;
static bool have_writer, writer_stuck;
static _Thread_local bool is_writer;

static atomic_int cfg_level = LOG_INFO, cfg_fd = 2;
static atomic_bool cfg_json;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

/* ---------------------------------------------------------------- the line */

typedef struct log_line {
    char text[LINE_BYTES];
    size_t n, cap; /* cap leaves room for what closes the line */
    bool cut;
} log_line;

static void put(log_line *l, const char *s, size_t n)
{
    if (l->cut || l->n + n > l->cap) {
        l->cut = true;
        return;
    }
    memcpy(l->text + l->n, s, n);
    l->n += n;
}

/* The message on one line: nothing in it may end the line, move a terminal's cursor or break the JSON. */
static void put_escaped(log_line *l, const char *s, size_t n, bool json)
{
    for (size_t i = 0; i < n && !l->cut;) {
        unsigned char c = (unsigned char)s[i];
        int len = ltd_utf8_len(s + i, n - i);
        char esc[8];
        bool c1 =
            len == 2 && c == 0xC2 && (unsigned char)s[i + 1] < 0xA0; /* U+0080..9F: control characters too */
        if (len <= 0) {
            size_t bad = len == 0 ? n - i : (size_t)-len;
            put(l, "\xEF\xBF\xBD", 3);
            i += bad;
            continue;
        }
        if (c == '\n')
            put(l, "\\n", 2);
        else if (c == '\t')
            put(l, "\\t", 2);
        else if (c == '\r')
            put(l, "\\r", 2);
        else if (c < 0x20 || c == 0x7f || c1)
            put(l, esc, (size_t)snprintf(esc, sizeof esc, "\\u%04x", c1 ? (unsigned char)s[i + 1] : c));
        else if (json && (c == '"' || c == '\\'))
            put(l, (const char[]){'\\', (char)c}, 2);
        else
            put(l, s + i, (size_t)len);
        i += (size_t)len;
    }
}

/* "2026-12-01T01:02:03.456Z".  Not gmtime_r, which takes the time zone's lock. */
static void put_time(log_line *l)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    int64_t days = t.tv_sec / 86400;
    int s = (int)(t.tv_sec % 86400);
    /* Civil date of a day number: years begin in March, so that the leap day comes last. */
    int64_t z = days + 719468, era = z / 146097;
    int doe = (int)(z - era * 146097), yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    int day = doy - (153 * mp + 2) / 5 + 1, month = mp < 10 ? mp + 3 : mp - 9;
    long long year = yoe + era * 400 + (month <= 2 ? 1 : 0);
    char text[64];
    int n = snprintf(text, sizeof text, "%04lld-%02d-%02dT%02d:%02d:%02d.%03dZ", year, month, day, s / 3600,
                     s / 60 % 60, s % 60, (int)(t.tv_nsec / 1000000));
    put(l, text, (size_t)n);
}

static void make_line(log_line *l, log_level level, const char *folder, const char *msg, size_t n, bool cut)
{
    bool json = atomic_load_explicit(&cfg_json, memory_order_relaxed);
    const char *name = level_names[level];
    l->n = 0;
    l->cut = false;
    l->cap = sizeof l->text - 8;
    if (json) put(l, "{\"ts\":\"", 7);
    put_time(l);
    if (json) {
        put(l, "\",\"level\":\"", 11);
        put(l, name, strlen(name));
        put(l, "\",\"folder\":\"", 12);
        put_escaped(l, folder, strlen(folder), true);
        put(l, "\",\"msg\":\"", 9);
    } else {
        put(l, " ", 1);
        put(l, name, strlen(name));
        put(l, " ", 1);
        put_escaped(l, folder, strlen(folder), false);
        put(l, " ", 1);
    }
    put_escaped(l, msg, n, json);
    bool ellipsis = cut || l->cut;
    l->cap = sizeof l->text;
    l->cut = false;
    if (ellipsis) put(l, "\xE2\x80\xA6", 3);
    put(l, json ? "\"}\n" : "\n", json ? 3 : 1);
}

/* ---------------------------------------------------------------- writing out */

/* All of it, waiting for room up to timeout_ms (-1 = for ever, but not beyond *stop).  false: something was
 * lost. */
static bool write_all(int fd, const char *s, size_t n, int timeout_ms, const atomic_bool *stop)
{
    int64_t until = timeout_ms < 0 ? INT64_MAX : ltd_now_us() + (int64_t)timeout_ms * 1000;
    while (n > 0) {
        /* poll first: on a pipe it keeps write from blocking whatever the descriptor's own mode, which we
         * leave alone because it is shared with whoever gave it to us. */
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int ready = poll(&p, 1, timeout_ms < 0 || timeout_ms > 100 ? 100 : timeout_ms);
        if (ready == 0 || (ready < 0 && errno == EINTR)) {
            if (stop && atomic_load(stop) && until == INT64_MAX) until = ltd_now_us() + STOP_WAIT_MS * 500;
            if (ltd_now_us() >= until) return false;
            continue;
        }
        ssize_t w = ready < 0 ? -1 : write(fd, s, n < BATCH_BYTES ? n : BATCH_BYTES);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (ltd_now_us() >= until) return false;
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            continue;
        }
        if (w < 0) return false;
        s += w;
        n -= (size_t)w;
    }
    return true;
}

bool log__write_fd(int fd, const char *s, size_t n, int timeout_ms)
{
    /* A pipe whose reader has gone would kill the process: hold SIGPIPE back, and take it off again if it was
     * ours. */
    sigset_t pipe_set, old, pending;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_set, &old);
    bool ok = write_all(fd, s, n, timeout_ms, NULL);
    if (!ok && !sigismember(&pending, SIGPIPE))
        while (sigtimedwait(&pipe_set, NULL, &(struct timespec){0}) < 0 && errno == EINTR) {
        }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ok;
}

static void report_drops(long long *reported)
{
    long long all = atomic_load(&n_dropped);
    if (all == *reported) return;
    log_line l;
    char msg[80];
    int n = snprintf(msg, sizeof msg, "log lines dropped n=%lld total=%lld", all - *reported, all);
    make_line(&l, LOG_WARN, "config", msg, (size_t)n, false);
    if (write_all(atomic_load(&cfg_fd), l.text, l.n, -1, &stopping)) *reported = all;
}

/* Copies the next line behind *n and gives its cell back; false when there is none or no room for it. */
static bool take_line(char *batch, size_t *n)
{
    size_t t = atomic_load_explicit(&ring_head, memory_order_relaxed);
    log_cell *c = &ring[t % RING_LINES];
    if (atomic_load_explicit(&c->seq, memory_order_acquire) != t + 1 || *n + c->len > BATCH_BYTES)
        return false;
    memcpy(batch + *n, c->text, c->len);
    *n += c->len;
    atomic_store_explicit(&c->seq, t + RING_LINES, memory_order_release);
    atomic_store_explicit(&ring_head, t + 1, memory_order_release);
    return true;
}

static void *writer_main(void *arg)
{
    (void)arg;
    is_writer = true;
    static char batch[BATCH_BYTES];
    long long reported = dropped_at_start;
    int64_t last_report = 0;
    bool broken = false; /* the last write failed: more of the same would only fail again */
    for (;;) {
        size_t n = 0;
        int lines = 0;
        while (take_line(batch, &n)) lines++;
        if (lines) {
            broken = !write_all(atomic_load(&cfg_fd), batch, n, -1, &stopping);
            if (broken) atomic_fetch_add(&n_dropped, lines);
            if (broken && atomic_load(&stopping)) {
                /* Nobody reads: the time to stop was spent on this batch, the rest would take as much again
                 * each. */
                for (n = 0; take_line(batch, &n); n = 0) atomic_fetch_add(&n_dropped, 1);
                return NULL;
            }
        }
        /* After what was in the ring, or once a second while it never runs empty. */
        if (!broken && (!lines || ltd_now_us() - last_report > 1000000)) {
            report_drops(&reported);
            last_report = ltd_now_us();
        }
        if (lines) continue;
        atomic_store(&writer_idle, true);
        if (atomic_load(&stopping)) return NULL;
        while (sem_wait(&ring_ready) != 0) {
        }
        while (sem_trywait(&ring_ready) == 0) {
        } /* one look at the ring serves all */
        atomic_store(&writer_idle, false);
    }
}

/* ---------------------------------------------------------------- callers */

static void push_line(const log_line *l)
{
    size_t t = atomic_load_explicit(&ring_tail, memory_order_relaxed);
    for (;;) {
        log_cell *c = &ring[t % RING_LINES];
        size_t seq = atomic_load_explicit(&c->seq, memory_order_acquire);
        if (seq == t) {
            if (!atomic_compare_exchange_weak_explicit(&ring_tail, &t, t + 1, memory_order_relaxed,
                                                       memory_order_relaxed))
                continue;
            memcpy(c->text, l->text, l->n);
            c->len = (uint16_t)l->n;
            atomic_store_explicit(&c->seq, t + 1, memory_order_release);
            sem_post(&ring_ready);
            return;
        }
        if ((intptr_t)(seq - t) < 0) {
            atomic_fetch_add(&n_dropped, 1);
            return;
        }
        t = atomic_load_explicit(&ring_tail, memory_order_relaxed);
    }
}

bool log_enabled(log_level level)
{
    return (int)level <= atomic_load_explicit(&cfg_level, memory_order_relaxed);
}

int64_t log_dropped(void) { return atomic_load(&n_dropped); }

void log_write(log_level level, const char *folder, const char *fmt, ...)
{
    if (!log_enabled(level)) return;
    int saved = errno;
    char msg[MSG_BYTES];
    log_line l;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    bool cut = (size_t)n >= sizeof msg;
    size_t len = cut ? sizeof msg - 1 : (size_t)n;
    /* The cut may be inside a character: take its beginning off. */
    for (size_t back = 1; cut && back <= 3; back++) {
        unsigned char c = (unsigned char)msg[len - back];
        if (c < 0x80 || c >= 0xC0) {
            if (ltd_utf8_len(msg + len - back, back) == 0) len -= back;
            break;
        }
    }
    make_line(&l, level, folder, msg, len, cut);

    /* log_stop first clears `running`, then waits for n_inside to fall to zero: no line can miss both. */
    atomic_fetch_add(&n_inside, 1);
    bool queued = atomic_load(&running);
    if (queued) push_line(&l);
    atomic_fetch_sub(&n_inside, 1);
    if (!queued && !log__write_fd(atomic_load(&cfg_fd), l.text, l.n, DIRECT_WAIT_MS))
        atomic_fetch_add(&n_dropped, 1);
    errno = saved;
}

/* ---------------------------------------------------------------- start and stop */

static void forked_child(void)
{
    /* The writer did not come along; what is in the ring is the parent's to write. */
    atomic_store(&running, false);
    atomic_store(&n_inside, 0);
    have_writer = writer_stuck = false;
}

ltd_status log_start(const log_config *c)
{
    static bool registered;
    if (have_writer) return LTD_INVALID;
    if (writer_stuck) return LTD_AGAIN; /* a writer of an earlier start still hangs in its descriptor */
    if (!registered) {
        if (pthread_atfork(NULL, NULL, forked_child) != 0) return LTD_NO_MEMORY;
        registered = true;
    }
    atomic_store(&cfg_level, (int)c->level);
    atomic_store(&cfg_fd, c->fd);
    atomic_store(&cfg_json, c->json);
    for (size_t i = 0; i < RING_LINES; i++) atomic_store(&ring[i].seq, i);
    atomic_store(&ring_tail, 0);
    atomic_store(&ring_head, 0);
    dropped_at_start = atomic_load(&n_dropped);
    atomic_store(&stopping, false);
    atomic_store(&writer_idle, false);
    sem_init(&ring_ready, 0, 0);
    /* The writer takes no signal: they are for the threads that wait for them, and SIGPIPE is for nobody. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&writer, NULL, writer_main, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) return LTD_NO_MEMORY;
    have_writer = true;
    atomic_store(&running, true);
    return LTD_OK;
}

void log_stop(void)
{
    if (!have_writer) return;
    atomic_store(&running, false);
    while (atomic_load(&n_inside) > 0) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    atomic_store(&stopping, true);
    sem_post(&ring_ready);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_WAIT_MS / 1000;
    if (pthread_timedjoin_np(writer, NULL, &until) != 0) {
        pthread_detach(writer);
        writer_stuck = true;
    }
    have_writer = false;
    atomic_store(&cfg_fd, 2); /* the descriptor is its owner's again */
}

void log__flush_dying(void)
{
    if (is_writer || !atomic_load(&running)) return;
    for (int ms = 0; ms < DYING_WAIT_MS; ms++) {
        if (atomic_load(&ring_head) == atomic_load(&ring_tail) && atomic_load(&writer_idle)) return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
