/* test_radix_tree - the tree's cases one by one: match, split, insert, lock, evict, borders, salts; D25 and
 * D26's duplicates. */
#include "radix/radix_private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_SLOTS = 4096 };

typedef struct bag { /* what eviction gave up, in order */
    int32_t slot[N_SLOTS];
    int32_t n;
} bag;

static void bag_add(void *user, const int32_t *slots, int32_t n)
{
    bag *b = user;
    memcpy(b->slot + b->n, slots, (size_t)n * sizeof *slots);
    b->n += n;
}

static radix *make(int32_t n_slots, bool borders)
{
    radix *r;
    radix_options o = {.n_slots = n_slots, .keep_borders = borders};
    assert_int_equal(radix_create(&o, &r), LTD_OK);
    return r;
}

static void check(const radix *r)
{
    ltd_err err;
    if (radix_check(r, &err) != LTD_OK) fail_msg("%s", err.text);
}

static radix_key key_of(const int32_t *tokens, int32_t n)
{
    return (radix_key){.tokens = tokens, .n_tokens = n, .n_prompt = n};
}

/* Inserts with slots first, first + 1, ... behind path; returns how many duplicates. */
static int32_t put(radix *r, const radix_key *k, radix_path *path, int32_t first, int32_t *slots)
{
    int32_t dup[N_SLOTS], n_dup = -1;
    for (int32_t i = path->n_tokens; i < k->n_tokens; i++) slots[i] = first + i - path->n_tokens;
    radix_insert(r, k, 1, path, slots, dup, &n_dup);
    check(r);
    assert_int_equal(path->n_tokens, k->n_tokens);
    return n_dup;
}

static void fill(int32_t *tokens, int32_t n, int32_t base)
{
    for (int32_t i = 0; i < n; i++) tokens[i] = base + i;
}

static int32_t evict_all(radix *r)
{
    static bag b;
    b.n = 0;
    return radix_evict(r, INT32_MAX, bag_add, &b);
}

static void lock_on_empty_tree_gives_nothing(void **state)
{
    (void)state;
    radix *r = make(10, false);
    int32_t t[3] = {1, 2, 3}, s[3];
    radix_key k = key_of(t, 3);
    radix_path p = radix_lock(r, &k, 3, 1, s);
    assert_int_equal(p.node, 0);
    assert_int_equal(p.n_tokens, 0);
    assert_int_equal(radix_peek(r, &k), 0);
    radix_unlock(r, &p);
    assert_int_equal(evict_all(r), 0);
    check(r);
    radix_destroy(r);
    radix_destroy(NULL);
}

static void create_without_slots_is_refused(void **state)
{
    (void)state;
    radix *r;
    assert_int_equal(radix_create(&(radix_options){.n_slots = 0}, &r), LTD_INVALID);
}

static void lock_inside_a_run_splits_it(void **state)
{
    (void)state;
    for (int32_t cut = 1; cut < 100; cut++) { /* across block ends */
        radix *r = make(200, false);
        int32_t t[100], s[100], got[100];
        fill(t, 100, 1000);
        radix_key k = key_of(t, 100);
        radix_path p = {0, 0};
        assert_int_equal(put(r, &k, &p, 7, s), 0);
        assert_int_equal(radix_get_stats(r).n_nodes, 1);
        radix_path q = radix_lock(r, &k, cut, 2, got);
        check(r);
        assert_int_equal(q.n_tokens, cut);
        for (int32_t i = 0; i < cut; i++) assert_int_equal(got[i], 7 + i);
        assert_int_equal(radix_get_stats(r).n_nodes, 2);
        assert_int_equal(radix_get_stats(r).splits, 1);
        assert_int_equal(radix_get_stats(r).n_locked, 100);
        radix_unlock(r, &p);
        check(r);
        assert_int_equal(radix_get_stats(r).n_locked, cut);
        assert_int_equal(evict_all(r), 100 - cut);
        radix_unlock(r, &q);
        radix_unlock(r, &q); /* idempotent */
        assert_int_equal(evict_all(r), cut);
        check(r);
        assert_int_equal(radix_get_stats(r).n_nodes, 0);
        radix_destroy(r);
    }
}

