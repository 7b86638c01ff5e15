/* sse.c - server-sent events of a streamed completion.
 * Frames are made when libmicrohttpd asks for bytes: whatever text of a choice has come since the last one
 * becomes one frame, so a reader that keeps up gets a frame a token and a slow one gets fewer and longer
 * frames. */
#include <string.h>

#include "server/server_private.h"

enum { FRAME_TEXT = 16 << 10 };

static void frame_open(const srv_gen *g, ltd_buf *out)
{
    ltd_buf_add(out, "data: ", 6);
    ltd_buf_add(out, g->head.data, g->head.len);
}

/* `finish`: the frame is the choice's last. */
static void frame_close(const srv_gen *g, const srv_choice *ch, bool finish, ltd_buf *out)
{
    if (finish) {
        ltd_buf_fmt(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", srv__gen_finish_name(ch));
        srv__gen_stop_reason(g, ch, out);
    } else {
        ltd_buf_str(out, ",\"finish_reason\":null");
    }
    ltd_buf_str(out, g->call->include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}

static void put_logprobs(srv_gen *g, int32_t choice, int32_t from, int32_t to, ltd_buf *out)
{
    ltd_buf_str(out, ",\"logprobs\":");
    if (!g->call->logprobs || from == to) {
        ltd_buf_str(out, "null");
        return;
    }
    srv_lp_cursor cur = {.from = from, .to = to, .i = from};
    srv__logprobs_write(g, choice, &cur, out, SIZE_MAX);
}

static void frame_text(const srv_gen *g, int32_t choice, const char *s, size_t n, ltd_buf *out)
{
    frame_open(g, out);
    ltd_buf_fmt(out, "{\"index\":%d,\"text\":", choice);
    ltd_buf_json_str(out, n ? s : "", n);
}

/* The prompt first, once its scores are complete; false: not yet. */
static bool echo(srv_gen *g, int32_t choice, ltd_buf *out)
{
    srv_choice *ch = &g->choices[choice];
    const srv_prompt *p = &g->call->prompts[choice / g->call->n];
    if (!g->call->echo || ch->echo_sent) return true;
    if (g->call->logprobs && p->n_scored < p->n - 1 && !ch->finish) return false;
    ch->echo_sent = true;
    if (p->text_len == 0 && !g->call->logprobs) return true;
    frame_text(g, choice, p->text, p->text_len, out);
    put_logprobs(g, choice, 0, srv__gen_echo_entries(g, choice), out);
    frame_close(g, ch, false, out);
    return true;
}

/* The choice's next frame; false: it has none. */
static bool choice_frame(srv_gen *g, int32_t choice, ltd_buf *out)
{
    srv_choice *ch = &g->choices[choice];
    bool finished =
        ch->finish && !g->failed; /* of a failed one only the text that is there, then the error */
    if (ch->end_sent || (!ch->text.len && !finished)) return false;
    if (!echo(g, choice, out)) return false;
    /* A long backlog leaves in parts, but where log-probabilities belong to the text. */
    size_t n = g->call->logprobs ? ch->text.len : srv__utf8_cut(ch->text.data, ch->text.len, FRAME_TEXT);
    bool last = finished && n == ch->text.len;
    int32_t to = srv__gen_entries(g, choice), from = to;
    if (g->call->logprobs) from -= (int32_t)(ch->scores.len / srv__score_bytes(g->call->r.n_logprobs));
    frame_text(g, choice, ch->text.data, n, out);
    put_logprobs(g, choice, from, to, out);
    frame_close(g, ch, last, out);
    g->pending_bytes -= n + ch->scores.len;
    ch->n_sent += to - from;
    ltd_buf_clear(&ch->scores);
    if (n == ch->text.len) {
        ltd_buf_clear(&ch->text);
    } else {
        memmove(ch->text.data, ch->text.data + n, ch->text.len - n);
        ch->text.len -= n;
    }
    ch->end_sent = last;
    return true;
}

void srv__sse_error(const srv_error *e, ltd_buf *out)
{
    ltd_buf_str(out, "data: ");
    srv__error_json(e, out);
    ltd_buf_str(out, "\n\n");
}

static void end(srv_gen *g, ltd_buf *out)
{
    if (g->call->include_usage) {
        frame_open(g, out);
        ltd_buf_str(out, "],\"usage\":");
        srv__gen_usage(g, out);
        ltd_buf_str(out, "}\n\n");
    }
    ltd_buf_str(out, "data: [DONE]\n\n");
    g->done_sent = true;
}

bool srv__sse_fill(srv_gen *g, ltd_buf *out, size_t want)
{
    size_t from = out->len;
    if (g->done_sent) return true;
    if (g->ping_due) ltd_buf_str(out, ": ping\n\n");
    g->ping_due = false;
    /* Round robin over the choices, so that one with a backlog does not hold up the others. */
    for (int32_t idle = 0; idle < g->n_choices && out->len - from < want;) {
        idle = choice_frame(g, g->at_choice, out) ? 0 : idle + 1;
        g->at_choice = g->at_choice + 1 < g->n_choices ? g->at_choice + 1 : 0;
    }
    if (out->len - from >= want) return false;
    if (g->failed) {
        srv__sse_error(&g->error, out);
        g->done_sent = true;
    } else {
        int32_t ended = 0;
        for (int32_t i = 0; i < g->n_choices; i++) ended += g->choices[i].end_sent;
        if (ended == g->n_choices) end(g, out);
    }
    return g->done_sent;
}
