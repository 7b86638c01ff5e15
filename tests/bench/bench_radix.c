/* bench_radix - ns per token of match, insert and evict with a million tokens cached, and per slot of take
 * and give.  Shapes: chat (5000 prompts of 200 tokens behind one system prefix of 1000) and long (10 prompts
 * of 100,000), with memory in order and with slots and the tree's own blocks scattered, as hours of eviction
 * leave them.  Floor: the bytes
 * that must move, over the bandwidth of memcpy on memory past the caches, measured in the same run; what the
 * caches hold of a million tokens (8 MB) can be faster.  A line is the best of several rounds. */
#include "mempool/mempool.h"
#include "radix/radix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_SLOTS = 1100000, ROUNDS = 7 };

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint64_t rng = 88172645463325252u;
static uint32_t rnd(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)((rng >> 20) % n);
}

static double copy_gb_per_s(void)
{
    size_t n = (size_t)256 << 20; /* far past any cache */
    char *a = malloc(n), *b = malloc(n);
    double best = 0;
    memset(a, 1, n);
    memset(b, 2, n);
    for (int i = 0; i < 5; i++) {
        double t = now_ns();
        memcpy(i % 2 ? a : b, i % 2 ? b : a, n);
        double g = 2.0 * (double)n / (now_ns() - t);
        if (g > best) best = g;
    }
    free(a);
    free(b);
    return best;
}

static double gb_per_s;
static void line(const char *shape, const char *what, double ns_per_token, double bytes_per_token)
{
    printf("%-16s %-26s %8.2f ns/token  floor %5.2f (%g bytes)\n", shape, what, ns_per_token,
           bytes_per_token / gb_per_s, bytes_per_token);
}

static double smaller(double a, double b) { return a == 0 || b < a ? b : a; }

typedef struct sink {
    int64_t n;
    int32_t last;
} sink;
static void on_evict(void *user, const int32_t *slots, int32_t n)
{
    sink *s = user;
    s->n += n;
    s->last = slots[n - 1];
}

/* Leaves of 30 tokens, one block each, evicted in random order: what comes next finds its memory scattered,
 * as after hours. */
static void scatter(radix *r)
{
    enum { LEAF = 30, N = N_SLOTS / LEAF };
    int32_t tokens[LEAF] = {0}, slots[LEAF], dup[LEAF], n_dup, *perm = malloc(N * sizeof *perm);
    radix_key key = {.tokens = tokens, .n_tokens = LEAF, .n_prompt = LEAF};
    for (int32_t k = 0; k < N; k++) {
        perm[k] = k;
        tokens[0] = k;
        radix_path p = {0, 0};
        for (int32_t i = 0; i < LEAF; i++) slots[i] = k * LEAF + i + 1;
        radix_insert(r, &key, 0, &p, slots, dup, &n_dup);
        radix_unlock(r, &p);
    }
    for (int32_t k = N - 1; k >= 0; k--) {
        int32_t j = (int32_t)rnd((uint32_t)k + 1);
        tokens[0] = perm[j];
        perm[j] = perm[k];
        radix_path p = radix_lock(r, &key, LEAF, 0, slots);
        radix_unlock(r, &p);
    }
    sink s = {0, 0};
    radix_evict(r, N_SLOTS, on_evict, &s);
    free(perm);
}

/* n_keys prompts of n_own tokens behind one common prefix, each inserted as the scheduler does: lock, then
 * the rest. */
