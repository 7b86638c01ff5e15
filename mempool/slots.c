/* slots.c - which slots are free.
 * One bit a slot, one word a group of 64 (slots 64g .. 64g + 63).  A group is in one of two intrusive lists
 * or in none: `whole` (all 64 free), `part` (some are), none (full).  Group 0 lacks slot 0 and the last one
 * may be short: they are never whole.
 *
 * Runs matter because kernels move a tile of 64 positions whose slots are consecutive in one go.  So a take
 *   1. goes on behind the sequence's last slot, and into the next group where that is whole,
 *   2. opens whole groups, neighbours first, also for a few slots: later tokens then find their place behind,
 *   3. fills the group that has been partly free longest: one given back lately gets the time to become
 * whole. Saving whole groups for large takes instead made fewer runs, not more: sequences decoding side by
 * side then interleave (bench_radix: 57 % of tiles in one run against 100 % with room to spare, 50 to 68 %
 * against 73 to 95 % in a pool nearly full).  Every step takes at least one slot or ends: O(n), whatever the
 * pool's size. */
#include "mempool/mempool_private.h"

#include <string.h>

enum { GROUP = 64, WHOLE = 0, PART = 1, FULL = 2 };

struct pool_slots {
    int32_t n_slots, n_groups, n_free;
    uint64_t *bits;       /* [n_groups], 1 = free */
    int32_t *next, *prev; /* [n_groups + 2]; entry n_groups + list is that list's ring head */
    uint64_t *lost;       /* [n_groups], 1 = given twice, out of use for good */
    int32_t n_lost;
    int64_t double_gives;
    int32_t fail_nth, fail_left;
    bool fail_every;
};

static int list_of(uint64_t bits) { return bits == UINT64_MAX ? WHOLE : bits ? PART : FULL; }

static void unlink_group(pool_slots *p, int32_t g)
{
    p->next[p->prev[g]] = p->next[g];
    p->prev[p->next[g]] = p->prev[g];
}

/* At the list's end; takes come from its front. */
static void link_group(pool_slots *p, int32_t g, int list)
{
    int32_t head = p->n_groups + list;
    p->next[g] = head;
    p->prev[g] = p->prev[head];
    p->next[p->prev[head]] = g;
    p->prev[head] = g;
}

/* The one place where bits change: keeps the lists and counts. */
static void set_bits(pool_slots *p, int32_t g, uint64_t bits)
{
    int was = list_of(p->bits[g]), now = list_of(bits);
    p->n_free += __builtin_popcountll(bits) - __builtin_popcountll(p->bits[g]);
    p->bits[g] = bits;
    if (was == now) return;
    if (was != FULL) unlink_group(p, g);
    if (now != FULL) link_group(p, g, now);
}

ltd_status pool_slots_create(int32_t n_slots, pool_slots **out)
{
    if (n_slots < 1 || n_slots > INT32_MAX - GROUP) return LTD_INVALID;
    pool_slots *p = ltd_calloc(1, sizeof *p);
    p->n_slots = n_slots;
    p->n_groups = n_slots / GROUP + 1;
    p->bits = ltd_calloc((size_t)p->n_groups, sizeof *p->bits);
    p->lost = ltd_calloc((size_t)p->n_groups, sizeof *p->lost);
    p->next = ltd_calloc((size_t)p->n_groups + 2, sizeof *p->next);
    p->prev = ltd_calloc((size_t)p->n_groups + 2, sizeof *p->prev);
    for (int32_t list = 0; list < 2; list++)
        p->next[p->n_groups + list] = p->prev[p->n_groups + list] = p->n_groups + list;
    for (int32_t g = 0; g < p->n_groups; g++) {
        int32_t last = n_slots - g * GROUP; /* the highest bit that stands for a slot */
        uint64_t bits = last >= GROUP - 1 ? UINT64_MAX : ((uint64_t)1 << (last + 1)) - 1;
        set_bits(p, g, g ? bits : bits & ~(uint64_t)1);
    }
    *out = p;
    return LTD_OK;
}

