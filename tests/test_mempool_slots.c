/* test_mempool_slots - the slot allocator: cases one by one, then random takes and gives against an array of
 * owners.  D27's double give. */
#include "mempool/mempool_private.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static pool_slots *make(int32_t n)
{
    pool_slots *p;
    assert_int_equal(pool_slots_create(n, &p), LTD_OK);
    return p;
}

static void check(const pool_slots *p)
{
    ltd_err err;
    if (pool_slots_check(p, &err) != LTD_OK) fail_msg("%s", err.text);
}

static void check_owners(const pool_slots *p, const uint8_t *held)
{
    ltd_err err;
    if (pool_slots_check_owners(p, held, &err) != LTD_OK) fail_msg("%s", err.text);
}

static void take_everything_gives_each_slot_once(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 2, 62, 63, 64, 65, 126, 127, 128, 129, 1000, 4095};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int32_t n = sizes[i], *s = malloc(((size_t)n + 1) * sizeof *s);
        uint8_t *held = calloc((size_t)n + 1, 1);
        pool_slots *p = make(n);
        assert_int_equal(pool_slots_total(p), n);
        assert_int_equal(pool_slots_free(p), n);
        check_owners(p, held);
        assert_int_equal(pool_slots_take(p, n + 1, 0, s), LTD_FULL);
        assert_int_equal(pool_slots_take(p, n, 0, s), LTD_OK);
        for (int32_t k = 0; k < n; k++) {
            assert_in_range(s[k], 1, n);
            held[s[k]]++;
        }
        check(p);
        check_owners(p, held);
        assert_int_equal(pool_slots_free(p), 0);
        assert_int_equal(pool_slots_take(p, 1, s[0], s), LTD_FULL);
        pool_slots_give(p, s, n);
        check(p);
        assert_int_equal(pool_slots_free(p), n);
        pool_slots_destroy(p);
        free(s);
        free(held);
    }
    pool_slots *none;
    assert_int_equal(pool_slots_create(0, &none), LTD_INVALID);
    pool_slots_destroy(NULL);
}

static void take_when_full_takes_nothing(void **state)
{
    (void)state;
    pool_slots *p = make(100);
    int32_t s[100], t[100];
    assert_int_equal(pool_slots_take(p, 90, 0, s), LTD_OK);
    memset(t, 0x7f, sizeof t);
    assert_int_equal(pool_slots_take(p, 11, s[89], t), LTD_FULL);
    for (int i = 0; i < 100; i++) assert_int_equal(t[i], 0x7f7f7f7f);
    assert_int_equal(pool_slots_free(p), 10);
    check(p);
    assert_int_equal(pool_slots_take(p, 10, s[89], t), LTD_OK);
    assert_int_equal(pool_slots_free(p), 0);
    assert_int_equal(pool_slots_take(p, 0, 0, t), LTD_OK);
    pool_slots_destroy(p);
}

static void take_goes_on_behind_the_last_slot(void **state)
{
    (void)state;
    pool_slots *p = make(64 * 64 - 1);
    int32_t a[200], b[200];
    assert_int_equal(pool_slots_take(p, 10, 0, a), LTD_OK);
    assert_int_equal(pool_slots_take(p, 10, 0, b), LTD_OK);
    for (int i = 1; i < 200 - 10;
         i++) { /* two sequences that decode side by side stay in runs of their own */
        assert_int_equal(pool_slots_take(p, 1, a[9 + i - 1], &a[9 + i]), LTD_OK);
        assert_int_equal(pool_slots_take(p, 1, b[9 + i - 1], &b[9 + i]), LTD_OK);
    }
    int breaks = 0;
    for (int i = 1; i < 199; i++) breaks += (a[i] != a[i - 1] + 1) + (b[i] != b[i - 1] + 1);
    assert_in_range(breaks, 0, 2 * 200 / 64 + 2);
    check(p);
    pool_slots_destroy(p);
}

static void take_of_64_and_more_gets_whole_groups(void **state)
{
    (void)state;
    pool_slots *p = make(64 * 20 - 1);
    int32_t few[5][3], s[256];
    for (int i = 0; i < 5; i++) assert_int_equal(pool_slots_take(p, 3, 0, few[i]), LTD_OK);
    assert_int_equal(pool_slots_take(p, 256, 0, s), LTD_OK);
    for (int i = 0; i < 256; i++) {
        assert_int_equal(s[i], s[0] + i); /* neighbours, too */
        if (i == 0) assert_int_equal(s[i] % 64, 0);
    }
    check(p);
    pool_slots_destroy(p);
}

