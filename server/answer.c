/* answer.c - OpenAI-shaped errors, and small text helpers of the answers. */
#include <stdio.h>
#include <string.h>

#include "server/server_private.h"

static const char *type_of(int status)
{
    if (status == 401) return "authentication_error";
    if (status == 404) return "not_found_error";
    if (status == 429) return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

ltd_status srv__error(srv_error *e, int status, const char *param, const char *code, const char *fmt, ...)
{
    va_list ap;
    *e = (srv_error){.status = status, .type = type_of(status), .param = param, .code = code};
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return LTD_INVALID;
}

static void string_or_null(ltd_buf *out, const char *key, const char *s)
{
    ltd_buf_str(out, key);
    if (s)
        ltd_buf_json_str(out, s, strlen(s));
    else
        ltd_buf_str(out, "null");
}

void srv__error_json(const srv_error *e, ltd_buf *out)
{
    string_or_null(out, "{\"error\":{\"message\":", e->message);
    string_or_null(out, ",\"type\":", e->type);
    string_or_null(out, ",\"param\":", e->param);
    string_or_null(out, ",\"code\":", e->code);
    ltd_buf_str(out, "}}");
}

void srv__answer_error(srv_answer *a, const srv_error *e)
{
    a->status = e->status;
    a->content_type = NULL;
    a->retry_after_s = e->retry_after_s;
    ltd_buf_clear(&a->body);
    srv__error_json(e, &a->body);
}

/* ---------------------------------------------------------------- text */

void srv__json_chars(ltd_buf *out, const char *s, size_t n)
{
    size_t at = out->len;
    ltd_buf_json_str(out, s, n);
    memmove(out->data + at, out->data + at + 1, out->len - at - 2);
    out->len -= 2;
    out->data[out->len] = 0;
}

size_t srv__utf8_cut(const char *s, size_t n, size_t max)
{
    if (n <= max) return n;
    size_t at = max;
    while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80) at--;
    return at ? at : max; /* no character is that long: not UTF-8, cut anywhere */
}

int64_t srv__utf8_chars(const char *s, size_t n)
{
    int64_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}