void pool_slots_destroy(pool_slots *p)
{
    if (!p) return;
    ltd_free(p->bits);
    ltd_free(p->lost);
    ltd_free(p->next);
    ltd_free(p->prev);
    ltd_free(p);
}

/* ---------------------------------------------------------------- take */

static bool refused(pool_slots *p)
{
    if (!p->fail_left || --p->fail_left) return false;
    if (p->fail_every) p->fail_left = p->fail_nth;
    return true;
}

/* Takes consecutive free slots from slot on, at most n and no further than its group; returns how many. */
static int32_t take_run(pool_slots *p, int32_t slot, int32_t n, int32_t *out)
{
    int32_t g = slot / GROUP, bit = slot % GROUP;
    uint64_t used = ~(p->bits[g] >> bit); /* bits past the group come in as used */
    int32_t run = used ? __builtin_ctzll(used) : GROUP;
    if (run > n) run = n;
    if (!run) return 0;
    uint64_t mask = run == GROUP ? UINT64_MAX : (((uint64_t)1 << run) - 1) << bit;
    set_bits(p, g, p->bits[g] & ~mask);
    for (int32_t i = 0; i < run; i++) out[i] = slot + i;
    return run;
}

/* The whole group to open next: the neighbour of what was taken last, else the list's first; -1 = none. */
static int32_t whole_group(const pool_slots *p, int32_t last)
{
    int32_t g = last / GROUP + 1;
    if (last && g < p->n_groups && p->bits[g] == UINT64_MAX) return g;
    g = p->next[p->n_groups + WHOLE];
    return g == p->n_groups + WHOLE ? -1 : g;
}

ltd_status pool_slots_take(pool_slots *p, int32_t n, int32_t after, int32_t *out)
{
    LTD_CHECK(n >= 0 && after >= 0 && after <= p->n_slots, "slots: take of %d behind %d", n, after);
    if (refused(p) || n > p->n_free) return LTD_FULL;
    int32_t done = 0, last = after;
    if (after && n) {
        if (after % GROUP != GROUP - 1)
            done = take_run(p, after + 1, n, out);
        else if (after / GROUP + 1 < p->n_groups && p->bits[after / GROUP + 1] == UINT64_MAX)
            done = take_run(p, after + 1, n, out);
        if (done) last = out[done - 1];
    }
    while (done < n) {
        int32_t g = whole_group(p, last);
        if (g < 0) g = p->next[p->n_groups + PART]; /* n <= n_free: one of the lists has something */
        int32_t slot = g * GROUP + __builtin_ctzll(p->bits[g]);
        done += take_run(p, slot, n - done, out + done);
        last = out[done - 1];
    }
    return LTD_OK;
}

/* ---------------------------------------------------------------- give */

/* Whoever gives a slot that nobody holds has lost count; the slot may be in somebody's use again at any time,
 * so it is never handed out again. */
static void double_give(pool_slots *p, int32_t slot)
{
    int32_t g = slot / GROUP;
    uint64_t bit = (uint64_t)1 << (slot % GROUP);
    LTD_DCHECK(false, "slots: slot %d given twice", slot);
    p->double_gives++;
    if (!(p->lost[g] & bit)) {
        p->lost[g] |= bit;
        p->n_lost++;
        set_bits(p, g, p->bits[g] & ~bit);
    }
    log_error("mempool", "event=slot_given_twice slot=%d count=%lld out_of_use=%d", slot,
              (long long)p->double_gives, p->n_lost);
}

