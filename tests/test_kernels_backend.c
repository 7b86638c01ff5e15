/* Backends: what opens and what does not, memory, threads, two contexts at once. */
#include "tests/support/ktest.h"
#include <pthread.h>

static void backends_that_are_not_there_say_why(void **state)
{
    (void)state;
    kern_backend *b = NULL;
    ltd_err err = {{0}};
    assert_true(kern_backend_can("cpu", NULL) && kern_backend_can("cpu-ref", NULL));
    assert_false(kern_backend_can("npu", &err));
    assert_non_null(strstr(err.text, "npu"));
    assert_int_equal(kern_backend_open("npu", NULL, &b, &err), LTD_UNSUPPORTED);
    kern_backend_options o = {.isa = "v9"};
    assert_int_equal(kern_backend_open("cpu", &o, &b, &err), LTD_UNSUPPORTED);
    assert_non_null(strstr(err.text, "v9"));
    assert_null(b);
    kern_backend_close(NULL);
}

static void a_backend_describes_itself_and_its_memory(void **state)
{
    (void)state;
    kern_backend *b;
    assert_int_equal(kern_backend_open("cpu", NULL, &b, NULL), LTD_OK);
    print_message("%s, %.1f of %.1f GiB free\n", b->description, (double)b->memory_free / (1 << 30),
                  (double)b->memory_total / (1 << 30));
    assert_string_equal(b->ops->name, "cpu");
    assert_true(strncmp(b->description, "cpu ", 4) == 0 && strstr(b->description, "thread"));
    assert_true(b->memory_free > 0 && b->memory_free <= b->memory_total);
    kern_backend_close(b);
    assert_int_equal(kern_backend_open("cpu-ref", NULL, &b, NULL), LTD_OK);
    assert_string_equal(b->ops->name, "cpu-ref");
    kern_backend_close(b);
}

static void memory_is_aligned_and_too_much_of_it_is_refused(void **state)
{
    (void)state;
    kt_device d = kt_open("cpu", NULL, 2);
    const kern_ops *ops = d.backend->ops;
    void *p, *none = NULL;
    char text[100] = "text", back[100] = {0};
    for (size_t bytes = 0; bytes < 5000; bytes += 777) {
        assert_int_equal(ops->alloc(d.backend, bytes, &p), LTD_OK);
        assert_int_equal((uintptr_t)p % 256, 0);
        if (bytes >= 100) {
            assert_int_equal(ops->upload(d.ctx, p, text, 100), LTD_OK);
            assert_int_equal(ops->download(d.ctx, back, p, 100), LTD_OK);
            assert_int_equal(ops->sync(d.ctx), LTD_OK);
            assert_memory_equal(back, text, 100);
            assert_int_equal(ops->fill_zero(d.ctx, p, bytes), LTD_OK);
            assert_int_equal(((char *)p)[bytes - 1], 0);
        }
        ops->free(d.backend, p);
    }
    ops->free(d.backend, NULL);
    assert_int_equal(ops->alloc(d.backend, SIZE_MAX - 10, &none), LTD_NO_MEMORY);
    kern_ctx *c;
    assert_int_equal(ops->ctx_create(d.backend, 1000, 3, 1, &c, NULL), LTD_OK);
    assert_int_equal((uintptr_t)c->workspace % 256, 0);
    assert_true(c->workspace_bytes == 1000 && c->lane == 3 && c->rank == 1 && c->ops == ops);
    ops->ctx_destroy(c);
    kt_close(&d);
}

/* ---------------------------------------------------------------- two contexts, four threads */

enum { ROWS = 9, K = 300, N = 200, ROUNDS = 150 };

typedef struct lane {
    kern_ctx *ctx;
    const kern_weight *w;
    kern_tensor x;
    const void *expected;
    int wrong;
} lane;

static void *work(void *arg)
{
    lane *l = arg;
    kern_tensor out = {.data = malloc(ROWS * N * 4), .stride = N};
    for (int i = 0; i < ROUNDS; i++) {
        kern_matmul_args a = {.w = l->w, .x = l->x, .out = out, .rows_cap = ROWS};
        if (l->ctx->ops->matmul(l->ctx, &a) != LTD_OK || memcmp(out.data, l->expected, ROWS * N * 4))
            l->wrong++;
    }
    free(out.data);
    return NULL;
}