static void bench_tree(const char *shape, int32_t n_keys, int32_t n_prefix, int32_t n_own, bool shuffled)
{
    int32_t len = n_prefix + n_own, total = n_prefix + n_keys * n_own;
    int32_t *tokens = malloc((size_t)n_keys * (size_t)len * sizeof *tokens),
            *order = malloc(N_SLOTS * sizeof *order);
    int32_t *slots = malloc((size_t)len * sizeof *slots), *dup = malloc((size_t)len * sizeof *dup),
            *perm = malloc((size_t)n_keys * sizeof *perm);
    for (int32_t k = 0; k < n_keys; k++)
        for (int32_t i = 0; i < len; i++) /* the first own token parts the prompts */
            tokens[(size_t)k * (size_t)len + (size_t)i] = i < n_prefix    ? i
                                                          : i == n_prefix ? 100000 + k
                                                                          : (int32_t)rnd(100000);
    for (int32_t i = 0; i < N_SLOTS; i++) order[i] = i + 1;
    if (shuffled)
        for (int32_t i = N_SLOTS - 1; i > 0; i--) {
            int32_t j = (int32_t)rnd((uint32_t)i + 1), x = order[i];
            order[i] = order[j];
            order[j] = x;
        }
    for (int32_t i = 0; i < n_keys; i++) perm[i] = i;
    for (int32_t i = n_keys - 1; i > 0; i--) {
        int32_t j = (int32_t)rnd((uint32_t)i + 1), x = perm[i];
        perm[i] = perm[j];
        perm[j] = x;
    }
    radix *r;
    if (radix_create(&(radix_options){.n_slots = N_SLOTS}, &r) != LTD_OK) abort();
    double insert = 0, peek = 0, lock = 0, evict = 0, lock1 = 0;
    int32_t churn = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int32_t used = 0, n_dup;
        if (shuffled) scatter(r);
        double t = now_ns();
        for (int32_t k = 0; k < n_keys; k++) {
            radix_key key = {.tokens = tokens + (size_t)k * (size_t)len, .n_tokens = len, .n_prompt = len};
            radix_path p = radix_lock(r, &key, len, used, slots);
            int32_t fresh = len - p.n_tokens;
            memcpy(slots + p.n_tokens, order + used, (size_t)fresh * sizeof *slots);
            used += fresh;
            radix_insert(r, &key, used, &p, slots, dup, &n_dup);
            radix_unlock(r, &p);
        }
        insert = smaller(insert, (now_ns() - t) / ((double)n_keys * len));
        if (used != total) abort();

        t = now_ns();
        int64_t found = 0;
        for (int32_t k = 0; k < n_keys; k++) {
            radix_key key = {
                .tokens = tokens + (size_t)perm[k] * (size_t)len, .n_tokens = len, .n_prompt = len};
            found += radix_peek(r, &key);
        }
        peek = smaller(peek, (now_ns() - t) / (double)found);

        t = now_ns();
        for (int32_t k = 0; k < n_keys; k++) {
            radix_key key = {
                .tokens = tokens + (size_t)perm[k] * (size_t)len, .n_tokens = len, .n_prompt = len};
            radix_path p = radix_lock(r, &key, len, 1, slots);
            radix_unlock(r, &p);
        }
        lock = smaller(lock, (now_ns() - t) / ((double)n_keys * len));

        t = now_ns(); /* a miss at once: what a look-up costs beside the tokens */
        for (int32_t k = 0; k < 100000; k++) {
            int32_t none = -1 - k;
            radix_key key = {.tokens = &none, .n_tokens = 1, .n_prompt = 1};
            churn += radix_peek(r, &key);
        }
        lock1 = smaller(lock1, (now_ns() - t) / 100000);

        sink s = {0, 0};
        t = now_ns();
        while (radix_evict(r, 1000, on_evict, &s) > 0) {
        }
        evict = smaller(evict, (now_ns() - t) / (double)s.n);
        if (s.n != total) abort();
    }
    /* insert reads the key and the slots and writes both into the tree; lock reads key and run and writes
     * slots; peek no slots; evict: the blocks' slots */
    double own = (double)n_keys * n_own / ((double)n_keys * len);
    line(shape, "lock + insert + unlock", insert, 8 + own * 8 + (1 - own) * 4);
    line(shape, "peek, hit", peek, 8);
    line(shape, "lock + unlock, hit", lock, 16);
    line(shape, "evict by 1000", evict, 4);
    printf("%-16s %-26s %8.2f ns a call%s\n", shape, "peek, miss at once", lock1, churn ? " ?" : "");
    radix_destroy(r);
    free(tokens);
    free(order);
    free(slots);
    free(dup);
    free(perm);
}

