/* test_mempool_tables - the request table and its mirror, the token pools, the sizing; on a device of our own
 * that counts its allocations and reads what is uploaded only when the stream is synchronised, as late as a
 * real one may. */
#include "mempool/mempool_private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---------------------------------------------------------------- a fake device */

typedef struct pending {
    void *dst;
    const void *src;
    size_t bytes;
} pending;
static struct {
    int n_allocs, n_ctx, fail_alloc; /* fail_alloc: the nth from now; 0 = none */
    size_t bytes;
    pending queue[4096];
    int n_queued;
    int n_syncs;
} dev;

static ltd_status fake_alloc(kern_backend *b, size_t bytes, void **out)
{
    (void)b;
    if (dev.fail_alloc && --dev.fail_alloc == 0) return LTD_NO_MEMORY;
    *out = ltd_alloc_aligned(256, bytes);
    memset(*out, 0xff, bytes); /* NaN, and absurd indices */
    dev.n_allocs++;
    dev.bytes += bytes;
    return LTD_OK;
}
static void fake_free(kern_backend *b, void *p)
{
    (void)b;
    dev.n_allocs--;
    ltd_free(p);
}
static ltd_status fake_upload(const kern_ctx *ctx, void *dst, const void *src, size_t bytes)
{
    (void)ctx;
    LTD_CHECK(dev.n_queued < 4096, "queue");
    dev.queue[dev.n_queued++] = (pending){dst, src, bytes};
    return LTD_OK;
}
static ltd_status fake_zero(const kern_ctx *ctx, void *dst, size_t bytes)
{
    (void)ctx;
    memset(dst, 0, bytes);
    return LTD_OK;
}
static void run_queue(int n)
{
    for (int i = 0; i < n; i++) memcpy(dev.queue[i].dst, dev.queue[i].src, dev.queue[i].bytes);
    memmove(dev.queue, dev.queue + n, (size_t)(dev.n_queued - n) * sizeof *dev.queue);
    dev.n_queued -= n;
}
static ltd_status fake_sync(const kern_ctx *ctx)
{
    (void)ctx;
    run_queue(dev.n_queued);
    dev.n_syncs++;
    return LTD_OK;
}
static ltd_status fake_ctx_create(kern_backend *b, size_t ws, int lane, int rank, kern_ctx **out,
                                  ltd_err *err);
static void fake_ctx_destroy(kern_ctx *ctx)
{
    dev.n_ctx--;
    ltd_free(ctx);
}
static const kern_ops fake_ops = {.name = "fake",
                                  .alloc = fake_alloc,
                                  .free = fake_free,
                                  .upload = fake_upload,
                                  .fill_zero = fake_zero,
                                  .sync = fake_sync,
                                  .ctx_create = fake_ctx_create,
                                  .ctx_destroy = fake_ctx_destroy};
static kern_backend backend = {.ops = &fake_ops};
static ltd_status fake_ctx_create(kern_backend *b, size_t ws, int lane, int rank, kern_ctx **out,
                                  ltd_err *err)
{
    (void)ws;
    (void)err;
    *out = ltd_calloc(1, sizeof **out);
    **out = (kern_ctx){.ops = b->ops, .backend = b, .lane = lane, .rank = rank};
    dev.n_ctx++;
    return LTD_OK;
}

/* ---------------------------------------------------------------- request table */

static void rows_run_out_and_come_back(void **state)
{
    (void)state;
    pool_req_table *t;
    int32_t row[3], more;
    assert_int_equal(pool_req_table_create(3, 10, &t), LTD_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pool_req_row_take(t, &row[i]), LTD_OK);
        assert_int_equal(row[i], i);
    }
    assert_int_equal(pool_req_row_take(t, &more), LTD_FULL);
    pool_req_row_give(t, 1);
    assert_int_equal(pool_req_row_take(t, &more), LTD_OK);
    assert_int_equal(more, 1);
    pool_req_table_destroy(t);
    pool_req_table_destroy(NULL);
    assert_int_equal(pool_req_table_create(0, 10, &t), LTD_INVALID);
    assert_int_equal(pool_req_table_create(1 << 16, 1 << 16, &t), LTD_INVALID);
}

