/* test_config_log.c - the log: line formats, nothing lost or mixed, nobody waits for a pipe that nobody
 * reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "config/config.h"

/* ---------------------------------------------------------------- a pipe with a reader */

typedef struct sink {
    int fd[2];
    pthread_t thread;
    ltd_buf got;
} sink;

static void *sink_main(void *arg)
{
    sink *s = arg;
    char part[8192];
    ssize_t r;
    while ((r = read(s->fd[0], part, sizeof part)) > 0) ltd_buf_add(&s->got, part, (size_t)r);
    return NULL;
}

static void sink_open(sink *s)
{
    *s = (sink){0};
    assert_int_equal(pipe(s->fd), 0);
}

static void sink_read(sink *s) { assert_int_equal(pthread_create(&s->thread, NULL, sink_main, s), 0); }

/* Ends the writing side; then s->got is all that was written. */
static void sink_close(sink *s)
{
    close(s->fd[1]);
    pthread_join(s->thread, NULL);
    close(s->fd[0]);
    ltd_buf_add(&s->got, "", 0);
}

static void start(sink *s, log_level level, bool json)
{
    log_config c = {.level = level, .json = json, .fd = s->fd[1]};
    assert_int_equal(log_start(&c), LTD_OK);
}

static int count_of(const char *text, const char *word)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)); p += strlen(word)) n++;
    return n;
}

/* ---------------------------------------------------------------- formats */

static void text_line_has_time_level_folder_and_message(void **state)
{
    (void)state;
    sink s;
    sink_open(&s);
    sink_read(&s);
    start(&s, LOG_INFO, false);
    log_info("sched", "step=%d rows=%d", 7, 3);
    log_debug("sched", "not seen");
    log_error("server", "x\ny\r\t\x1b[1m\xC2\x85 \xff \xE2\x82\xAC \"q\" \\");
    log_stop();
    sink_close(&s);
    const char *line = s.got.data;
    struct tm tm = {0};
    int ms, used = 0;
    assert_int_equal(sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
                            &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &ms, &used),
                     7);
    assert_int_equal(used, 24);
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    assert_in_range(time(NULL) - timegm(&tm) + 1, 0, 30);
    const char *end = strchr(line, '\n');
    assert_memory_equal(line + used, " info sched step=7 rows=3\n", 26);
    assert_string_equal(end + 1 + used,
                        " error server x\\ny\\r\\t\\u001b[1m\\u0085 \xEF\xBF\xBD \xE2\x82\xAC \"q\" \\\n");
    ltd_buf_deinit(&s.got);
}

static void json_line_is_one_object(void **state)
{
    (void)state;
    sink s;
    sink_open(&s);
    sink_read(&s);
    start(&s, LOG_DEBUG, true);
    char all[256], big[5000];
    for (int i = 0; i < 255; i++) all[i] = (char)(i + 1);
    all[255] = '\0';
    memset(big, '"', sizeof big - 1); /* each becomes two: cut while escaping */
    big[sizeof big - 1] = '\0';
    log_debug("http", "%s", all);
    log_warn("http", "%s", big);
    log_info("http", "last");
    log_stop();
    sink_close(&s);
    int n = 0;
    for (char *line = s.got.data, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        cJSON *doc = NULL;
        ltd_err err;
        if (ltd_json_parse(line, (size_t)(end - line), NULL, &doc, &err) != LTD_OK)
            fail_msg("%s in %.*s", err.text, (int)(end - line), line);
        assert_int_equal(cJSON_GetArraySize(doc), 4);
        assert_int_equal(strlen(ltd_json_get(doc, "ts")->valuestring), 24);
        assert_string_equal(ltd_json_get(doc, "folder")->valuestring, "http");
        assert_string_equal(ltd_json_get(doc, "level")->valuestring, n == 0   ? "debug"
                                                                     : n == 1 ? "warn"
                                                                              : "info");
        const char *msg = ltd_json_get(doc, "msg")->valuestring;
        if (n == 1) assert_string_equal(msg + strlen(msg) - 3, "\xE2\x80\xA6");
        if (n == 2) assert_string_equal(msg, "last");
        cJSON_Delete(doc);
    }
    assert_int_equal(n, 3);
    ltd_buf_deinit(&s.got);
}

