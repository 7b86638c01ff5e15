/* req_table.c - one row of slots per running sequence: the host's master, and its mirror on a device.
 * The table is the truth; an edit is an interval of a row that changed since the last clear, and its slots
 * are read from the table when the edits are asked for, so that what was written twice travels once and
 * right.
 *
 * Nothing allocates after create.  Rows and the edits' slots are memory of n_rows x row_cap that is touched
 * as it is used (a step's edits are its own rows, plus prefix hits).  Edits are at most EDITS_PER_ROW x
 * n_rows; should more be noted between two clears, each row's are joined into one that spans them: more
 * bytes, same table. */
#include "mempool/mempool_private.h"

#include <string.h>

enum { EDITS_PER_ROW = 4 };

struct pool_req_table {
    int32_t n_rows, row_cap;
    int32_t *slots;     /* [n_rows][row_cap] */
    int32_t *free_rows; /* stack */
    int32_t n_free;
    bool *taken;          /* [n_rows] */
    pool_req_edit *edits; /* [max_edits]; `first` is the row's edit noted before, -1 = none; n 0 = void */
    int32_t n_edits, max_edits;
    int32_t *newest;    /* [n_rows]: the row's last edit, -1 = none */
    pool_req_edit *out; /* what pool_req_edits shows */
    int32_t *out_slots; /* [n_rows * row_cap] */
};

ltd_status pool_req_table_create(int32_t n_rows, int32_t row_cap, pool_req_table **out)
{
    if (n_rows < 1 || row_cap < 1 || (int64_t)n_rows * row_cap > INT32_MAX ||
        n_rows > INT32_MAX / EDITS_PER_ROW)
        return LTD_INVALID;
    pool_req_table *t = ltd_calloc(1, sizeof *t);
    t->n_rows = n_rows;
    t->row_cap = row_cap;
    t->slots = ltd_calloc((size_t)n_rows * (size_t)row_cap, sizeof *t->slots);
    t->free_rows = ltd_alloc((size_t)n_rows * sizeof *t->free_rows);
    t->taken = ltd_calloc((size_t)n_rows, sizeof *t->taken);
    t->max_edits = n_rows * EDITS_PER_ROW;
    t->edits = ltd_alloc((size_t)t->max_edits * sizeof *t->edits);
    t->out = ltd_alloc((size_t)t->max_edits * sizeof *t->out);
    t->newest = ltd_alloc((size_t)n_rows * sizeof *t->newest);
    t->out_slots = ltd_alloc((size_t)n_rows * (size_t)row_cap * sizeof *t->out_slots);
    for (int32_t i = 0; i < n_rows; i++) {
        t->free_rows[i] = n_rows - 1 - i; /* row 0 goes first */
        t->newest[i] = -1;
    }
    t->n_free = n_rows;
    *out = t;
    return LTD_OK;
}

void pool_req_table_destroy(pool_req_table *t)
{
    if (!t) return;
    ltd_free(t->slots);
    ltd_free(t->free_rows);
    ltd_free(t->taken);
    ltd_free(t->edits);
    ltd_free(t->out);
    ltd_free(t->newest);
    ltd_free(t->out_slots);
    ltd_free(t);
}

ltd_status pool_req_row_take(pool_req_table *t, int32_t *row)
{
    if (!t->n_free) return LTD_FULL;
    *row = t->free_rows[--t->n_free];
    t->taken[*row] = true;
    return LTD_OK;
}

void pool_req_row_give(pool_req_table *t, int32_t row)
{
    LTD_CHECK(row >= 0 && row < t->n_rows, "request table: row %d of %d", row, t->n_rows);
    LTD_DCHECK(t->taken[row], "request table: row %d given twice", row);
    if (!t->taken[row]) {
        log_error("mempool", "event=row_given_twice row=%d", row);
        return;
    }
    /* What nobody will read need not travel. */
    for (int32_t i = t->newest[row]; i >= 0; i = t->edits[i].first) t->edits[i].n = 0;
    t->newest[row] = -1;
    t->taken[row] = false;
    t->free_rows[t->n_free++] = row;
}

/* Joins each row's edits into one; leaves at most one a row. */
static void edits_collapse(pool_req_table *t)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < t->n_rows; i++) t->newest[i] = -1;
    for (int32_t i = 0; i < t->n_edits; i++) {
        pool_req_edit e = t->edits[i];
        if (!e.n) continue;
        int32_t at = t->newest[e.row];
        if (at < 0) {
            e.first = -1;
            t->newest[e.row] = kept;
            t->edits[kept++] = e;
        } else {
            pool_req_edit *k = &t->edits[at];
            int32_t end = k->pos + k->n > e.pos + e.n ? k->pos + k->n : e.pos + e.n;
            if (e.pos < k->pos) k->pos = e.pos;
            k->n = end - k->pos;
        }
    }
    t->n_edits = kept;
}

void pool_req_set(pool_req_table *t, int32_t row, int32_t pos, const int32_t *slots, int32_t n)
{
    LTD_CHECK(row >= 0 && row < t->n_rows && t->taken[row] && pos >= 0 && n >= 0 && n <= t->row_cap - pos,
              "request table: %d slots at row %d, position %d; rows are %d long", n, row, pos, t->row_cap);
    if (!n) return;
    memcpy(t->slots + (size_t)row * (size_t)t->row_cap + pos, slots, (size_t)n * sizeof *slots);
    int32_t at = t->newest[row];
    if (at >= 0) {
        pool_req_edit *e = &t->edits[at];
        if (pos <= e->pos + e->n && e->pos <= pos + n) { /* touches or overlaps */
            int32_t end = pos + n > e->pos + e->n ? pos + n : e->pos + e->n;
            if (pos < e->pos) e->pos = pos;
            e->n = end - e->pos;
            return;
        }
    }
    if (t->n_edits == t->max_edits) {
        edits_collapse(t);
        pool_req_set(t, row, pos, slots, n);
        return;
    }
    t->edits[t->n_edits] = (pool_req_edit){row, pos, n, at};
    t->newest[row] = t->n_edits++;
}

