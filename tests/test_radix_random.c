/* test_radix_random - the tree and the slot allocator under random sequences of operations, against an
 * obvious model.
 *
 * The model is a trie of single tokens, one entry a slot: parent, token, border, salt, how many paths cover
 * it, when it was last unlocked.  Eviction in the model looks at every entry for the oldest unlocked leaf, a
 * token at a time.  Sequences act as the scheduler's do: they lock what is cached, take slots for what is not
 * (1 take in 20 is refused), insert while they go on, end with or without an insert.  After every operation:
 * same answers, same counts, the tree's own check (in the short form), each slot with one owner. */
#include "mempool/mempool.h"
#include "radix/radix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_SLOTS = 4000, MAX_LEN = 200, MAX_SEQS = 12, N_SALTS = 3, MAX_KEYS = 64 };

typedef struct entry {
    int32_t parent; /* slot of the token before; -1 - salt for the first of a key */
    int32_t token, border;
    int32_t first_child, sib_next; /* slots */
    int32_t lock;
    int64_t used; /* number of the unlock that last touched it */
    bool present;
} entry;

typedef struct seq {
    bool live;
    int32_t tokens[MAX_LEN], slots[MAX_LEN];
    int32_t n_tokens, n_prompt, n_have; /* slots[0..n_have): path.n_tokens of the tree's, then its own */
    int salt;
    radix_path path;
} seq;

typedef struct world {
    uint64_t seed, rng;
    long op;
    bool borders;
    int32_t n_slots;
    radix *r;
    pool_slots *pool;
    int32_t private; /* slots held by sequences alone */
    seq seqs[MAX_SEQS];
    struct {
        int32_t tokens[MAX_LEN], n;
    } keys[MAX_KEYS]; /* earlier ones, to begin new ones with */
    int n_keys;
    /* the model */
    entry e[MAX_SLOTS + 1];
    int32_t roots[N_SALTS]; /* first child */
    int32_t n_tokens, n_locked;
    int64_t unlocks;
    /* what the last eviction gave up */
    uint8_t given[MAX_SLOTS + 1];
    int32_t n_given;
} world;

#define FAIL(...)                                                                                            \
    do {                                                                                                     \
        print_error("seed %lu, operation %ld: ", (unsigned long)w->seed, w->op);                             \
        fail_msg(__VA_ARGS__);                                                                               \
    } while (0)

static uint32_t rnd(world *w, uint32_t n)
{
    w->rng ^= w->rng << 13;
    w->rng ^= w->rng >> 7;
    w->rng ^= w->rng << 17;
    return (uint32_t)((w->rng >> 20) % n);
}

/* ---------------------------------------------------------------- the model */

static int32_t model_border(const world *w, const seq *s, int32_t i)
{
    return w->borders && i >= s->n_prompt ? s->n_prompt : 0;
}

static int32_t *model_children(world *w, int32_t parent)
{
    return parent < 0 ? &w->roots[-1 - parent] : &w->e[parent].first_child;
}

static int32_t model_child(world *w, int32_t parent, int32_t token, int32_t border)
{
    for (int32_t c = *model_children(w, parent); c; c = w->e[c].sib_next)
        if (w->e[c].token == token && w->e[c].border == border) return c;
    return 0;
}

/* Slots of the longest cached prefix of at most most tokens. */
static int32_t model_match(world *w, const seq *s, int32_t most, int32_t *slots)
{
    int32_t at = -1 - s->salt, n = 0;
    for (; n < most && n < s->n_tokens; n++) {
        at = model_child(w, at, s->tokens[n], model_border(w, s, n));
        if (!at) break;
        slots[n] = at;
    }
    return n;
}

static void model_lock(world *w, int32_t slot)
{
    if (w->e[slot].lock++ == 0) w->n_locked++;
}

static void model_unlock(world *w, const int32_t *slots, int32_t n)
{
    w->unlocks++;
    for (int32_t i = 0; i < n; i++)
        if (--w->e[slots[i]].lock == 0) {
            w->e[slots[i]].used = w->unlocks;
            w->n_locked--;
        }
}

static void model_add(world *w, int32_t parent, int32_t token, int32_t border, int32_t slot)
{
    if (w->e[slot].present) FAIL("slot %d is inserted twice", slot);
    int32_t *list = model_children(w, parent);
    w->e[slot] =
        (entry){.parent = parent, .token = token, .border = border, .sib_next = *list, .present = true};
    *list = slot;
    w->n_tokens++;
}