/* Whole groups first, a neighbour before others; broken ones when there are no more. */
static void take_fills_broken_groups_last(void **state)
{
    (void)state;
    pool_slots *p = make(64 * 16 - 1);
    int32_t *s = malloc(64 * 16 * sizeof *s);
    assert_int_equal(pool_slots_take(p, 64 * 16 - 1, 0, s), LTD_OK);
    for (int32_t slot = 1; slot < 64 * 16;
         slot++) /* give: groups 5 and 6 whole, every second slot elsewhere below 10 */
        if (slot / 64 == 5 || slot / 64 == 6 || (slot / 64 < 10 && slot % 2)) pool_slots_give(p, &slot, 1);
    int32_t t[80];
    assert_int_equal(pool_slots_take(p, 70, 0, t), LTD_OK);
    for (int i = 0; i < 70; i++) assert_int_equal(t[i], 5 * 64 + i);
    int32_t last = t[69];
    for (; last < 7 * 64 - 1; last++) {
        assert_int_equal(pool_slots_take(p, 1, last, t), LTD_OK);
        assert_int_equal(t[0], last + 1);
    }
    for (int i = 0; i < 8 * 32; i++) {
        assert_int_equal(pool_slots_take(p, 1, last, t), LTD_OK);
        assert_int_equal(t[0] % 2, 1);
    }
    assert_int_equal(pool_slots_free(p), 0);
    check(p);
    free(s);
    pool_slots_destroy(p);
}

static void fail_take_refuses_the_nth(void **state)
{
    (void)state;
    pool_slots *p = make(1000);
    int32_t s[1];
    pool_slots_fail_take(p, 3, false);
    for (int i = 1; i <= 6; i++) assert_int_equal(pool_slots_take(p, 1, 0, s), i == 3 ? LTD_FULL : LTD_OK);
    assert_int_equal(pool_slots_free(p), 995);
    pool_slots_fail_take(p, 2, true);
    for (int i = 1; i <= 6; i++)
        assert_int_equal(pool_slots_take(p, 1, 0, s), i % 2 == 0 ? LTD_FULL : LTD_OK);
    pool_slots_fail_take(p, 0, true);
    for (int i = 1; i <= 6; i++) assert_int_equal(pool_slots_take(p, 1, 0, s), LTD_OK);
    pool_slots_destroy(p);
}

#ifdef LTD_DEBUG
/* Runs fn in a child; whether it died of SIGABRT. */
static bool dies(void (*fn)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL); /* cmocka catches some signals */
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        fn();
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void give_twice(void)
{
    int32_t s[3];
    pool_slots *p = make(100);
    pool_slots_take(p, 3, 0, s);
    pool_slots_give(p, s, 3);
    pool_slots_give(p, s + 1, 1);
}

static void give_twice_in_one_call(void)
{
    int32_t s[3];
    pool_slots *p = make(100);
    pool_slots_take(p, 2, 0, s);
    s[2] = s[0];
    pool_slots_give(p, s, 3);
}

static void d27_double_give_dies_in_debug(void **state)
{
    (void)state;
    assert_true(dies(give_twice));
    assert_true(dies(give_twice_in_one_call));
}
#else
static void d27_double_give_is_counted_and_left_out_in_release(void **state)
{
    (void)state;
    int32_t s[100], t[100];
    uint8_t held[101] = {0};
    int null = open("/dev/null", O_WRONLY), err_fd = dup(2);
    pool_slots *p = make(100);
    assert_int_equal(pool_slots_take(p, 10, 0, s), LTD_OK);
    dup2(null, 2); /* the log line is expected */
    pool_slots_give(p, s, 10);
    pool_slots_give(p, s + 4, 1);
    pool_slots_give(p, s + 4, 1);
    int32_t same[3] = {s[5], s[5], s[6]}; /* both free already, one of them named twice */
    pool_slots_give(p, same, 3);
    dup2(err_fd, 2);
    close(null);
    close(err_fd);
    assert_int_equal(pool_slots_double_gives(p), 5);
    assert_int_equal(pool_slots_free(p), 97);
    assert_int_equal(pool_slots_total(p), 100);
    check(p);
    check_owners(p, held);
    assert_int_equal(pool_slots_take(p, 98, 0, t), LTD_FULL);
    assert_int_equal(pool_slots_take(p, 97, 0, t), LTD_OK);
    for (int i = 0; i < 97; i++) {
        assert_false(t[i] == s[4] || t[i] == s[5] || t[i] == s[6]);
        held[t[i]]++;
    }
    check_owners(p, held);
    pool_slots_give(p, t, 97);
    assert_int_equal(pool_slots_free(p), 97);
    check(p);
    pool_slots_destroy(p);
}
#endif

static void check_owners_finds_what_is_wrong(void **state)
{
    (void)state;
    ltd_err err;
    int32_t s[10];
    uint8_t held[51] = {0};
    pool_slots *p = make(50);
    assert_int_equal(pool_slots_take(p, 10, 0, s), LTD_OK);
    assert_int_equal(pool_slots_check_owners(p, held, &err), LTD_CORRUPT); /* a leak */
    assert_non_null(strstr(err.text, "taken and has 0 owners"));
    for (int i = 0; i < 10; i++) held[s[i]] = 1;
    check_owners(p, held);
    held[s[3]] = 2;
    assert_int_equal(pool_slots_check_owners(p, held, &err), LTD_CORRUPT);
    assert_non_null(strstr(err.text, "has 2 owners"));
    held[s[3]] = 1;
    held[50] = 1;
    assert_int_equal(pool_slots_check_owners(p, held, &err), LTD_CORRUPT);
    assert_non_null(strstr(err.text, "free and has 1 owners"));
    pool_slots_destroy(p);
}