static void bench_slots(void)
{
    enum { POOL = 1000000, SEQS = 256 };
    pool_slots *p;
    if (pool_slots_create(POOL, &p) != LTD_OK) abort();
    int32_t *all = malloc(POOL * sizeof *all);
    static const int32_t sizes[] = {1, 16, 64, 1000, 8192};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int32_t n = sizes[i], calls = POOL / n;
        double take = 0, give = 0;
        for (int round = 0; round < ROUNDS; round++) {
            double t = now_ns();
            for (int32_t k = 0; k < calls; k++)
                if (pool_slots_take(p, n, 0, all + (size_t)k * (size_t)n) != LTD_OK) abort();
            take = smaller(take, (now_ns() - t) / ((double)calls * n));
            t = now_ns();
            for (int32_t k = 0; k < calls; k++) pool_slots_give(p, all + (size_t)k * (size_t)n, n);
            give = smaller(give, (now_ns() - t) / ((double)calls * n));
        }
        printf("%-16s take of %-5d %24.2f ns/slot   give %6.2f   floor %.2f (4 bytes)\n", "slots", n, take,
               give, 4 / gb_per_s);
    }
    free(all);

    pool_slots_destroy(p);
}

/* 256 sequences side by side, as the engine decodes: one slot each a step; they end and begin anew at random
 * lengths.  What counts is how many tiles of 64 positions a kernel finds in one run, with room to spare and
 * in a pool nearly full. */
static void bench_runs(int32_t n_slots)
{
    enum { SEQS = 256, MAX = 4096 };
    pool_slots *p;
    if (pool_slots_create(n_slots, &p) != LTD_OK) abort();
    int32_t(*seq)[MAX] = calloc(SEQS, sizeof *seq), len[SEQS] = {0}, want[SEQS] = {0};
    int64_t taken = 0, tiles = 0, whole = 0, filled = 0, refused = 0;
    enum { STEPS = 20000 };
    double t = now_ns();
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < SEQS; s++) {
            if (len[s] == want[s]) {
                for (int32_t k = 0; k + 64 <= len[s]; k += 64) {
                    tiles++;
                    whole += seq[s][k + 63] == seq[s][k] + 63;
                }
                pool_slots_give(p, seq[s], len[s]);
                want[s] = 100 + (int32_t)rnd(MAX - 100);
                len[s] = 0;
            }
            int32_t n =
                len[s] ? 1 : 1 + (int32_t)rnd((uint32_t)want[s]); /* the prompt, then token by token */
            if (pool_slots_take(p, n, len[s] ? seq[s][len[s] - 1] : 0, seq[s] + len[s]) != LTD_OK) {
                refused++;
                want[s] = len[s]; /* retracted: give it all, begin anew */
                continue;
            }
            len[s] += n;
            taken += n;
        }
        filled += n_slots - pool_slots_free(p);
    }
    printf("%-16s 256 sequences decoding %17.2f ns/slot   pool %.0f %% full (%lld refused): %.1f %% of tiles "
           "in one run\n",
           "slots", (now_ns() - t) / (double)taken, 100.0 * (double)filled / STEPS / n_slots,
           (long long)refused, 100.0 * (double)whole / (double)tiles);
    free(seq);
    pool_slots_destroy(p);
}

int main(void)
{
    gb_per_s = copy_gb_per_s();
    printf("memcpy %.1f GB/s (read + write)\n", gb_per_s);
    bench_tree("chat", 5000, 1000, 200, false);
    bench_tree("chat, scattered", 5000, 1000, 200, true);
    bench_tree("long", 10, 0, 100000, false);
    bench_tree("long, scattered", 10, 0, 100000, true);
    bench_slots();
    bench_runs(1000000);
    bench_runs(500000);
    bench_runs(400000);
    return 0;
}