/* The oldest unlocked leaf, 0 = none. */
static int32_t model_oldest(const world *w)
{
    int32_t best = 0;
    for (int32_t s = 1; s <= w->n_slots; s++) {
        const entry *e = &w->e[s];
        if (e->present && !e->lock && !e->first_child && (!best || e->used < w->e[best].used)) best = s;
    }
    return best;
}

static void model_remove(world *w, int32_t slot)
{
    int32_t *at = model_children(w, w->e[slot].parent);
    while (*at != slot) at = &w->e[*at].sib_next;
    *at = w->e[slot].sib_next;
    w->e[slot].present = false;
    w->n_tokens--;
}

/* ---------------------------------------------------------------- operations */

static radix_key key_of(const seq *s, int32_t n)
{
    return (radix_key){.tokens = s->tokens,
                       .n_tokens = n,
                       .n_prompt = s->n_prompt,
                       .salt = {s->salt == 1, s->salt == 2 ? 7 : 0}};
}

static void on_evict(void *user, const int32_t *slots, int32_t n)
{
    world *w = user;
    for (int32_t i = 0; i < n; i++) {
        if (w->given[slots[i]]++) FAIL("slot %d is evicted twice", slots[i]);
        if (w->e[slots[i]].lock) FAIL("slot %d is evicted under a lock", slots[i]);
    }
    w->n_given += n;
    pool_slots_give(w->pool, slots, n);
}

static void evict(world *w, int32_t n)
{
    memset(w->given, 0, (size_t)w->n_slots + 1);
    w->n_given = 0;
    int32_t done = radix_evict(w->r, n, on_evict, w), want = w->n_tokens - w->n_locked;
    if (want > n) want = n;
    if (done != want || w->n_given != want) FAIL("evicted %d, gave %d, should be %d", done, w->n_given, want);
    for (int32_t i = 0; i < done; i++) {
        int32_t slot = model_oldest(w);
        if (!w->given[slot]) FAIL("slot %d is older than what was evicted", slot);
        model_remove(w, slot);
    }
}

/* A key that begins as an earlier one, or fresh; few token ids, so that they meet often. */
static void make_key(world *w, seq *s)
{
    int32_t n = 0, most = rnd(w, 8) ? 40 : MAX_LEN;
    if (w->n_keys && rnd(w, 4)) {
        int k = (int)rnd(w, (uint32_t)w->n_keys);
        n = (int32_t)rnd(w, (uint32_t)w->keys[k].n + 1);
        memcpy(s->tokens, w->keys[k].tokens, (size_t)n * sizeof *s->tokens);
        if (n > most) most = n;
    }
    int32_t want = n + (int32_t)rnd(w, (uint32_t)(most - n) + 1);
    if (want < 1) want = 1;
    while (n < want) s->tokens[n++] = (int32_t)rnd(w, rnd(w, 6) ? 2 : 1000);
    s->n_tokens = n;
    s->n_prompt = rnd(w, 3) ? n : 1 + (int32_t)rnd(w, (uint32_t)n); /* the rest was "generated" */
    s->salt = rnd(w, 5) ? 0 : (int)rnd(w, N_SALTS);
    int slot = w->n_keys < MAX_KEYS ? w->n_keys++ : (int)rnd(w, MAX_KEYS);
    memcpy(w->keys[slot].tokens, s->tokens, (size_t)n * sizeof *s->tokens);
    w->keys[slot].n = n;
}

static void op_peek(world *w)
{
    seq s;
    int32_t slots[MAX_LEN];
    make_key(w, &s);
    radix_key k = key_of(&s, s.n_tokens);
    radix_stats before = radix_get_stats(w->r), after;
    int32_t got = radix_peek(w->r, &k), want = model_match(w, &s, s.n_tokens, slots);
    if (got != want) FAIL("peek: %d, should be %d", got, want);
    after = radix_get_stats(w->r);
    if (memcmp(&before, &after, sizeof before)) FAIL("peek changed the tree");
}