static void peek_changes_nothing(void **state)
{
    (void)state;
    radix *r = make(200, false);
    int32_t t[64], s[64];
    fill(t, 64, 0);
    radix_key k = key_of(t, 64);
    radix_path p = {0, 0};
    put(r, &k, &p, 1, s);
    radix_unlock(r, &p);
    radix_stats before = radix_get_stats(r);
    for (int32_t n = 0; n <= 64; n++) {
        k.n_tokens = n;
        assert_int_equal(radix_peek(r, &k), n);
    }
    k.n_tokens = 64;
    t[40] = -5;
    assert_int_equal(radix_peek(r, &k), 40);
    radix_stats after = radix_get_stats(r);
    assert_memory_equal(&before, &after, sizeof before);
    radix_destroy(r);
}

/* Chunks of one prefill make one run as long as nobody else holds its end. */
static void insert_by_chunks_stays_one_run(void **state)
{
    (void)state;
    radix *r = make(300, false);
    int32_t t[200], s[200], got[200];
    fill(t, 200, 5);
    radix_path p = {0, 0}, q;
    for (int32_t n = 50; n <= 150; n += 50) {
        radix_key k = key_of(t, n);
        put(r, &k, &p, n, s);
        assert_int_equal(radix_get_stats(r).n_nodes, 1);
    }
    radix_key k = key_of(t, 200);
    q = radix_lock(r, &k, 200, 2, got);
    assert_int_equal(q.n_tokens, 150);
    put(r, &k, &p, 200, s); /* q ends where p ended: a new node */
    assert_int_equal(radix_get_stats(r).n_nodes, 2);
    radix_unlock(r, &p);
    assert_int_equal(radix_get_stats(r).n_locked, 150);
    radix_unlock(r, &q);
    assert_int_equal(evict_all(r), 200);
    radix_destroy(r);
}

static void d25_lock_covers_ancestors_and_lives_through_splits(void **state)
{
    (void)state;
    enum { TOTAL = 100 };
    radix *r = make(TOTAL, false);
    bag b = {.n = 0};
    int32_t t[8] = {1, 2, 3, 4, 5, 6, 7, 8}, u[6] = {1, 2, 3, 4, 9, 10}, s[8], got[8];
    int32_t n_free = TOTAL - 8;
    radix_key k = key_of(t, 8), ku = key_of(u, 6);
    radix_path p = {0, 0}, q = {0, 0};
    put(r, &k, &p, 1, s);
    radix_unlock(r, &p);
#define SUM() assert_int_equal(n_free + b.n + radix_get_stats(r).n_tokens, TOTAL)
    SUM();
    p = radix_lock(r, &k, 8, 2, got);
    assert_int_equal(p.n_tokens, 8);
    assert_int_equal(radix_evict(r, 8, bag_add, &b), 0);
    SUM();
    int32_t su[6] = {0, 0, 0, 0, 0, 0}, dup[6], n_dup;
    for (int32_t i = 0; i < 6; i++) su[i] = 9 + i; /* six more taken */
    n_free -= 6;
    radix_insert(r, &ku, 3, &q, su, dup, &n_dup);
    check(r);
    assert_int_equal(n_dup, 4);
    n_free += n_dup;
    radix_unlock(r, &q);
    SUM();
    assert_int_equal(radix_evict(r, 100, bag_add, &b), 2);
    SUM();
    assert_int_equal(radix_peek(r, &k), 8);
    assert_int_equal(radix_peek(r, &ku), 4);
    check(r);
    radix_unlock(r, &p);
    assert_int_equal(radix_evict(r, 100, bag_add, &b), 8);
    SUM();
    check(r);
    assert_int_equal(radix_get_stats(r).n_tokens, 0);
    radix_destroy(r);
}

/* Two equal prompts were computed side by side: the later insert gets the tree's slots and hands its own
 * back, once each. */
