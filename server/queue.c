/* queue.c - what the engine says, as values, on its way to the loop.
 * A list of byte chunks under a mutex that is held for a memcpy at most.  The engine must neither block nor
 * call an allocator in its stride, so chunks are reused; a burst that needs more of them than ever before
 * takes one by plain malloc (the guard of ltd_alloc stands for "no allocation a token", and this is none a
 * token). */
#include <stdlib.h>
#include <string.h>

#include "server/server_private.h"

enum { CHUNK_BYTES = 64 << 10, CHUNKS_AT_START = 8, CHUNKS_KEPT = 64 };

struct srv_chunk {
    srv_chunk *next;
    size_t len, cap;
    char data[];
};

struct srv_queue {
    uv_mutex_t lock;
    srv_chunk *head, *tail; /* filled, oldest first */
    srv_chunk *spare;
    int n_spare;
};

static srv_chunk *chunk_new(size_t cap)
{
    srv_chunk *c = malloc(sizeof *c + cap);
    LTD_CHECK(c, "out of memory: a message chunk of %zu bytes", cap);
    c->next = NULL;
    c->len = 0;
    c->cap = cap;
    return c;
}

srv_queue *srv__queue_create(void)
{
    srv_queue *q = ltd_calloc(1, sizeof *q);
    LTD_CHECK(uv_mutex_init(&q->lock) == 0, "mutex");
    for (int i = 0; i < CHUNKS_AT_START; i++) {
        srv_chunk *c = chunk_new(CHUNK_BYTES);
        c->next = q->spare;
        q->spare = c;
        q->n_spare++;
    }
    return q;
}

static void free_list(srv_chunk *c)
{
    while (c) {
        srv_chunk *next = c->next;
        free(c);
        c = next;
    }
}

void srv__queue_destroy(srv_queue *q)
{
    if (!q) return;
    free_list(q->head);
    free_list(q->spare);
    uv_mutex_destroy(&q->lock);
    ltd_free(q);
}

/* Room for a message at the tail's end. */
static char *reserve(srv_queue *q, size_t bytes)
{
    if (!q->tail || q->tail->cap - q->tail->len < bytes) {
        srv_chunk *c = NULL;
        if (bytes <= CHUNK_BYTES && q->spare) {
            c = q->spare;
            q->spare = c->next;
            q->n_spare--;
            c->next = NULL;
            c->len = 0;
        } else {
            c = chunk_new(bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES);
        }
        if (q->tail)
            q->tail->next = c;
        else
            q->head = c;
        q->tail = c;
    }
    char *at = q->tail->data + q->tail->len;
    q->tail->len += bytes;
    return at;
}

static void write_scores(char *at, const sched_event *ev)
{
    size_t top = 4 * (size_t)ev->n_top;
    for (int32_t i = 0; i < ev->n_tokens; i++) {
        const sched_token *t = &ev->tokens[i];
        memcpy(at, &t->id, 4);
        memcpy(at + 4, &t->logprob, 4);
        if (top) {
            memcpy(at + 8, t->top_ids, top);
            memcpy(at + 8 + top, t->top_logprobs, top);
        }
        at += 8 + 2 * top;
    }
}

bool srv__queue_push(srv_queue *q, const sched_event *ev)
{
    int n_top = ev->n_top;
    int32_t n_tokens = n_top < 0 ? 0 : ev->n_tokens;
    size_t bytes =
        sizeof(srv_msg) + ev->text_len + (n_tokens ? (size_t)n_tokens * srv__score_bytes(n_top) : 0);
    bytes = (bytes + 7) & ~(size_t)7;
    srv_msg m = {
        .bytes = (uint32_t)bytes,
        .kind = (uint8_t)ev->kind,
        .finish = (uint8_t)ev->finish,
        .group_done = ev->group_done,
        .n_top = (int8_t)n_top,
        .group = ev->group,
        .seq = ev->seq,
        .pos0 = ev->pos0,
        .n_tokens = n_tokens,
        .stop_id = ev->stop_id,
        .stop_string = ev->stop_string,
        .prompt_tokens = ev->prompt_tokens,
        .cached_tokens = ev->cached_tokens,
        .completion_tokens = ev->completion_tokens,
        .text_len = (uint32_t)ev->text_len,
        .queued_us = ev->queued_us,
        .first_token_us = ev->first_token_us,
    };
    uv_mutex_lock(&q->lock);
    bool was_empty = !q->head;
    char *at = reserve(q, bytes);
    memcpy(at, &m, sizeof m);
    if (ev->text_len) memcpy(at + sizeof m, ev->text, ev->text_len);
    if (n_tokens) write_scores(at + sizeof m + ev->text_len, ev);
    uv_mutex_unlock(&q->lock);
    return was_empty;
}

int64_t srv__queue_drain(srv_queue *q, void (*fn)(void *user, const srv_msg *m), void *user)
{
    uv_mutex_lock(&q->lock);
    srv_chunk *list = q->head;
    q->head = q->tail = NULL;
    uv_mutex_unlock(&q->lock);

    int64_t n = 0;
    srv_chunk *keep = NULL, *drop = NULL;
    while (list) {
        srv_chunk *c = list;
        list = c->next;
        for (size_t at = 0; at < c->len; n++) {
            const srv_msg *m = (const srv_msg *)(c->data + at);
            fn(user, m);
            at += m->bytes;
        }
        srv_chunk **to = c->cap == CHUNK_BYTES ? &keep : &drop;
        c->next = *to;
        *to = c;
    }
    uv_mutex_lock(&q->lock);
    while (keep && q->n_spare < CHUNKS_KEPT) {
        srv_chunk *c = keep;
        keep = c->next;
        c->next = q->spare;
        q->spare = c;
        q->n_spare++;
    }
    uv_mutex_unlock(&q->lock);
    free_list(keep);
    free_list(drop);
    return n;
}