void pool_slots_give(pool_slots *p, const int32_t *slots, int32_t n)
{
    for (int32_t i = 0; i < n;) {
        LTD_CHECK(slots[i] > 0 && slots[i] <= p->n_slots, "slots: slot %d given, of 1..%d", slots[i],
                  p->n_slots);
        int32_t g = slots[i] / GROUP;
        uint64_t mine = 0; /* those of one group in a row change the lists once */
        for (; i < n && slots[i] > 0 && slots[i] <= p->n_slots && slots[i] / GROUP == g; i++) {
            uint64_t bit = (uint64_t)1 << (slots[i] % GROUP);
            if ((p->bits[g] | p->lost[g] | mine) & bit) {
                set_bits(p, g, p->bits[g] | mine);
                mine = 0;
                double_give(p, slots[i]);
            } else {
                mine |= bit;
            }
        }
        set_bits(p, g, p->bits[g] | mine);
    }
}

/* ---------------------------------------------------------------- looking, provoking, checking */

int32_t pool_slots_free(const pool_slots *p) { return p->n_free; }

int32_t pool_slots_total(const pool_slots *p) { return p->n_slots; }

int64_t pool_slots_double_gives(const pool_slots *p) { return p->double_gives; }

bool pool_slots_is_free(const pool_slots *p, int32_t slot)
{
    return slot > 0 && slot <= p->n_slots && (p->bits[slot / GROUP] >> (slot % GROUP) & 1);
}

void pool_slots_fail_take(pool_slots *p, int32_t nth, bool every)
{
    p->fail_nth = p->fail_left = nth > 0 ? nth : 0;
    p->fail_every = every;
}

#define BROKEN(...) return ltd_fail(err, LTD_CORRUPT, "slots: " __VA_ARGS__)

ltd_status pool_slots_check(const pool_slots *p, ltd_err *err)
{
    int64_t n_free = 0, n_lost = 0;
    int32_t members[2] = {0, 0}, listed[2] = {0, 0};
    for (int32_t g = 0; g < p->n_groups; g++) {
        n_free += __builtin_popcountll(p->bits[g]);
        n_lost += __builtin_popcountll(p->lost[g]);
        if (p->bits[g] & p->lost[g]) BROKEN("group %d: a slot out of use is free", g);
        if (list_of(p->bits[g]) != FULL) members[list_of(p->bits[g])]++;
    }
    int32_t last = p->n_slots % GROUP;
    if (p->bits[0] & 1) BROKEN("slot 0 is free");
    if (last != GROUP - 1 && p->bits[p->n_groups - 1] >> (last + 1))
        BROKEN("slots past %d are free", p->n_slots);
    if (n_free != p->n_free || n_lost != p->n_lost)
        BROKEN("%d free, %d out of use; counted %lld and %lld", p->n_free, p->n_lost, (long long)n_free,
               (long long)n_lost);
    for (int list = 0; list < 2; list++) {
        int32_t head = p->n_groups + list, prev = head;
        for (int32_t g = p->next[head]; g != head; g = p->next[g]) {
            if (g < 0 || g >= p->n_groups || p->prev[g] != prev || list_of(p->bits[g]) != list ||
                ++listed[list] > members[list])
                BROKEN("group %d is wrong in list %d", g, list);
            prev = g;
        }
        if (p->prev[head] != prev || listed[list] != members[list])
            BROKEN("list %d has %d groups, should have %d", list, listed[list], members[list]);
    }
    return LTD_OK;
}

ltd_status pool_slots_check_owners(const pool_slots *p, const uint8_t *held, ltd_err *err)
{
    int64_t n_held = 0;
    for (int32_t s = 1; s <= p->n_slots; s++) {
        bool is_free = pool_slots_is_free(p, s);
        if (p->lost[s / GROUP] >> (s % GROUP) & 1) continue; /* given twice: who holds it cannot be said */
        if (is_free && held[s]) BROKEN("slot %d is free and has %d owners", s, held[s]);
        if (!is_free && held[s] != 1) BROKEN("slot %d is taken and has %d owners", s, held[s]);
        n_held += held[s];
    }
    if (p->n_free + n_held + p->n_lost != p->n_slots)
        BROKEN("%d free + %lld held + %d out of use is not %d", p->n_free, (long long)n_held, p->n_lost,
               p->n_slots);
    return LTD_OK;
}