int32_t *pool_req_row(pool_req_table *t, int32_t row)
{
    LTD_CHECK(row >= 0 && row < t->n_rows, "request table: row %d of %d", row, t->n_rows);
    return t->slots + (size_t)row * (size_t)t->row_cap;
}

int32_t pool_req_edits(const pool_req_table *t, const pool_req_edit **edits, const int32_t **slots,
                       int32_t *n_slots)
{
    int32_t n = 0, used = 0;
    for (int32_t i = 0; i < t->n_edits; i++) {
        const pool_req_edit *e = &t->edits[i];
        if (!e->n) continue;
        /* Edits of one row may overlap (a b, c d, then b c); more than the whole table never travels. */
        if (e->n > t->n_rows * t->row_cap - used) {
            edits_collapse((pool_req_table *)t);
            return pool_req_edits(t, edits, slots, n_slots);
        }
        memcpy(t->out_slots + used, t->slots + (size_t)e->row * (size_t)t->row_cap + e->pos,
               (size_t)e->n * sizeof *t->slots);
        t->out[n++] = (pool_req_edit){e->row, e->pos, e->n, used};
        used += e->n;
    }
    *edits = t->out;
    *slots = t->out_slots;
    *n_slots = used;
    return n;
}

void pool_req_edits_clear(pool_req_table *t)
{
    for (int32_t i = 0; i < t->n_edits; i++) t->newest[t->edits[i].row] = -1;
    t->n_edits = 0;
}

/* ---------------------------------------------------------------- the device's copy */

/* An upload may still read its source when the next step's edits come; no more than two steps are in flight,
 * so two buffers take turns.  A step with more slots than one holds waits for the stream in between. */
enum { STAGE_SLOTS = 1 << 16 };

struct pool_req_mirror {
    const kern_ops *ops;
    kern_backend *backend;
    int32_t n_rows, row_cap;
    int32_t *table; /* device, [n_rows][row_cap] */
    int32_t *stage[2];
    int turn;
};

ltd_status pool_req_mirror_create(kern_ctx *ctx, int32_t n_rows, int32_t row_cap, pool_req_mirror **out,
                                  ltd_err *err)
{
    if (n_rows < 1 || row_cap < 1)
        return ltd_fail(err, LTD_INVALID, "request table: %d rows of %d tokens", n_rows, row_cap);
    size_t bytes = (size_t)n_rows * (size_t)row_cap * sizeof(int32_t);
    void *table;
    ltd_status st = ctx->ops->alloc(ctx->backend, bytes, &table);
    if (st != LTD_OK)
        return ltd_fail(err, st, "request table: %zu bytes on the device (%d rows of %d tokens): %s", bytes,
                        n_rows, row_cap, ltd_status_text(st));
    /* Not cleared: no op reads past a sequence's length, and clearing would make all of it resident on the
     * CPU. */
    pool_req_mirror *m = ltd_calloc(1, sizeof *m);
    m->ops = ctx->ops;
    m->backend = ctx->backend;
    m->n_rows = n_rows;
    m->row_cap = row_cap;
    m->table = table;
    for (int i = 0; i < 2; i++) m->stage[i] = ltd_alloc(STAGE_SLOTS * sizeof(int32_t));
    *out = m;
    return LTD_OK;
}

void pool_req_mirror_destroy(pool_req_mirror *m)
{
    if (!m) return;
    for (int i = 0; i < 2; i++) ltd_free(m->stage[i]);
    m->ops->free(m->backend, m->table);
    ltd_free(m);
}

ltd_status pool_req_mirror_apply(pool_req_mirror *m, const kern_ctx *ctx, const pool_req_edit *edits,
                                 int32_t n_edits, const int32_t *slots)
{
    ltd_status st;
    int32_t used = 0;
    int32_t *stage = m->stage[m->turn ^= 1];
    for (int32_t i = 0; i < n_edits; i++) {
        const pool_req_edit *e = &edits[i];
        LTD_CHECK(e->row >= 0 && e->row < m->n_rows && e->pos >= 0 && e->n >= 0 &&
                      e->n <= m->row_cap - e->pos,
                  "request table: edit of %d slots at row %d, position %d", e->n, e->row, e->pos);
        for (int32_t done = 0; done < e->n;) {
            if (used == STAGE_SLOTS) {
                if ((st = m->ops->sync(ctx)) != LTD_OK) return st;
                used = 0;
            }
            int32_t n = e->n - done < STAGE_SLOTS - used ? e->n - done : STAGE_SLOTS - used;
            memcpy(stage + used, slots + e->first + done, (size_t)n * sizeof *stage);
            int32_t *to = m->table + (size_t)e->row * (size_t)m->row_cap + e->pos + done;
            if ((st = m->ops->upload(ctx, to, stage + used, (size_t)n * sizeof *stage)) != LTD_OK) return st;
            used += n;
            done += n;
        }
    }
    return LTD_OK;
}

const int32_t *pool_req_mirror_table(const pool_req_mirror *m, int64_t *stride)
{
    *stride = m->row_cap;
    return m->table;
}