static void d26_equal_prompts_leave_one_owner_each(void **state)
{
    (void)state;
    radix *r = make(64, false);
    int32_t t[8] = {3, 1, 4, 1, 5, 9, 2, 6}, a[8], c[8], dup[8], n_dup;
    radix_key k = key_of(t, 8);
    radix_path p = {0, 0}, q = {0, 0};
    assert_int_equal(put(r, &k, &p, 1, a), 0);
    for (int32_t i = 0; i < 8; i++) c[i] = 20 + i;
    radix_insert(r, &k, 2, &q, c, dup, &n_dup);
    check(r);
    assert_int_equal(n_dup, 8);
    for (int32_t i = 0; i < 8; i++) {
        assert_int_equal(c[i], a[i]);
        assert_int_equal(dup[i], 20 + i);
    }
    radix_unlock(r, &p);
    assert_int_equal(evict_all(r), 0); /* q still holds what its table names */
    radix_unlock(r, &q);
    assert_int_equal(evict_all(r), 8);
    radix_destroy(r);
}

static void insert_duplicates_only_where_the_tree_has_tokens(void **state)
{
    (void)state;
    radix *r = make(500, false);
    int32_t t[100], s[100], dup[100], n_dup;
    fill(t, 100, 0);
    radix_key k = key_of(t, 70);
    radix_path p = {0, 0}, q;
    put(r, &k, &p, 1, s); /* 70 tokens: slots 1..70 */
    q = radix_lock(r, &k, 30, 2, s);
    assert_int_equal(q.n_tokens, 30);
    k = key_of(t, 100);
    t[60] = -1;
    for (int32_t i = 30; i < 100; i++) s[i] = 200 + i;
    radix_insert(r, &k, 3, &q, s, dup, &n_dup);
    check(r);
    assert_int_equal(n_dup, 30); /* positions 30..59 */
    for (int32_t i = 0; i < 30; i++) assert_int_equal(dup[i], 230 + i);
    for (int32_t i = 0; i < 100; i++) assert_int_equal(s[i], i < 60 ? 1 + i : 200 + i);
    radix_unlock(r, &p);
    radix_unlock(r, &q);
    assert_int_equal(evict_all(r), 110);
    radix_destroy(r);
}

static void evict_takes_least_recently_used_from_the_end(void **state)
{
    (void)state;
    radix *r = make(500, false);
    bag b = {.n = 0};
    int32_t t[3][40], s[40], got[40];
    radix_path p[3];
    for (int32_t i = 0; i < 3; i++) {
        fill(t[i], 40, 100 * i);
        t[i][0] = 1; /* one shared token, then three leaves of 39 */
        radix_key k = key_of(t[i], 40);
        p[i] = (radix_path){0, 0};
        put(r, &k, &p[i], 1 + 40 * i, s);
    }
    for (int32_t i = 0; i < 3; i++) radix_unlock(r, &p[i]);
    radix_key k = key_of(t[0], 40);
    radix_path again = radix_lock(r, &k, 40, 9, got);
    radix_unlock(r, &again);
    assert_int_equal(radix_evict(r, 10, bag_add, &b), 10); /* the second's end */
    for (int32_t i = 0; i < 10; i++) assert_in_range(b.slot[i], 41 + 30, 41 + 39);
    b.n = 0;
    assert_int_equal(radix_evict(r, 29 + 39 + 1, bag_add, &b),
                     69); /* the rest of it, all of the third, one of the first */
    for (int32_t i = 0; i < 29; i++) assert_in_range(b.slot[i], 41 + 1, 41 + 29);
    for (int32_t i = 29; i < 68; i++) assert_in_range(b.slot[i], 81 + 1, 81 + 39);
    assert_int_equal(b.slot[68], 40);
    check(r);
    b.n = 0;
    assert_int_equal(radix_evict(r, 1000, bag_add, &b),
                     39); /* more than there is: the shared token goes last */
    assert_int_equal(b.slot[38], 1);
    check(r);
    assert_int_equal(radix_evict(r, 1, bag_add, &b), 0);
    radix_destroy(r);
}

/* A parent that becomes a leaf has its own age: not the evicted child's. */
static void evict_puts_a_new_leaf_in_its_own_place(void **state)
{
    (void)state;
    radix *r = make(100, false);
    bag b = {.n = 0};
    int32_t t[3][2] = {{1, 2}, {1, 3}, {7, 8}}, s[2];
    radix_key k[3];
    for (int i = 0; i < 3; i++) {
        radix_path p = {0, 0};
        k[i] = key_of(t[i], 2);
        put(r, &k[i], &p, 10 * (i + 1), s);
        radix_unlock(r, &p);
    }
    radix_path p = radix_lock(r, &k[0], 1, 5, s); /* the shared token is the youngest now */
    radix_unlock(r, &p);
    assert_int_equal(radix_evict(r, 5, bag_add, &b), 5);
    int32_t want[5] = {11, 21, 30, 31, 10}; /* a run at a time */
    assert_memory_equal(b.slot, want, sizeof want);
    radix_destroy(r);
}