static void op_start(world *w, seq *s)
{
    int32_t want_slots[MAX_LEN];
    make_key(w, s);
    radix_key k = key_of(s, s->n_tokens);
    int32_t most = rnd(w, 4) ? s->n_tokens - 1 : (int32_t)rnd(w, (uint32_t)s->n_tokens + 2);
    int32_t want = model_match(w, s, most, want_slots);
    s->path = radix_lock(w->r, &k, most, w->op, s->slots);
    if (s->path.n_tokens != want || (want == 0) != (s->path.node == 0))
        FAIL("lock: {%d, %d}, should be %d", s->path.node, s->path.n_tokens, want);
    for (int32_t i = 0; i < want; i++) {
        if (s->slots[i] != want_slots[i])
            FAIL("lock: slot %d at %d, should be %d", s->slots[i], i, want_slots[i]);
        model_lock(w, want_slots[i]);
    }
    s->n_have = want;
    s->live = true;
}

static void op_compute(world *w, seq *s)
{
    int32_t n = s->n_tokens - s->n_have;
    if (n > 1) n = 1 + (int32_t)rnd(w, (uint32_t)n);
    if (!n) { /* one more is generated */
        if (s->n_tokens == MAX_LEN) return;
        s->tokens[s->n_tokens++] = (int32_t)rnd(w, 2);
        n = 1;
    }
    int32_t after = s->n_have ? s->slots[s->n_have - 1] : 0;
    int32_t short_by = n - pool_slots_free(w->pool);
    if (short_by > 0) evict(w, short_by + (int32_t)rnd(w, 5));
    int32_t before = pool_slots_free(w->pool);
    ltd_status st = pool_slots_take(w->pool, n, after, s->slots + s->n_have);
    if (st != LTD_OK) {
        if (pool_slots_free(w->pool) != before) FAIL("a refused take took something");
        return;
    }
    s->n_have += n;
    w->private += n;
}

/*   0           path          have of the tree            n         n_have
 *   | the tree's | duplicates go back | become the tree's | stay its own | */
static void op_insert(world *w, seq *s, int32_t n)
{
    int32_t dup[MAX_LEN], n_dup = -1, own[MAX_LEN], want_dup = 0, from = s->path.n_tokens;
    memcpy(own, s->slots, sizeof own);
    radix_key k = key_of(s, n);
    radix_insert(w->r, &k, w->op, &s->path, s->slots, dup, &n_dup);
    if (s->path.n_tokens != n || (n && !s->path.node))
        FAIL("insert of %d ended at {%d, %d}", n, s->path.node, s->path.n_tokens);
    int32_t at = from ? own[from - 1] : -1 - s->salt;
    for (int32_t i = 0; i < from; i++)
        if (s->slots[i] != own[i]) FAIL("insert rewrote position %d, which was the tree's", i);
    for (int32_t i = from; i < n; i++) {
        int32_t child = model_child(w, at, s->tokens[i], model_border(w, s, i));
        if (child) {
            if (want_dup == n_dup || dup[want_dup] != own[i])
                FAIL("insert: position %d's slot is no duplicate", i);
            want_dup++;
        } else {
            child = own[i];
            model_add(w, at, s->tokens[i], model_border(w, s, i), child);
        }
        if (s->slots[i] != child) FAIL("insert: slot %d at %d, should be %d", s->slots[i], i, child);
        model_lock(w, child);
        at = child;
    }
    if (want_dup != n_dup) FAIL("insert: %d duplicates, should be %d", n_dup, want_dup);
    for (int32_t i = n; i < s->n_have; i++)
        if (s->slots[i] != own[i]) FAIL("insert rewrote position %d, past its end", i);
    pool_slots_give(w->pool, dup, n_dup);
    w->private -= n - from;
}

static void op_end(world *w, seq *s)
{
    if (rnd(w, 4)) op_insert(w, s, s->n_have);
    model_unlock(w, s->slots, s->path.n_tokens);
    int32_t of_tree = s->path.n_tokens;
    radix_unlock(w->r, &s->path);
    if (s->path.node || s->path.n_tokens) FAIL("an ended path is {%d, %d}", s->path.node, s->path.n_tokens);
    radix_unlock(w->r, &s->path);
    pool_slots_give(w->pool, s->slots + of_tree, s->n_have - of_tree);
    w->private -= s->n_have - of_tree;
    s->live = false;
}

/* ---------------------------------------------------------------- after each */

