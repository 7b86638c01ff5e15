/* test_server_frames - the message queue, the group map, SSE frames and logprobs objects, without a loop. */
#include "server/server_private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/byte_tokenizer.h"

static tok *tokenizer;
static srv server;
static srv_req request;
static srv_const consts;

static int setup(void **state)
{
    char dir[] = "/tmp/latentd-test-XXXXXX", path[64];
    ltd_err err;
    (void)state;
    if (!mkdtemp(dir)) return 1;
    support_write_byte_tokenizer(dir, NULL);
    if (tok_load(dir, 0, &tokenizer, &err) != LTD_OK) return 1;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
    consts.tok = tokenizer;
    snprintf(server.fingerprint, sizeof server.fingerprint, "fp");
    request.s = &server;
    snprintf(request.own_id, sizeof request.own_id, "0");
    snprintf(request.label, sizeof request.label, "0");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tok_destroy(tokenizer);
    return 0;
}

/* ---------------------------------------------------------------- a generation by hand */

static srv_gen *gen(int32_t n_prompts, int32_t n, int32_t n_logprobs, bool echo, bool usage)
{
    srv_call *call = ltd_calloc(1, sizeof *call);
    call->prompts = ltd_calloc((size_t)n_prompts, sizeof *call->prompts);
    call->n_prompts = n_prompts;
    call->n = n;
    call->stream = true;
    call->echo = echo;
    call->include_usage = usage;
    call->logprobs = n_logprobs >= 0;
    call->model = "m";
    call->r.n_logprobs = n_logprobs;
    call->r.n_prompt_logprobs = echo ? n_logprobs : -1;
    call->r.skip_special = true;
    for (int32_t i = 0; i < n_prompts; i++) {
        srv_prompt *p = &call->prompts[i];
        p->n = 3;
        p->ids = ltd_alloc(12);
        p->ids[0] = 'x';
        p->ids[1] = 0xC3;
        p->ids[2] = 0xA9;
        p->from_text = true;
        p->text = ltd_strdup("x\xc3\xa9");
        p->text_len = 3;
        call->prompt_tokens += 3;
    }
    return srv__gen_create(&request, &consts, call);
}

static srv_queue *queue;

static void apply(void *user, const srv_msg *m) { srv__gen_apply(user, m); }

static void feed(srv_gen *g, sched_event ev)
{
    if (!queue) queue = srv__queue_create();
    if (ev.text) ev.text_len = strlen(ev.text);
    srv__queue_push(queue, &ev);
    srv__queue_drain(queue, apply, g);
    srv__queue_destroy(queue);
    queue = NULL;
}

static void text(srv_gen *g, int32_t seq, const char *s, sched_finish finish, int32_t completion)
{
    feed(g, (sched_event){.kind = SCHED_EV_DELTA,
                          .seq = seq,
                          .text = s,
                          .n_top = -1,
                          .finish = finish,
                          .stop_id = -1,
                          .stop_string = -1,
                          .completion_tokens = completion});
}

static char *filled(srv_gen *g, bool *done)
{
    ltd_buf out = {0};
    ltd_buf_str(&out, "");
    *done = srv__sse_fill(g, &out, 1 << 20);
    return out.data;
}

/* The part of the frames behind "choices". */
static void frames_are(srv_gen *g, bool want_done, const char *want)
{
    bool done;
    char *all = filled(g, &done);
    ltd_buf got = {0};
    ltd_buf_str(&got, "");
    for (char *at = all; *at;) {
        char *end = strstr(at, "\n\n");
        assert_non_null(end);
        *end = 0;
        char *choices = strstr(at, "\"choices\":");
        ltd_buf_fmt(&got, "%s\n", choices ? choices + 10 : at);
        at = end + 2;
    }
    assert_string_equal(got.data, want);
    assert_int_equal(done, want_done);
    ltd_buf_deinit(&got);
    ltd_free(all);
}

static void frames_of_one_choice(void **state)
{
    (void)state;
    srv_gen *g = gen(1, 1, -1, false, false);
    frames_are(g, false, "");
    text(g, 0, "a\"\n", SCHED_RUNNING, 1);
    frames_are(g, false, "[{\"index\":0,\"text\":\"a\\\"\\n\",\"logprobs\":null,\"finish_reason\":null}]}\n");
    assert_int_equal(g->pending_bytes, 0);
    text(g, 0, "b", SCHED_RUNNING, 2);
    text(g, 0, "c", SCHED_LENGTH, 3);
    frames_are(g, true,
               "[{\"index\":0,\"text\":\"bc\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":"
               "null}]}\ndata: [DONE]\n");
    srv__gen_destroy(g);
}

