/* status.c - status codes, the one-line error, failed checks, clocks, version. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/config_private.h"

#ifndef LTD_BUILD_ID
#define LTD_BUILD_ID "unknown"
#endif

const char ltd_version[] = "0.1.0";
const char ltd_build_id[] = LTD_BUILD_ID;

const char *ltd_status_text(ltd_status st)
{
    switch (st) {
#define X(name, value, text)                                                                                 \
    case name:                                                                                               \
        return text;
        LTD_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

const char *ltd_status_name(ltd_status st)
{
    switch (st) {
#define X(name, value, text)                                                                                 \
    case name:                                                                                               \
        return #name;
        LTD_STATUS_MAP(X)
#undef X
    }
    return "LTD_?";
}

ltd_status ltd_fail(ltd_err *err, ltd_status st, const char *fmt, ...)
{
    if (!err) return st;
    /* Callers pass err->text as an argument to put a prefix before it: never format into it directly. */
    char line[sizeof err->text];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0) n = snprintf(line, sizeof line, "%s", ltd_status_text(st));
    size_t len = (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
    if ((size_t)n >= sizeof line) {
        /* A cut inside a character would make the error itself bad UTF-8. */
        size_t back = len;
        while (back > 0 && len - back < 4 && ((unsigned char)line[back - 1] & 0xC0) == 0x80) back--;
        if (back > 0 && ltd_utf8_len(line + back - 1, len - (back - 1)) <= 0) len = back - 1;
    }
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)line[i];
        err->text[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    err->text[len] = '\0';
    return st;
}

void ltd_check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
{
    static atomic_int dying;
    char text[2048];
    int n = snprintf(text, sizeof text, "latentd: %s:%d: check failed: %s: ", file, line, cond);
    if (n < 0) n = 0;
    if ((size_t)n > sizeof text - 2) n = sizeof text - 2;
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(text + n, sizeof text - 1 - (size_t)n, fmt, ap);
    va_end(ap);
    if (m > 0) n += m;
    if ((size_t)n > sizeof text - 2) n = sizeof text - 2;
    text[n++] = '\n';
    /* A check that fails while the first one is being reported must not wait for it. */
    if (!atomic_exchange(&dying, 1)) log__flush_dying();
    log__write_fd(2, text, (size_t)n, 1000);
    abort();
}

int64_t ltd_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t ltd_unix_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec;
}