static void adjacent_edits_join(void **state)
{
    (void)state;
    pool_req_table *t;
    const pool_req_edit *e;
    const int32_t *s;
    int32_t n, a, b, v[8] = {11, 12, 13, 14, 15, 16, 17, 18};
    assert_int_equal(pool_req_table_create(4, 100, &t), LTD_OK);
    pool_req_row_take(t, &a);
    pool_req_row_take(t, &b);
    pool_req_set(t, a, 0, v, 4);
    pool_req_set(t, b, 7, v, 1);
    pool_req_set(t, a, 4, v + 4, 2); /* behind, with another row's in between */
    pool_req_set(t, a, 3, v, 1);     /* rewritten: travels once, as it is now */
    pool_req_set(t, a, 50, v + 6, 2);
    pool_req_set(t, a, 60, v, 0); /* nothing */
    assert_int_equal(pool_req_edits(t, &e, &s, &n), 3);
    assert_int_equal(n, 6 + 1 + 2);
    assert_true(e[0].row == a && e[0].pos == 0 && e[0].n == 6);
    int32_t want[6] = {11, 12, 13, 11, 15, 16};
    assert_memory_equal(s + e[0].first, want, sizeof want);
    assert_true(e[1].row == b && e[1].pos == 7 && e[1].n == 1 && s[e[1].first] == 11);
    assert_true(e[2].row == a && e[2].pos == 50 && e[2].n == 2 && s[e[2].first + 1] == 18);
    assert_int_equal(pool_req_row(t, a)[51], 18);
    pool_req_edits_clear(t);
    assert_int_equal(pool_req_edits(t, &e, &s, &n), 0);
    assert_int_equal(n, 0);
    pool_req_set(t, a, 6, v, 1); /* joins nothing that is gone */
    assert_int_equal(pool_req_edits(t, &e, &s, &n), 1);
    pool_req_row_give(t, a); /* what nobody reads does not travel */
    assert_int_equal(pool_req_edits(t, &e, &s, &n), 0);
    pool_req_row_take(t, &a);
    pool_req_set(t, a, 0, v, 3);
    assert_int_equal(pool_req_edits(t, &e, &s, &n), 1);
    pool_req_edits_clear(t);
    pool_req_table_destroy(t);
}

/* A step's edits may be many and scattered; the mirror equals the master after each, two steps behind, and
 * nothing allocates. */
static void mirror_follows_random_edits(void **state)
{
    (void)state;
    enum { ROWS = 6, CAP = 300, STEPS = 3000 };
    srand(7);
    pool_req_table *t;
    pool_req_mirror *m;
    kern_ctx *ctx;
    static int32_t
        known[ROWS][CAP]; /* the master as of each written entry; 0 = never written since the row was taken */
    bool taken[ROWS] = {false};
    ltd_err err;
    fake_ctx_create(&backend, 0, 0, 0, &ctx, NULL);
    assert_int_equal(pool_req_table_create(ROWS, CAP, &t), LTD_OK);
    assert_int_equal(pool_req_mirror_create(ctx, ROWS, CAP, &m, &err), LTD_OK);
    int64_t stride;
    const int32_t *device = pool_req_mirror_table(m, &stride);
    assert_int_equal(stride, CAP);
    int at_last_step = 0;
    ltd_alloc_guard(true);
    for (int step = 0; step < STEPS; step++) {
        for (int k = rand() % 60; k > 0; k--) {
            int32_t row = rand() % ROWS, v[CAP];
            if (!taken[row] || rand() % 20 == 0) {
                if (taken[row]) pool_req_row_give(t, row);
                taken[row] = false;
                memset(known[row], 0, sizeof known[row]);
                if (pool_req_row_take(t, &row) != LTD_OK) continue;
                taken[row] = true;
            }
            int32_t pos = rand() % CAP, n = 1 + rand() % (rand() % 3 ? 3 : CAP);
            if (n > CAP - pos) n = CAP - pos;
            for (int32_t i = 0; i < n; i++) known[row][pos + i] = v[i] = 1 + rand();
            pool_req_set(t, row, pos, v, n);
        }
        const pool_req_edit *e;
        const int32_t *s;
        int32_t n_slots, n = pool_req_edits(t, &e, &s, &n_slots);
        assert_in_range(n_slots, 0, ROWS * CAP);
        assert_int_equal(pool_req_mirror_apply(m, ctx, e, n, s), LTD_OK);
        pool_req_edits_clear(t);
        /* The step before is through when this one has been launched; this one's uploads are read as late as
         * may be. */
        run_queue(at_last_step < dev.n_queued ? at_last_step : dev.n_queued);
        at_last_step = dev.n_queued;
        if (step % 50 == 49) {
            fake_sync(ctx);
            at_last_step = 0;
            for (int r = 0; r < ROWS; r++)
                for (int i = 0; i < CAP; i++)
                    if (taken[r] && known[r][i] &&
                        (device[r * stride + i] != known[r][i] || pool_req_row(t, r)[i] != known[r][i]))
                        fail_msg("step %d row %d position %d: %d on the device, %d here", step, r, i,
                                 device[r * stride + i], known[r][i]);
        }
    }
    ltd_alloc_guard(false);
    fake_sync(ctx);
    pool_req_mirror_destroy(m);
    pool_req_mirror_destroy(NULL);
    pool_req_table_destroy(t);
    fake_ctx_destroy(ctx);
    assert_int_equal(dev.n_allocs, 0);
}