static void check_counts(world *w)
{
    radix_stats st = radix_get_stats(w->r);
    if (st.n_tokens != w->n_tokens || st.n_locked != w->n_locked)
        FAIL("%d tokens, %d locked; should be %d and %d", st.n_tokens, st.n_locked, w->n_tokens, w->n_locked);
    if (pool_slots_free(w->pool) + w->private + st.n_tokens != w->n_slots)
        FAIL("%d free + %d private + %d of the tree is not %d", pool_slots_free(w->pool), w->private,
             st.n_tokens, w->n_slots);
}

static void check_all(world *w)
{
    ltd_err err;
    static uint8_t held[MAX_SLOTS + 1];
    memset(held, 0, sizeof held);
    if (radix_check(w->r, &err) != LTD_OK || pool_slots_check(w->pool, &err) != LTD_OK) FAIL("%s", err.text);
    radix_mark_slots(w->r, held);
    for (int32_t s = 1; s <= w->n_slots; s++)
        if (held[s] != w->e[s].present)
            FAIL("slot %d: %d in the tree, %d in the model", s, held[s], w->e[s].present);
    for (int i = 0; i < MAX_SEQS; i++) {
        const seq *s = &w->seqs[i];
        for (int32_t k = s->path.n_tokens; s->live && k < s->n_have; k++) held[s->slots[k]]++;
    }
    if (pool_slots_check_owners(w->pool, held, &err) != LTD_OK) FAIL("%s", err.text);
}

static void run(uint64_t seed, int32_t n_slots, bool borders, long n_ops, long check_every)
{
    world *w = calloc(1, sizeof *w);
    w->seed = seed;
    w->rng = seed * 0x9e3779b97f4a7c15u + 1;
    w->borders = borders;
    w->n_slots = n_slots;
    radix_options o = {.n_slots = n_slots, .keep_borders = borders};
    assert_int_equal(radix_create(&o, &w->r), LTD_OK);
    assert_int_equal(pool_slots_create(n_slots, &w->pool), LTD_OK);
    pool_slots_fail_take(w->pool, 20, true);
    ltd_alloc_guard(true);
    for (w->op = 1; w->op <= n_ops; w->op++) {
        seq *s = &w->seqs[rnd(w, MAX_SEQS)];
        uint32_t what = rnd(w, 100);
        if (what < 8)
            op_peek(w);
        else if (what < 16)
            evict(w, (int32_t)rnd(w, rnd(w, 10) ? 20 : (uint32_t)n_slots * 2));
        else if (!s->live)
            op_start(w, s);
        else if (what < 60)
            op_compute(w, s);
        else if (what < 80)
            op_insert(w, s, s->path.n_tokens + (int32_t)rnd(w, (uint32_t)(s->n_have - s->path.n_tokens) + 1));
        else
            op_end(w, s);
        check_counts(w);
        if (w->op % check_every == 0) check_all(w);
    }
    check_all(w);
    for (int i = 0; i < MAX_SEQS; i++)
        if (w->seqs[i].live) op_end(w, &w->seqs[i]);
    check_all(w);
    assert_int_equal(radix_get_stats(w->r).n_locked, 0);
    evict(w, n_slots + 5);
    check_all(w);
    assert_int_equal(pool_slots_free(w->pool), n_slots);
    assert_int_equal(radix_get_stats(w->r).n_nodes, 0);
    ltd_alloc_guard(false);
    radix_destroy(w->r);
    pool_slots_destroy(w->pool);
    free(w);
}

/* Sanitizer and debug flavours are many times slower; they run a part. */
#ifdef LTD_DEBUG
enum { PART = 4 };
#else
enum { PART = 1 };
#endif

static void short_runs_equal_the_model_checked_after_each_operation(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 7, 30, 100, 250, 600};
    print_message("seeds 1..12, 20000 operations each\n");
    for (uint64_t seed = 1; seed <= 12; seed++) run(seed, sizes[(seed - 1) / 2], seed % 2, 20000 / PART, 1);
}

static void long_runs_equal_the_model(void **state)
{
    (void)state;
    static const int32_t sizes[] = {60, 200, 500, 1000, MAX_SLOTS};
    print_message("seeds 101..110, 100000 operations each\n");
    for (uint64_t seed = 101; seed <= 110; seed++)
        run(seed, sizes[(seed - 101) / 2], seed % 2, 100000 / PART, 101);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_runs_equal_the_model_checked_after_each_operation),
        cmocka_unit_test(long_runs_equal_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
