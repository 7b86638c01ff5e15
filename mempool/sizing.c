/* sizing.c - how many slots fit, and the table that the start prints.
 * slots = (memory x fraction - weights - workspaces - other) / bytes of a slot, less the padding slot 0. */
#include "mempool/mempool_private.h"

#include <stdio.h>

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

/* Bytes left for slots; 0 when the rest takes everything. */
static size_t room_of(const pool_sizing *s)
{
    double may = (double)s->memory_total * s->fraction;
    double taken = (double)s->weights + (double)s->workspaces + (double)s->other;
    return may > taken ? (size_t)(may - taken) : 0;
}

ltd_status pool_size_slots(const pool_sizing *s, int64_t min_slots, int32_t *n_slots, ltd_err *err)
{
    LTD_CHECK(s->slot_bytes > 0, "sizing: a slot of 0 bytes");
    if (min_slots < 1) min_slots = 1;
    if (s->max_slots && s->max_slots < min_slots)
        return ltd_fail(err, LTD_INVALID,
                        "--max-total-tokens %lld is less than the %lld slots that are needed at least",
                        (long long)s->max_slots, (long long)min_slots);
    int64_t fit = (int64_t)(room_of(s) / s->slot_bytes) - 1; /* slot 0 has bytes too */
    if (fit < min_slots)
        return ltd_fail(
            err, LTD_NO_MEMORY,
            "the token pool needs at least %.1f MiB (%lld slots of %.1f KiB): %.1f MiB of memory x fraction "
            "%.2f "
            "- weights %.1f - workspaces %.1f - other %.1f MiB leaves %.1f MiB; raise --mem-fraction, lower "
            "--context-length or --chunked-prefill-size",
            mib(((size_t)min_slots + 1) * s->slot_bytes), (long long)min_slots, (double)s->slot_bytes / 1024,
            mib(s->memory_total), s->fraction, mib(s->weights), mib(s->workspaces), mib(s->other),
            mib(room_of(s)));
    int64_t n = fit;
    if (s->useful_slots && n > s->useful_slots) n = s->useful_slots > min_slots ? s->useful_slots : min_slots;
    if (s->max_slots && n > s->max_slots) n = s->max_slots;
    if (n > INT32_MAX - 64)
        n = INT32_MAX - 64; /* slot numbers are int32_t, and groups of 64 are counted up */
    *n_slots = (int32_t)n;
    return LTD_OK;
}

static void row(const pool_sizing *s, ltd_buf *out, const char *name, size_t bytes, const char *note)
{
    char size[32];
    if (bytes >= (size_t)1 << 30)
        snprintf(size, sizeof size, "%.2f GiB", mib(bytes) / 1024);
    else
        snprintf(size, sizeof size, "%.1f MiB", mib(bytes));
    double share = s->memory_total ? 100.0 * (double)bytes / (double)s->memory_total : 0;
    ltd_buf_fmt(out, "  %-14s %12s %6.1f %%%s%s\n", name, size, share, *note ? "  " : "", note);
}

void pool_sizing_print(const pool_sizing *s, int32_t n_slots, ltd_buf *out)
{
    char note[96];
    size_t slots = ((size_t)n_slots + 1) * s->slot_bytes,
           may = (size_t)((double)s->memory_total * s->fraction);
    size_t taken = s->weights + s->workspaces + s->other + slots;
    row(s, out, "memory", s->memory_total, "of the device");
    snprintf(note, sizeof note, "fraction %.2f", s->fraction);
    row(s, out, "ours to use", may, note);
    row(s, out, "weights", s->weights, "");
    row(s, out, "workspaces", s->workspaces, "");
    row(s, out, "other", s->other, "");
    snprintf(note, sizeof note, "%d slots of %.1f KiB", n_slots, (double)s->slot_bytes / 1024);
    row(s, out, "token pool", slots, note);
    row(s, out, "left", may > taken ? may - taken : 0, "");
}