static void mirror_takes_more_than_its_staging_holds(void **state)
{
    (void)state;
    enum { CAP = 200000 };
    pool_req_table *t;
    pool_req_mirror *m;
    kern_ctx *ctx;
    ltd_err err;
    int32_t row, *v = malloc(CAP * sizeof *v);
    for (int32_t i = 0; i < CAP; i++) v[i] = i * 3 + 1;
    fake_ctx_create(&backend, 0, 0, 0, &ctx, NULL);
    assert_int_equal(pool_req_table_create(2, CAP, &t), LTD_OK);
    assert_int_equal(pool_req_mirror_create(ctx, 2, CAP, &m, &err), LTD_OK);
    pool_req_row_take(t, &row);
    pool_req_row_take(t, &row);
    pool_req_set(t, row, 0, v, CAP);
    const pool_req_edit *e;
    const int32_t *s;
    int32_t n_slots, n = pool_req_edits(t, &e, &s, &n_slots);
    assert_int_equal(pool_req_mirror_apply(m, ctx, e, n, s), LTD_OK);
    fake_sync(ctx);
    int64_t stride;
    assert_memory_equal(pool_req_mirror_table(m, &stride) + row * (int64_t)CAP, v, CAP * sizeof *v);
    pool_req_mirror_destroy(m);
    pool_req_table_destroy(t);
    fake_ctx_destroy(ctx);
    free(v);
    dev.fail_alloc = 1;
    fake_ctx_create(&backend, 0, 0, 0, &ctx, NULL);
    assert_int_equal(pool_req_mirror_create(ctx, 2, CAP, &m, &err), LTD_NO_MEMORY);
    assert_non_null(strstr(err.text, "1600000 bytes"));
    fake_ctx_destroy(ctx);
}

/* ---------------------------------------------------------------- token pools */

static void mla_planes_share_a_row(void **state)
{
    (void)state;
    pool_tokens_desc d = {.kind = POOL_MLA,
                          .dtype = KERN_BF16,
                          .n_layers = 3,
                          .n_slots = 100,
                          .n_heads = 16,
                          .d_c = 512,
                          .d_rope = 64,
                          .d_nope = 128,
                          .d_v = 128};
    pool_tokens *p;
    ltd_err err;
    dev.bytes = 0;
    assert_int_equal(pool_tokens_slot_bytes(&d), 3 * 576 * 2);
    assert_int_equal(pool_tokens_create(&backend, &d, &p, &err), LTD_OK);
    assert_int_equal(dev.bytes, 101 * pool_tokens_slot_bytes(&d));
    assert_int_equal(pool_tokens_get_desc(p)->n_slots, 100);
    for (int32_t l = 0; l < 3; l++) {
        kern_tensor c = pool_tokens_plane(p, POOL_LATENT, l), r = pool_tokens_plane(p, POOL_ROPE, l);
        assert_true(c.stride == 576 && r.stride == 576 && c.dtype == KERN_BF16 && !c.scales);
        assert_int_equal((uintptr_t)c.data % 256, 0);
        assert_ptr_equal(r.data, (uint16_t *)c.data + 512);
        for (int i = 0; i < 576; i++) assert_int_equal(((uint16_t *)c.data)[i], 0); /* slot 0 */
        assert_int_equal(((uint16_t *)c.data)[576], 0xffff);
        memset((uint16_t *)c.data + 100 * 576, l, 576 * 2); /* the last slot's row is ours */
    }
    assert_null(pool_tokens_plane(p, POOL_K, 0).data);
    assert_null(pool_tokens_plane(p, POOL_V, 0).data);
    pool_tokens_destroy(p);
    pool_tokens_destroy(NULL);
    assert_int_equal(dev.n_allocs, 0);
    assert_int_equal(dev.n_ctx, 0);
}

static void mha_planes_hold_all_heads(void **state)
{
    (void)state;
    pool_tokens_desc d = {.kind = POOL_MHA,
                          .dtype = KERN_F32,
                          .n_layers = 2,
                          .n_slots = 10,
                          .n_heads = 4,
                          .d_c = 512,
                          .d_rope = 64,
                          .d_nope = 128,
                          .d_v = 128};
    pool_tokens *p;
    ltd_err err;
    assert_int_equal(pool_tokens_slot_bytes(&d), 2 * 4 * (192 + 128) * 4);
    assert_int_equal(pool_tokens_create(&backend, &d, &p, &err), LTD_OK);
    kern_tensor k = pool_tokens_plane(p, POOL_K, 1), v = pool_tokens_plane(p, POOL_V, 1);
    assert_true(k.stride == 4 * 192 && v.stride == 4 * 128 && k.dtype == KERN_F32);
    assert_true(((float *)k.data)[0] == 0 && ((float *)v.data)[4 * 128 - 1] == 0);
    assert_null(pool_tokens_plane(p, POOL_LATENT, 0).data);
    pool_tokens_destroy(p);
    assert_int_equal(dev.n_allocs, 0);
}