/* ---------------------------------------------------------------- random operations */

static uint64_t rng;
static uint32_t rnd(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)((rng >> 16) % n);
}

/* n_ops takes and gives over n_slots by sequences that grow and end; owner[] is the obvious model. */
static void random_ops(uint64_t seed, int32_t n_slots, int n_ops, int check_every)
{
    enum { SEQS = 24 };
    rng = seed * 0x9e3779b97f4a7c15u + 1;
    pool_slots *p = make(n_slots);
    int32_t *seq[SEQS], len[SEQS] = {0}, n_free = n_slots;
    int32_t *out = malloc(((size_t)n_slots + 1) * sizeof *out);
    uint8_t *owner = calloc((size_t)n_slots + 1, 1), *held = calloc((size_t)n_slots + 1, 1);
    for (int i = 0; i < SEQS; i++) seq[i] = malloc(((size_t)n_slots + 1) * sizeof **seq);
    pool_slots_fail_take(p, 20, true); /* 1 in 20 is refused */
    int n_takes = 0;
    for (int op = 0; op < n_ops; op++) {
        int i = (int)rnd(SEQS);
        if (rnd(3)) {
            static const uint32_t most[] = {1, 1, 1, 8, 64, 70, 200};
            int32_t n = (int32_t)rnd(most[rnd(7)] + 1), after = len[i] ? seq[i][len[i] - 1] : 0;
            if (rnd(10) == 0) after = (int32_t)rnd((uint32_t)n_slots + 1);
            memset(out, 0, ((size_t)n_slots + 1) * sizeof *out);
            ltd_status want = ++n_takes % 20 == 0 || n > n_free ? LTD_FULL : LTD_OK;
            ltd_status st = pool_slots_take(p, n, after, out);
            if (st != want)
                fail_msg("seed %lu op %d: take of %d: %d, should be %d", (unsigned long)seed, op, n, st,
                         want);
            if (st == LTD_OK && n && after && after < n_slots && !owner[after + 1] && after % 64 != 63 &&
                out[0] != after + 1)
                fail_msg("seed %lu op %d: did not go on behind %d", (unsigned long)seed, op, after);
            if (st != LTD_OK) n = 0;
            for (int32_t k = 0; k < n; k++) {
                if (out[k] < 1 || out[k] > n_slots || owner[out[k]])
                    fail_msg("seed %lu op %d: slot %d has owner %d", (unsigned long)seed, op, out[k],
                             owner[out[k]]);
                owner[out[k]] = (uint8_t)(i + 1);
                seq[i][len[i]++] = out[k];
            }
            if (out[n]) fail_msg("seed %lu op %d: wrote past what was taken", (unsigned long)seed, op);
            n_free -= n;
        } else if (len[i]) { /* all of it, or an end, or a front */
            int32_t n = rnd(2) ? len[i] : 1 + (int32_t)rnd((uint32_t)len[i]), from = rnd(2) ? len[i] - n : 0;
            pool_slots_give(p, seq[i] + from, n);
            for (int32_t k = from; k < from + n; k++) owner[seq[i][k]] = 0;
            memmove(seq[i] + from, seq[i] + from + n, (size_t)(len[i] - from - n) * sizeof **seq);
            len[i] -= n;
            n_free += n;
        }
        if (pool_slots_free(p) != n_free)
            fail_msg("seed %lu op %d: %d free, not %d", (unsigned long)seed, op, pool_slots_free(p), n_free);
        if (op % check_every == 0) {
            check(p);
            for (int32_t s = 0; s <= n_slots; s++) {
                held[s] = owner[s] != 0;
                if (s && pool_slots_is_free(p, s) == (owner[s] != 0))
                    fail_msg("seed %lu op %d: slot %d", (unsigned long)seed, op, s);
            }
            check_owners(p, held);
        }
    }
    for (int i = 0; i < SEQS; i++) {
        pool_slots_give(p, seq[i], len[i]);
        free(seq[i]);
    }
    check(p);
    assert_int_equal(pool_slots_free(p), n_slots);
    free(out);
    free(owner);
    free(held);
    pool_slots_destroy(p);
}

static void random_ops_equal_the_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) random_ops(seed, 1 + (int32_t)(seed * 137 % 700), 1000, 1);
    for (uint64_t seed = 100; seed < 104; seed++) random_ops(seed, 3000, 50000, 97);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(take_everything_gives_each_slot_once),
        cmocka_unit_test(take_when_full_takes_nothing),
        cmocka_unit_test(take_goes_on_behind_the_last_slot),
        cmocka_unit_test(take_of_64_and_more_gets_whole_groups),
        cmocka_unit_test(take_fills_broken_groups_last),
        cmocka_unit_test(fail_take_refuses_the_nth),
#ifdef LTD_DEBUG
        cmocka_unit_test(d27_double_give_dies_in_debug),
#else
        cmocka_unit_test(d27_double_give_is_counted_and_left_out_in_release),
#endif
        cmocka_unit_test(check_owners_finds_what_is_wrong),
        cmocka_unit_test(random_ops_equal_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