static void frames_with_usage_and_a_ping(void **state)
{
    (void)state;
    srv_gen *g = gen(1, 2, -1, false, true);
    g->ping_due = true;
    frames_are(g, false, ": ping\n");
    text(g, 1, "b", SCHED_STOP, 2);
    frames_are(g, false,
               "[{\"index\":1,\"text\":\"b\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
               "null}],\"usage\":null}\n");
    text(g, 0, NULL, SCHED_STOP, 1);
    frames_are(g, true,
               "[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
               "null}],\"usage\":null}\n"
               "[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":3,\"total_tokens\":6,\"prompt_tokens_"
               "details\":{\"cached_tokens\":0},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":0}}}\ndata: [DONE]\n");
    srv__gen_destroy(g);
}

static void an_error_is_one_frame_and_the_end(void **state)
{
    (void)state;
    srv_gen *g = gen(1, 2, -1, false, true);
    text(g, 0, "a", SCHED_RUNNING, 1);
    text(g, 1, NULL, SCHED_ERROR, 1);
    bool done;
    char *all = filled(g, &done);
    assert_true(done);
    assert_null(strstr(all, "[DONE]"));
    assert_null(strstr(all, "finish_reason\":\""));
    char *error = strstr(all, "data: {\"error\":{\"message\":");
    assert_non_null(error);
    assert_non_null(strstr(error, "\n\n"));
    assert_int_equal(strlen(strstr(error, "\n\n")), 2);
    ltd_free(all);
    srv__gen_destroy(g);
}

static void a_backlog_leaves_in_parts_of_whole_characters(void **state)
{
    (void)state;
    srv_gen *g = gen(1, 1, -1, false, false);
    ltd_buf big = {0};
    for (int i = 0; i < 20000; i++) ltd_buf_str(&big, "\xe2\x82\xac");
    text(g, 0, big.data, SCHED_LENGTH, 5);
    bool done;
    char *all = filled(g, &done);
    int frames = 0;
    size_t euros = 0;
    for (char *at = strstr(all, "data: {"); at; at = strstr(at + 1, "data: {")) frames++;
    for (char *at = strstr(all, "\xe2\x82\xac"); at; at = strstr(at + 1, "\xe2\x82\xac")) euros++;
    assert_int_equal(frames, 4);
    assert_int_equal(euros, 20000);
    assert_null(strstr(all, "\xef\xbf\xbd"));
    assert_true(done);
    ltd_free(all);
    ltd_buf_deinit(&big);
    srv__gen_destroy(g);
}

/* ---------------------------------------------------------------- logprobs */

static void score(srv_gen *g, sched_event_kind kind, int32_t pos0, const char *s, const int32_t *ids,
                  int32_t n, sched_finish finish)
{
    sched_token t[8];
    static const int32_t tops[1] = {'t'};
    static const float top_logprobs[1] = {-0.5F};
    for (int32_t i = 0; i < n; i++)
        t[i] = (sched_token){.id = ids[i], .logprob = -1.5F, .top_ids = tops, .top_logprobs = top_logprobs};
    feed(g, (sched_event){.kind = kind,
                          .text = s,
                          .tokens = t,
                          .n_tokens = n,
                          .n_top = 1,
                          .pos0 = pos0,
                          .finish = finish,
                          .stop_id = -1,
                          .stop_string = -1});
}

static void offsets_count_characters_and_lone_bytes_are_spelled(void **state)
{
    (void)state;
    srv_gen *g = gen(1, 1, 1, false, false);
    score(g, SCHED_EV_DELTA, 0, "\xc3\xa9", (int32_t[]){0xC3, 0xA9}, 2, SCHED_RUNNING);
    frames_are(g, false,
               "[{\"index\":0,\"text\":\"\xc3\xa9\",\"logprobs\":{\"tokens\":[\"bytes:\\\\xc3\",\"bytes:"
               "\\\\xa9\"],\"token_logprobs\":[-1.5,-1.5],"
               "\"top_logprobs\":[{\"t\":-0.5,\"bytes:\\\\xc3\":-1.5},{\"t\":-0.5,\"bytes:\\\\xa9\":-1.5}],"
               "\"text_offset\":[0,0]},\"finish_reason\":null}]}\n");
    score(g, SCHED_EV_DELTA, 0, "t", (int32_t[]){'t'}, 1, SCHED_LENGTH);
    frames_are(g, true,
               "[{\"index\":0,\"text\":\"t\",\"logprobs\":{\"tokens\":[\"t\"],\"token_logprobs\":[-1.5],"
               "\"top_logprobs\":[{\"t\":-0.5}],\"text_offset\":[1]},"
               "\"finish_reason\":\"length\",\"stop_reason\":null}]}\ndata: [DONE]\n");
    srv__gen_destroy(g);
}