static void failed_allocation_gives_everything_back(void **state)
{
    (void)state;
    pool_tokens_desc d = {.kind = POOL_MHA,
                          .dtype = KERN_F32,
                          .n_layers = 2,
                          .n_slots = 10,
                          .n_heads = 1,
                          .d_c = 8,
                          .d_rope = 4,
                          .d_nope = 4,
                          .d_v = 4};
    pool_tokens *p;
    ltd_err err;
    for (int nth = 1; nth <= 4; nth++) {
        dev.fail_alloc = nth;
        assert_int_equal(pool_tokens_create(&backend, &d, &p, &err), LTD_NO_MEMORY);
        assert_non_null(strstr(err.text, "--max-total-tokens"));
        assert_int_equal(dev.n_allocs, 0);
    }
    d.dtype = KERN_F16;
    assert_int_equal(pool_tokens_create(&backend, &d, &p, &err), LTD_UNSUPPORTED);
    d.dtype = KERN_F32;
    d.n_heads = 0;
    assert_int_equal(pool_tokens_create(&backend, &d, &p, &err), LTD_INVALID);
}

/* ---------------------------------------------------------------- sizing */

static void slots_are_what_is_left(void **state)
{
    (void)state;
    ltd_err err;
    int32_t n;
    pool_sizing s = {.memory_total = 1000000,
                     .fraction = 0.9,
                     .weights = 500000,
                     .workspaces = 50000,
                     .other = 50000,
                     .slot_bytes = 1000};
    assert_int_equal(pool_size_slots(&s, 1, &n, &err), LTD_OK);
    assert_int_equal(n, 299); /* slot 0 has bytes too */
    assert_int_equal(pool_size_slots(&s, 299, &n, &err), LTD_OK);
    assert_int_equal(pool_size_slots(&s, 300, &n, &err), LTD_NO_MEMORY);
    assert_non_null(strstr(err.text, "300 slots"));
    assert_non_null(strstr(err.text, "fraction 0.90"));
    s.useful_slots = 200;
    assert_int_equal(pool_size_slots(&s, 1, &n, &err), LTD_OK);
    assert_int_equal(n, 200);
    assert_int_equal(pool_size_slots(&s, 250, &n, &err), LTD_OK);
    assert_int_equal(n, 250);
    s.max_slots = 64;
    assert_int_equal(pool_size_slots(&s, 1, &n, &err), LTD_OK);
    assert_int_equal(n, 64);
    assert_int_equal(pool_size_slots(&s, 65, &n, &err), LTD_INVALID);
    assert_non_null(strstr(err.text, "--max-total-tokens 64"));
    s.max_slots = 0;
    s.weights = 5000000; /* more than all */
    assert_int_equal(pool_size_slots(&s, 1, &n, &err), LTD_NO_MEMORY);
    s = (pool_sizing){.memory_total = (size_t)1 << 50, .fraction = 1, .slot_bytes = 16};
    assert_int_equal(pool_size_slots(&s, 1, &n, &err), LTD_OK);
    assert_in_range(n, INT32_MAX - 64, INT32_MAX);
}

static void table_has_a_line_a_row(void **state)
{
    (void)state;
    pool_sizing s = {.memory_total = (size_t)140 << 30,
                     .fraction = 0.9,
                     .weights = (size_t)29 << 30,
                     .workspaces = (size_t)600 << 20,
                     .other = 0,
                     .slot_bytes = 31104};
    ltd_buf out = {0};
    ltd_err err;
    int32_t n;
    assert_int_equal(pool_size_slots(&s, 1, &n, &err), LTD_OK);
    pool_sizing_print(&s, n, &out);
    print_message("%s", out.data);
    assert_non_null(strstr(out.data, "140.00 GiB"));
    assert_non_null(strstr(out.data, "600.0 MiB"));
    assert_int_equal(out.data[out.len - 1], '\n');
    ltd_buf_deinit(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_run_out_and_come_back),
        cmocka_unit_test(adjacent_edits_join),
        cmocka_unit_test(mirror_follows_random_edits),
        cmocka_unit_test(mirror_takes_more_than_its_staging_holds),
        cmocka_unit_test(mla_planes_share_a_row),
        cmocka_unit_test(mha_planes_hold_all_heads),
        cmocka_unit_test(failed_allocation_gives_everything_back),
        cmocka_unit_test(slots_are_what_is_left),
        cmocka_unit_test(table_has_a_line_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
