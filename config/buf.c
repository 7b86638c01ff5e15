/* buf.c - the growing byte string, UTF-8, JSON literals, whole files. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"

void ltd_buf_deinit(ltd_buf *b)
{
    ltd_free(b->data);
    *b = (ltd_buf){0};
}

void ltd_buf_clear(ltd_buf *b)
{
    b->len = 0;
    if (b->data) b->data[0] = '\0';
}

void ltd_buf_reserve(ltd_buf *b, size_t more)
{
    size_t need;
    LTD_CHECK(!__builtin_add_overflow(b->len, more, &need) && need < SIZE_MAX / 2,
              "buffer of %zu + %zu bytes", b->len, more);
    need++; /* the NUL */
    if (need <= b->cap) return;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < need) cap *= 2;
    b->data = ltd_realloc(b->data, cap);
    b->cap = cap;
    b->data[b->len] = '\0';
}

void ltd_buf_add(ltd_buf *b, const void *bytes, size_t n)
{
    ltd_buf_reserve(b, n);
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void ltd_buf_str(ltd_buf *b, const char *s) { ltd_buf_add(b, s, strlen(s)); }

void ltd_buf_fmt(ltd_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    ltd_buf_reserve(b, 64);
    int n = vsnprintf(b->data + b->len, b->cap - b->len, fmt, ap);
    va_end(ap);
    LTD_CHECK(n >= 0, "format %s", fmt);
    if ((size_t)n >= b->cap - b->len) {
        ltd_buf_reserve(b, (size_t)n);
        vsnprintf(b->data + b->len, b->cap - b->len, fmt, again);
    }
    va_end(again);
    b->len += (size_t)n;
}

/* ---------------------------------------------------------------- UTF-8 */

int ltd_utf8_len(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0) return 0;
    unsigned char c = p[0];
    if (c < 0x80) return 1;
    /* The second byte's range depends on the first: no overlong forms, no surrogates, nothing past U+10FFFF.
     */
    unsigned char lo = 0x80, hi = 0xBF;
    int len;
    if (c >= 0xC2 && c <= 0xDF) {
        len = 2;
    } else if (c >= 0xE0 && c <= 0xEF) {
        len = 3;
        if (c == 0xE0) lo = 0xA0;
        if (c == 0xED) hi = 0x9F;
    } else if (c >= 0xF0 && c <= 0xF4) {
        len = 4;
        if (c == 0xF0) lo = 0x90;
        if (c == 0xF4) hi = 0x8F;
    } else {
        return -1;
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n) return 0;
        if (p[i] < lo || p[i] > hi) return -i;
        lo = 0x80;
        hi = 0xBF;
    }
    return len;
}

/* ---------------------------------------------------------------- JSON literals */

static void add_escape(ltd_buf *b, unsigned char c)
{
    switch (c) {
    case '"':
        ltd_buf_add(b, "\\\"", 2);
        return;
    case '\\':
        ltd_buf_add(b, "\\\\", 2);
        return;
    case '\n':
        ltd_buf_add(b, "\\n", 2);
        return;
    case '\r':
        ltd_buf_add(b, "\\r", 2);
        return;
    case '\t':
        ltd_buf_add(b, "\\t", 2);
        return;
    case '\b':
        ltd_buf_add(b, "\\b", 2);
        return;
    case '\f':
        ltd_buf_add(b, "\\f", 2);
        return;
    default:
        ltd_buf_fmt(b, "\\u%04x", c);
    }
}

void ltd_buf_json_str(ltd_buf *b, const char *s, size_t n)
{
    ltd_buf_reserve(b, n + 2);
    ltd_buf_add(b, "\"", 1);
    size_t run = 0, i = 0; /* s[run..i) goes out as it is */
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        int len = c < 0x80 ? 1 : ltd_utf8_len(s + i, n - i);
        if (c >= 0x80 && len > 0) {
            i += (size_t)len;
            continue;
        }
        ltd_buf_add(b, s + run, i - run);
        if (c < 0x80) {
            add_escape(b, c);
            i++;
        } else {
            ltd_buf_add(b, "\xEF\xBF\xBD", 3);
            i = len == 0 ? n : i + (size_t)-len;
        }
        run = i;
    }
    ltd_buf_add(b, s + run, n - run);
    ltd_buf_add(b, "\"", 1);
}

/* Adds one unit in the last place to the digits of "d.ddde-12"; false if they are all nines. */
static bool bump_last_digit(char *text)
{
    char *e = strchr(text, 'e');
    for (char *p = e - 1; p >= text; p--) {
        if (*p == '.' || *p == '-') continue;
        if (*p != '9') {
            ++*p;
            return true;
        }
        *p = '0';
    }
    return false;
}

void ltd_buf_json_num(ltd_buf *b, double v)
{
    char text[40];
    if (!isfinite(v)) {
        ltd_buf_add(b, "null", 4);
        return;
    }
    if (v == floor(v) && fabs(v) < 9007199254740992.0 && !(v == 0 && signbit(v))) {
        ltd_buf_fmt(b, "%lld", (long long)v);
        return;
    }
    /* 15 digits always come back as they went in, so a shorter form shows there, trailing zeros being
     * dropped; subnormal numbers carry fewer.  17 are always enough. */
    for (int digits = fabs(v) < 2.3e-308 ? 1 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
        if (digits != 16) continue;
        /* At a power of two the gap below is half that above: the nearest 16 digits may lie below and read
         * back as the neighbour while the next 16 above read back as v. */
        snprintf(text, sizeof text, "%.15e", v);
        if (bump_last_digit(text) && strtod(text, NULL) == v) break;
    }
    ltd_buf_str(b, text);
}

/* ---------------------------------------------------------------- files */

ltd_status ltd_read_file(const char *path, size_t max_bytes, char **out, size_t *len, ltd_err *err)
{
    if (max_bytes == 0) max_bytes = (size_t)1 << 30;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang the start */
    if (fd < 0) {
        int e = errno;
        return ltd_fail(err, e == ENOENT || e == ENOTDIR ? LTD_NOT_FOUND : LTD_IO, "%s: cannot open: %s",
                        path, strerror(e));
    }
    ltd_status st;
    struct stat sb;
    char *data = NULL;
    if (fstat(fd, &sb) != 0) {
        st = ltd_fail(err, LTD_IO, "%s: %s", path, strerror(errno));
        goto fail;
    }
    if (!S_ISREG(sb.st_mode)) {
        st = ltd_fail(err, LTD_IO, "%s: not a regular file%s", path,
                      S_ISDIR(sb.st_mode) ? " but a folder" : "");
        goto fail;
    }
    if ((uint64_t)sb.st_size > max_bytes) {
        st = ltd_fail(err, LTD_TOO_LARGE, "%s: %lld bytes, more than the limit of %zu", path,
                      (long long)sb.st_size, max_bytes);
        goto fail;
    }
    size_t want = (size_t)sb.st_size, got = 0;
    data = ltd_try_alloc(want + 1);
    if (!data) {
        st = ltd_fail(err, LTD_NO_MEMORY, "%s: no memory for its %zu bytes", path, want);
        goto fail;
    }
    while (got < want) {
        ssize_t r = read(fd, data + got, want - got);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) {
            st = ltd_fail(err, LTD_IO, "%s: cannot read: %s", path, strerror(errno));
            goto fail;
        }
        if (r == 0) break;
        got += (size_t)r;
    }
    close(fd);
    data[got] = '\0';
    *out = data;
    *len = got;
    return LTD_OK;
fail:
    ltd_free(data);
    close(fd);
    return st;
}