/* Scores of the prompt come in parts, twice (another choice's, or after a retraction), and count once. */
static void an_echo_waits_for_its_scores(void **state)
{
    (void)state;
    srv_gen *g = gen(1, 1, 1, true, false);
    score(g, SCHED_EV_PROMPT_LOGPROBS, 1, NULL, (int32_t[]){0xC3}, 1, SCHED_RUNNING);
    score(g, SCHED_EV_DELTA, 0, "t", (int32_t[]){'t'}, 1, SCHED_RUNNING);
    frames_are(g, false, "");
    score(g, SCHED_EV_PROMPT_LOGPROBS, 1, NULL, (int32_t[]){0xC3, 0xA9}, 2, SCHED_RUNNING);
    score(g, SCHED_EV_PROMPT_LOGPROBS, 1, NULL, (int32_t[]){0xC3, 0xA9}, 2, SCHED_RUNNING);
    frames_are(g, false,
               "[{\"index\":0,\"text\":\"x\xc3\xa9\",\"logprobs\":{\"tokens\":[\"x\",\"bytes:\\\\xc3\","
               "\"bytes:\\\\xa9\"],\"token_logprobs\":[null,-1.5,-1.5],"
               "\"top_logprobs\":[null,{\"t\":-0.5,\"bytes:\\\\xc3\":-1.5},{\"t\":-0.5,\"bytes:\\\\xa9\":-1."
               "5}],\"text_offset\":[0,1,1]},\"finish_reason\":null}]}\n"
               "[{\"index\":0,\"text\":\"t\",\"logprobs\":{\"tokens\":[\"t\"],\"token_logprobs\":[-1.5],"
               "\"top_logprobs\":[{\"t\":-0.5}],\"text_offset\":[2]},"
               "\"finish_reason\":null}]}\n");
    srv__gen_destroy(g);
}

static void the_whole_answer_is_the_same_in_any_portions(void **state)
{
    (void)state;
    char *want = NULL;
    for (size_t portion = 1; portion < 5000; portion = portion * 3 + 1) {
        srv_gen *g = gen(2, 2, 1, true, false);
        g->created = 5;
        for (int32_t p = 0; p < 2; p++) g->call->prompts[p].n_scored = 2;
        for (int32_t p = 0; p < 2; p++)
            for (int i = 0; i < 2; i++) {
                int32_t rec[4] = {g->call->prompts[p].ids[i + 1], 0, 't', 0};
                ltd_buf_add(&g->call->prompts[p].scores, rec, sizeof rec);
            }
        for (int32_t seq = 0; seq < 4; seq++)
            feed(g, (sched_event){.kind = SCHED_EV_DELTA,
                                  .seq = seq,
                                  .text = "zz",
                                  .n_top = 1,
                                  .tokens = &(sched_token){'z', -1, (int32_t[]){'z'}, (float[]){-1}},
                                  .n_tokens = 1,
                                  .finish = SCHED_LENGTH,
                                  .stop_id = -1,
                                  .stop_string = -1,
                                  .completion_tokens = 1});
        ltd_buf all = {0};
        ltd_buf_clear(&g->head);
        ltd_buf_str(&g->head, "{\"choices\":[");
        for (int i = 0; i < 10000; i++) {
            ltd_buf out = {0};
            bool done = srv__respond_fill(g, &out, portion);
            assert_true(done || out.len > 0);
            if (out.len) ltd_buf_add(&all, out.data, out.len);
            ltd_buf_deinit(&out);
            if (done) break;
        }
        if (!want)
            want = all.data;
        else {
            assert_string_equal(all.data, want);
            ltd_buf_deinit(&all);
        }
        srv__gen_destroy(g);
    }
    assert_non_null(strstr(want, "\"text\":\"x\xc3\xa9zz\""));
    assert_non_null(strstr(want, "\"text_offset\":[0,1,1,2]"));
    assert_non_null(
        strstr(want, "\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":4,\"total_tokens\":10"));
    ltd_free(want);
}