static void borders_part_generated_rows_from_prompt_rows(void **state)
{
    (void)state;
    radix *r = make(400, true);
    int32_t t[60], s[60], got[60];
    fill(t, 60, 1);
    radix_key k = {.tokens = t, .n_tokens = 60, .n_prompt = 40}; /* 40 of prompt, 20 generated */
    radix_path p = {0, 0};
    put(r, &k, &p, 1, s);
    assert_int_equal(radix_get_stats(r).n_nodes, 2); /* cut at the border */
    assert_int_equal(radix_peek(r, &k), 60);
    radix_key longer = {.tokens = t, .n_tokens = 60, .n_prompt = 60}; /* a prompt that contains the answer */
    assert_int_equal(radix_peek(r, &longer), 40);
    radix_key other = {.tokens = t, .n_tokens = 60, .n_prompt = 39};
    assert_int_equal(radix_peek(r, &other), 39);
    radix_path q = {0, 0};
    assert_int_equal(put(r, &longer, &q, 100, s), 40); /* both kinds side by side */
    assert_int_equal(radix_peek(r, &longer), 60);
    assert_int_equal(radix_peek(r, &k), 60);
    radix_path l = radix_lock(r, &longer, 60, 3, got);
    assert_int_equal(got[39], 40);
    assert_int_equal(got[40], 140);
    radix_unlock(r, &l);
    radix_unlock(r, &p);
    radix_unlock(r, &q);
    assert_int_equal(evict_all(r), 80);
    radix_destroy(r);

    r = make(400, false); /* without borders n_prompt plays no part */
    p = (radix_path){0, 0};
    put(r, &k, &p, 1, s);
    assert_int_equal(radix_peek(r, &longer), 60);
    assert_int_equal(radix_get_stats(r).n_nodes, 1);
    radix_unlock(r, &p);
    radix_destroy(r);
}

static void salts_share_nothing(void **state)
{
    (void)state;
    radix *r = make(400, false);
    int32_t t[8], s[8];
    fill(t, 8, 1);
    radix_path p[3];
    for (int32_t i = 0; i < 3; i++) {
        radix_key k = key_of(t, 8);
        k.salt[0] = i == 1;
        k.salt[1] = i == 2;
        assert_int_equal(radix_peek(r, &k), 0);
        p[i] = (radix_path){0, 0};
        assert_int_equal(put(r, &k, &p[i], 1 + 8 * i, s), 0);
        k.n_tokens = 3;
        radix_path q = radix_lock(r, &k, 3, 1, s); /* the split upper part keeps the salt */
        check(r);
        assert_int_equal(q.n_tokens, 3);
        assert_int_equal(s[0], 1 + 8 * i);
        radix_unlock(r, &q);
    }
    for (int32_t i = 0; i < 3; i++) radix_unlock(r, &p[i]);
    assert_int_equal(evict_all(r), 24);
    radix_destroy(r);
}

static void full_of_single_token_runs_fits(void **state)
{
    (void)state;
    enum { N = 1000 };
    radix *r = make(N, false);
    int32_t s[1];
    for (int32_t i = 0; i < N; i++) { /* worst case: a node and a block for every slot */
        int32_t t[1] = {i};
        radix_key k = key_of(t, 1);
        radix_path p = {0, 0};
        int32_t dup[1], n_dup;
        s[0] = i + 1;
        radix_insert(r, &k, i, &p, s, dup, &n_dup);
        radix_unlock(r, &p);
    }
    check(r);
    assert_int_equal(radix_get_stats(r).n_nodes, N);
    assert_int_equal(evict_all(r), N);
    check(r);
    radix_destroy(r);
}