static void long_line_is_cut_between_characters_with_an_ellipsis(void **state)
{
    (void)state;
    for (int pad = 0; pad < 4; pad++) {
        sink s;
        char big[9000];
        memset(big, 'x', (size_t)pad);
        for (size_t i = (size_t)pad; i + 5 <= sizeof big; i += 4) memcpy(big + i, "\xF0\x9F\x98\x80", 5);
        sink_open(&s);
        sink_read(&s);
        start(&s, LOG_INFO, false);
        log_info("config", "%s", big);
        log_stop();
        sink_close(&s);
        size_t n = s.got.len;
        assert_in_range(n, 1500, 2048);
        assert_string_equal(s.got.data + n - 4, "\xE2\x80\xA6\n");
        assert_null(strstr(s.got.data, "\xEF\xBF\xBD"));
        for (size_t i = 0; i < n;) {
            int len = ltd_utf8_len(s.got.data + i, n - i);
            assert_true(len > 0);
            i += (size_t)len;
        }
        ltd_buf_deinit(&s.got);
    }
}

/* ---------------------------------------------------------------- threads */

enum { N_THREADS = 4, LINES_EACH = 2000 };

static void *talk(void *arg)
{
    int who = *(int *)arg;
    for (int i = 0; i < LINES_EACH; i++) log_info("test", "who=%d line=%d .", who, i);
    return NULL;
}