/* ---------------------------------------------------------------- the queue and the map */

typedef struct counter {
    int64_t n, bytes;
    uint64_t last;
} counter;

static void count(void *user, const srv_msg *m)
{
    counter *c = user;
    assert_true(m->group == c->last + 1);
    c->last = m->group;
    c->n++;
    c->bytes += m->text_len;
    for (uint32_t i = 0; i < m->text_len; i++) assert_int_equal(srv__msg_text(m)[i], (char)m->group);
}

static void a_burst_of_messages_comes_whole_and_in_order(void **state)
{
    (void)state;
    srv_queue *q = srv__queue_create();
    counter c = {0};
    static char big[200000];
    int64_t sent = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 1000; i++) {
            sched_event ev = {.group = (uint64_t)++sent,
                              .text = big,
                              .text_len = i == 500 ? sizeof big : (size_t)(i % 300),
                              .n_top = -1};
            memset(big, (int)(char)ev.group, ev.text_len);
            assert_int_equal(srv__queue_push(q, &ev), i == 0);
        }
        assert_int_equal(srv__queue_drain(q, count, &c), 1000);
    }
    assert_int_equal(srv__queue_drain(q, count, &c), 0);
    assert_int_equal(c.n, 3000);
    srv__queue_destroy(q);
}

static void the_map_agrees_with_a_plain_list(void **state)
{
    (void)state;
    enum { N = 3000 };
    static bool there[N + 1];
    static srv_req reqs[N + 1];
    srv_groups g = {0};
    uint32_t x = 7;
    size_t n = 0;
    for (int step = 0; step < 40000; step++) {
        x = x * 1664525u + 1013904223u;
        uint64_t id = 1 + (x >> 8) % N;
        if (there[id]) {
            srv__groups_remove(&g, id);
            n--;
        } else {
            srv__groups_put(&g, id, &reqs[id]);
            n++;
        }
        there[id] = !there[id];
        srv__groups_remove(&g, N + 5);
        uint64_t look = 1 + (x >> 4) % N;
        assert_ptr_equal(srv__groups_get(&g, look), there[look] ? &reqs[look] : NULL);
        assert_int_equal(g.n, n);
    }
    for (uint64_t id = 1; id <= N; id++)
        assert_ptr_equal(srv__groups_get(&g, id), there[id] ? &reqs[id] : NULL);
    srv__groups_deinit(&g);
}

static void characters_are_cut_and_counted(void **state)
{
    (void)state;
    assert_int_equal(srv__utf8_cut("a\xe2\x82\xac", 4, 4), 4);
    assert_int_equal(srv__utf8_cut("a\xe2\x82\xac", 4, 3), 1);
    assert_int_equal(srv__utf8_cut("a\xe2\x82\xac", 4, 1), 1);
    assert_int_equal(srv__utf8_cut("\xe2\x82\xac", 3, 2), 2);
    assert_int_equal(srv__utf8_chars("a\xe2\x82\xac\xf0\x9f\x98\x80", 8), 3);
    ltd_buf b = {0};
    ltd_buf_str(&b, "<");
    srv__json_chars(&b, "a\"b\n", 4);
    srv__json_chars(&b, "", 0);
    ltd_buf_str(&b, ">");
    assert_string_equal(b.data, "<a\\\"b\\n>");
    ltd_buf_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_of_one_choice),
        cmocka_unit_test(frames_with_usage_and_a_ping),
        cmocka_unit_test(an_error_is_one_frame_and_the_end),
        cmocka_unit_test(a_backlog_leaves_in_parts_of_whole_characters),
        cmocka_unit_test(offsets_count_characters_and_lone_bytes_are_spelled),
        cmocka_unit_test(an_echo_waits_for_its_scores),
        cmocka_unit_test(the_whole_answer_is_the_same_in_any_portions),
        cmocka_unit_test(a_burst_of_messages_comes_whole_and_in_order),
        cmocka_unit_test(the_map_agrees_with_a_plain_list),
        cmocka_unit_test(characters_are_cut_and_counted),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