static void nothing_allocates_after_create(void **state)
{
    (void)state;
    radix *r = make(N_SLOTS, true);
    int32_t t[500], s[500];
    fill(t, 500, 0);
    ltd_alloc_guard(true);
    radix_key k = {.tokens = t, .n_tokens = 500, .n_prompt = 300};
    radix_path p = {0, 0};
    put(r, &k, &p, 1, s);
    radix_path q = radix_lock(r, &k, 123, 1, s);
    radix_unlock(r, &p);
    radix_unlock(r, &q);
    assert_int_equal(evict_all(r), 500);
    check(r);
    ltd_alloc_guard(false);
    radix_destroy(r);
}

static void marks_and_dump_show_the_tree(void **state)
{
    (void)state;
    radix *r = make(20, false);
    int32_t t[4] = {65, 66, 67, 68}, u[3] = {65, 66, 88}, s[4];
    radix_key k = key_of(t, 4), ku = key_of(u, 3);
    radix_path p = {0, 0}, q = {0, 0};
    put(r, &k, &p, 5, s);
    put(r, &ku, &q, 9, s); /* 9 and 10 are duplicates */
    uint8_t set[21] = {0};
    radix_mark_slots(r, set);
    for (int32_t i = 0; i <= 20; i++) assert_int_equal(set[i], (i >= 5 && i <= 8) || i == 11);
    ltd_buf out = {0};
    radix_dump(r, 10, &out);
    assert_non_null(strstr(out.data, "3 nodes, 5 tokens (5 locked)"));
    assert_non_null(strstr(out.data, "tokens 65 66 slots 5 .. 6 locked 2"));
    ltd_buf_deinit(&out);
    radix_dump(r, 1, &out);
    assert_non_null(strstr(out.data, "and 2 more"));
    ltd_buf_deinit(&out);
    radix_unlock(r, &p);
    radix_unlock(r, &q);
    radix_destroy(r);
}

/* The check must see what it is there for. */
static void check_finds_what_is_broken(void **state)
{
    (void)state;
    radix *r = make(100, false);
    ltd_err err;
    int32_t t[40], s[40];
    fill(t, 40, 0);
    radix_key k = key_of(t, 40);
    radix_path p = {0, 0};
    put(r, &k, &p, 1, s);
    radix_unlock(r, &p);
#define BREAKS(what, lvalue, value)                                                                          \
    do {                                                                                                     \
        __typeof__(lvalue) kept = (lvalue);                                                                  \
        (lvalue) = (value);                                                                                  \
        assert_int_equal(radix_check(r, &err), LTD_CORRUPT);                                                 \
        if (!strstr(err.text, what)) fail_msg("said: %s", err.text);                                         \
        (lvalue) = kept;                                                                                     \
        check(r);                                                                                            \
    } while (0)
    int32_t n = r->nodes[0].first_child;
    radix_block *b = &r->blocks[r->nodes[n].head];
    BREAKS("twice", b->slot[3], b->slot[4]);
    BREAKS("first token", b->token[0], 77);
    BREAKS("tokens, says", r->nodes[n].n_tokens, 39);
    BREAKS("not found", r->salts[n].v[0], 5);
    BREAKS("border", r->nodes[n].border, 3);
    BREAKS("locked; counted", r->stats.n_locked, 1);
    BREAKS("list", r->nodes[0].lru_next, 0);
    BREAKS("locked", r->nodes[n].lock, 1);
    radix_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lock_on_empty_tree_gives_nothing),
        cmocka_unit_test(create_without_slots_is_refused),
        cmocka_unit_test(lock_inside_a_run_splits_it),
        cmocka_unit_test(peek_changes_nothing),
        cmocka_unit_test(insert_by_chunks_stays_one_run),
        cmocka_unit_test(d25_lock_covers_ancestors_and_lives_through_splits),
        cmocka_unit_test(d26_equal_prompts_leave_one_owner_each),
        cmocka_unit_test(insert_duplicates_only_where_the_tree_has_tokens),
        cmocka_unit_test(evict_takes_least_recently_used_from_the_end),
        cmocka_unit_test(evict_puts_a_new_leaf_in_its_own_place),
        cmocka_unit_test(borders_part_generated_rows_from_prompt_rows),
        cmocka_unit_test(salts_share_nothing),
        cmocka_unit_test(full_of_single_token_runs_fits),
        cmocka_unit_test(nothing_allocates_after_create),
        cmocka_unit_test(marks_and_dump_show_the_tree),
        cmocka_unit_test(check_finds_what_is_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