static void contexts_of_one_backend_run_at_once(void **state)
{
    (void)state;
    enum { LANES = 3 };
    kt_device d = kt_open("cpu", NULL, 3), ref = kt_open("cpu-ref", NULL, 1);
    float *values;
    kern_weight *w = kt_weight(&d, KERN_BF16, 1, N, K, 1, &values);
    kern_tensor x = kt_tensor(KERN_F32, ROWS, K, K, -1, 1), expected = kt_poison(KERN_F32, ROWS, N);
    assert_int_equal(
        ref.ctx->ops->matmul(ref.ctx, &(kern_matmul_args){.w = w, .x = x, .out = expected, .rows_cap = ROWS}),
        LTD_OK);
    lane lanes[LANES];
    pthread_t threads[LANES];
    for (int i = 0; i < LANES; i++) {
        lanes[i] = (lane){.w = w, .x = x, .expected = expected.data};
        assert_int_equal(d.backend->ops->ctx_create(d.backend, 0, i, 0, &lanes[i].ctx, NULL), LTD_OK);
    }
    for (int i = 0; i < LANES; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &lanes[i]), 0);
    for (int i = 0; i < LANES; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(lanes[i].wrong, 0);
        d.backend->ops->ctx_destroy(lanes[i].ctx);
    }
    d.backend->ops->weight_destroy(d.backend, w);
    free(values);
    kt_free(&x);
    kt_free(&expected);
    kt_close(&d);
    kt_close(&ref);
}

static void threads_that_slept_come_back_for_work(void **state)
{
    (void)state;
    kt_device d = kt_open("cpu", NULL, 4);
    float *values;
    kern_weight *w = kt_weight(&d, KERN_F32, 1, N, K, 1, &values);
    kern_tensor x = kt_tensor(KERN_F32, ROWS, K, K, -1, 1), out = kt_poison(KERN_F32, ROWS, N),
                first = kt_poison(KERN_F32, ROWS, N);
    kern_matmul_args a = {.w = w, .x = x, .out = first, .rows_cap = ROWS};
    assert_int_equal(d.ctx->ops->matmul(d.ctx, &a), LTD_OK);
    a.out = out;
    for (int i = 0; i < 60; i++) {
        int64_t until = ltd_now_us() + (i % 3) * 150; /* shorter and longer than the workers' spin */
        while (ltd_now_us() < until) {
        }
        memset(out.data, 0xff, ROWS * N * 4);
        assert_int_equal(d.ctx->ops->matmul(d.ctx, &a), LTD_OK);
        assert_memory_equal(out.data, first.data, ROWS * N * 4);
    }
    d.backend->ops->weight_destroy(d.backend, w);
    free(values);
    kt_free(&x);
    kt_free(&out);
    kt_free(&first);
    kt_close(&d);
}

static void ops_of_other_dtypes_are_refused(void **state)
{
    (void)state;
    kt_device d[2] = {kt_open("cpu-ref", NULL, 1), kt_open("cpu", NULL, 2)};
    for (int i = 0; i < 2; i++) {
        const kern_ops *ops = d[i].backend->ops;
        float x[4] = {0};
        int32_t id = 0;
        kern_tensor half = {.data = x, .dtype = KERN_F16, .stride = 4}, f32 = {.data = x, .stride = 4};
        assert_int_equal(ops->add_norm(d[i].ctx, &(kern_add_norm_args){.x = half, .d = 4, .rows_cap = 1}),
                         LTD_UNSUPPORTED);
        assert_int_equal(
            ops->silu_mul(d[i].ctx, &(kern_silu_mul_args){.x = f32, .out = half, .d = 2, .rows_cap = 1}),
            LTD_UNSUPPORTED);
        assert_int_equal(
            ops->copy_rows(d[i].ctx, &(kern_copy_rows_args){.src = f32, .dst = half, .d = 2, .rows_cap = 1}),
            LTD_UNSUPPORTED);
        assert_int_equal(
            ops->route(
                d[i].ctx,
                &(kern_route_args){
                    .logits = half, .n_experts = 4, .top_k = 1, .ids = &id, .weights = x, .rows_cap = 1}),
            LTD_UNSUPPORTED);
        assert_int_equal(ops->route(d[i].ctx, &(kern_route_args){.logits = f32,
                                                                 .method = KERN_ROUTE_GROUP_LIMITED,
                                                                 .n_experts = 4,
                                                                 .n_group = 3,
                                                                 .topk_group = 1,
                                                                 .top_k = 1,
                                                                 .ids = &id,
                                                                 .weights = x,
                                                                 .rows_cap = 1}),
                         LTD_UNSUPPORTED);
        kt_close(&d[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backends_that_are_not_there_say_why),
        cmocka_unit_test(a_backend_describes_itself_and_its_memory),
        cmocka_unit_test(memory_is_aligned_and_too_much_of_it_is_refused),
        cmocka_unit_test(contexts_of_one_backend_run_at_once),
        cmocka_unit_test(threads_that_slept_come_back_for_work),
        cmocka_unit_test(ops_of_other_dtypes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