static void lines_of_many_threads_are_whole_and_in_order(void **state)
{
    (void)state;
    sink s;
    pthread_t t[N_THREADS];
    int who[N_THREADS], last[N_THREADS], got = 0;
    int64_t dropped = log_dropped();
    sink_open(&s);
    sink_read(&s);
    start(&s, LOG_INFO, false);
    for (int i = 0; i < N_THREADS; i++) {
        who[i] = i;
        last[i] = -1;
        pthread_create(&t[i], NULL, talk, &who[i]);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(t[i], NULL);
    log_stop();
    sink_close(&s);
    for (char *line = s.got.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        int w, n, used = 0;
        *end = '\0';
        if (strstr(line, "log lines dropped")) continue;
        assert_int_equal(sscanf(line + 24, " info test who=%d line=%d .%n", &w, &n, &used), 2);
        assert_int_equal(24 + used, strlen(line));
        assert_true(n > last[w]);
        last[w] = n;
        got++;
    }
    assert_int_equal(got + (log_dropped() - dropped), N_THREADS * LINES_EACH);
    ltd_buf_deinit(&s.got);
}

/* ---------------------------------------------------------------- pipes that nobody reads */

static void blocked_pipe_stalls_nobody_and_drops_are_reported(bool nonblocking)
{
    sink s;
    enum { N = 5000 };
    int64_t before = log_dropped();
    sink_open(&s);
    if (nonblocking) fcntl(s.fd[1], F_SETFL, O_NONBLOCK);
    start(&s, LOG_INFO, false);
    int64_t t = ltd_now_us(), worst = 0;
    for (int i = 0; i < N; i++) {
        int64_t a = ltd_now_us();
        log_info("test", "line=%d %0500d", i, 0);
        if (ltd_now_us() - a > worst) worst = ltd_now_us() - a;
    }
    assert_true(ltd_now_us() - t < 5000000);
    assert_true(worst < 1000000);
    int64_t dropped = log_dropped() - before;
    assert_true(dropped > 0);
    sink_read(&s); /* somebody reads at last */
    log_stop();
    int64_t all = log_dropped() - before;
    sink_close(&s);
    assert_int_equal(all, dropped); /* nothing more was lost */
    assert_int_equal(count_of(s.got.data, " info test line="), N - dropped);
    long long reported = 0;
    for (const char *p = s.got.data; (p = strstr(p, "warn config log lines dropped n=")); p += 10)
        reported += atoll(strstr(p, "n=") + 2);
    assert_int_equal(reported, dropped);
    ltd_buf_deinit(&s.got);
}

static void write_to_a_blocked_pipe_drops_and_reports(void **state)
{
    (void)state;
    blocked_pipe_stalls_nobody_and_drops_are_reported(false);
}

static void write_to_a_blocked_nonblocking_pipe_drops_and_reports(void **state)
{
    (void)state;
    blocked_pipe_stalls_nobody_and_drops_are_reported(true);
}

static void stop_with_a_pipe_that_nobody_reads_ends_soon(void **state)
{
    (void)state;
    sink s;
    int64_t before = log_dropped();
    sink_open(&s);
    start(&s, LOG_INFO, false);
    for (int i = 0; i < 900; i++) log_info("test", "line=%d %0500d", i, 0);
    int64_t t = ltd_now_us();
    log_stop();
    assert_true(ltd_now_us() - t < 5000000);
    int64_t dropped = log_dropped() - before;
    assert_in_range(dropped, 1, 900);
    sink_read(&s);
    sink_close(&s);
    /* A batch that was cut short counts as lost though its beginning came out. */
    assert_true(count_of(s.got.data, " info test line=") + dropped >= 900);
    ltd_buf_deinit(&s.got);
    /* And the log starts again. */
    sink_open(&s);
    sink_read(&s);
    start(&s, LOG_INFO, false);
    log_info("test", "again");
    log_stop();
    sink_close(&s);
    assert_int_equal(count_of(s.got.data, "again"), 1);
    ltd_buf_deinit(&s.got);
}

static void closed_reader_neither_kills_nor_spins(void **state)
{
    (void)state;
    sink s;
    int64_t before = log_dropped();
    struct timespec a, b;
    sink_open(&s);
    close(s.fd[0]);
    signal(SIGPIPE, SIG_DFL); /* it would kill us */
    start(&s, LOG_INFO, false);
    for (int i = 0; i < 50; i++) log_info("test", "line=%d", i);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    usleep(300000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    assert_true((b.tv_sec - a.tv_sec) * 1000000000LL + b.tv_nsec - a.tv_nsec < 150000000LL);
    log_stop();
    close(s.fd[1]);
    assert_int_equal(log_dropped() - before, 50);
}

/* ---------------------------------------------------------------- without the thread */

/* fn in a child whose stderr is a pipe; what it wrote is in *said. */
static int in_child(void (*fn)(void), ltd_buf *said)
{
    int p[2], status;
    char part[4096];
    ssize_t r;
    assert_int_equal(pipe(p), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(p[1], 2);
        close(p[0]);
        close(p[1]);
        fn();
        _exit(0);
    }
    close(p[1]);
    while ((r = read(p[0], part, sizeof part)) > 0) ltd_buf_add(said, part, (size_t)r);
    ltd_buf_add(said, "", 0);
    close(p[0]);
    waitpid(pid, &status, 0);
    return status;
}

static void speak_outside(void)
{
    log_config c = {.level = LOG_INFO, .fd = 2};
    errno = ENOENT;
    log_info("test", "before");
    if (errno != ENOENT) _exit(9);
    if (log_start(&c) != LTD_OK || log_start(&c) != LTD_INVALID) _exit(8);
    log_info("test", "during");
    log_stop();
    log_stop();
    log_info("test", "after");
}

static void lines_before_start_and_after_stop_are_written_at_once(void **state)
{
    (void)state;
    ltd_buf said = {0};
    assert_int_equal(in_child(speak_outside, &said), 0);
    char *before = strstr(said.data, "before\n"), *during = strstr(said.data, "during\n"),
         *after = strstr(said.data, "after\n");
    assert_true(before && during && after && before < during && during < after);
    ltd_buf_deinit(&said);
}

static void fail_while_logging(void)
{
    log_config c = {.level = LOG_INFO, .fd = 2};
    if (log_start(&c) != LTD_OK) _exit(8);
    for (int i = 0; i < 100; i++) log_info("test", "line=%d", i);
    LTD_CHECK(false, "the end");
}

static void failed_check_puts_out_what_is_queued_first(void **state)
{
    (void)state;
    ltd_buf said = {0};
    int status = in_child(fail_while_logging, &said);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_int_equal(count_of(said.data, " info test line="), 100);
    assert_true(strstr(said.data, "line=99\n") < strstr(said.data, "check failed"));
    ltd_buf_deinit(&said);
}

static void fork_child_writes_its_own_lines(void **state)
{
    (void)state;
    sink s;
    sink_open(&s);
    sink_read(&s);
    start(&s, LOG_INFO, false);
    log_info("test", "parent=1");
    pid_t pid = fork();
    if (pid == 0) {
        log_info("test", "child=1");
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    log_info("test", "parent=2");
    log_stop();
    sink_close(&s);
    assert_int_equal(count_of(s.got.data, "parent="), 2);
    assert_int_equal(count_of(s.got.data, "child=1\n"), 1);
    ltd_buf_deinit(&s.got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_before_start_and_after_stop_are_written_at_once),
        cmocka_unit_test(failed_check_puts_out_what_is_queued_first),
        cmocka_unit_test(text_line_has_time_level_folder_and_message),
        cmocka_unit_test(json_line_is_one_object),
        cmocka_unit_test(long_line_is_cut_between_characters_with_an_ellipsis),
        cmocka_unit_test(lines_of_many_threads_are_whole_and_in_order),
        cmocka_unit_test(write_to_a_blocked_pipe_drops_and_reports),
        cmocka_unit_test(write_to_a_blocked_nonblocking_pipe_drops_and_reports),
        cmocka_unit_test(stop_with_a_pipe_that_nobody_reads_ends_soon),
        cmocka_unit_test(closed_reader_neither_kills_nor_spins),
        cmocka_unit_test(fork_child_writes_its_own_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
