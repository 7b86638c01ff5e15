/* test_model_rope.c - inverse frequencies and the table of cosines and sines, against the sheet's numbers;
 * D30 and D31. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "model/model_private.h"

static model_config read_config(const char *text)
{
    model_config c;
    ltd_err err = {{0}};
    if (model_config_parse(".", text, strlen(text), NULL, 0, &c, &err) != LTD_OK) fail_msg("%s", err.text);
    return c;
}

static model_config yarn(const char *more)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\":\"deepseek_v2\",\"kv_lora_rank\":512,\"num_experts_per_tok\":6,\"rope_"
             "scaling\":{\"type\":\"yarn\",\"factor\":40,"
             "\"original_max_position_embeddings\":4096%s}}",
             more);
    return read_config(text);
}

static model_config plain(int32_t dim, double theta)
{
    char text[512];
    snprintf(text, sizeof text,
             "{\"model_type\":\"deepseek_v2\",\"kv_lora_rank\":512,\"num_experts_per_tok\":6,\"qk_rope_head_"
             "dim\":%d,\"rope_theta\":%g}",
             dim, theta);
    return read_config(text);
}

static void check_near(double got, double want, double tol, const char *what, int i)
{
    if (!(fabs(got - want) <= tol)) fail_msg("%s %d: %.10g, expected %.10g", what, i, got, want);
}

static void yarn_frequencies_are_the_sheets(void **state)
{
    (void)state;
    static const double want[32] = {
        1,
        0.749894209,
        0.562341325,
        0.421696503,
        0.316227766,
        0.237137371,
        0.177827941,
        0.133352143,
        0.1,
        0.0749894209,
        0.0562341325,
        0.0390069266,
        0.0268793601,
        0.0183781462,
        0.0124479559,
        0.00833450895,
        0.0055,
        0.00356199749,
        0.0022493653,
        0.00137051364,
        0.000790569415,
        0.000414990398,
        0.000177827941,
        3.33380358e-05,
        2.5e-05,
        1.87473552e-05,
        1.40585331e-05,
        1.05424126e-05,
        7.90569415e-06,
        5.92843426e-06,
        4.44569853e-06,
        3.33380358e-06,
    };
    model_config c = yarn(",\"mscale\":0.707,\"mscale_all_dim\":0.707");
    double inv[32];
    model_rope_inv_freq(&c, inv);
    for (int i = 0; i < 32; i++) check_near(inv[i], want[i], 3e-7 * want[i], "inv_freq", i);
}

static void plain_frequencies_are_moonlights(void **state)
{
    (void)state;
    static const struct {
        int i;
        double want;
    } spots[] = {{0, 1}, {1, 0.713111085}, {2, 0.508527419}, {3, 0.36263654}, {31, 2.80461213e-05}};
    model_config c = plain(64, 50000);
    double inv[32];
    model_rope_inv_freq(&c, inv);
    for (size_t k = 0; k < sizeof spots / sizeof *spots; k++)
        check_near(inv[spots[k].i], spots[k].want, 3e-7 * spots[k].want, "inv_freq", spots[k].i);
}

static void untruncated_ramp_is_between(void **state)
{
    (void)state;
    model_config c = yarn(",\"truncate\":false"); /* the ramp runs from 10.4722 to 22.5134 */
    double inv[32];
    model_rope_inv_freq(&c, inv);
    double f = pow(10000, -22.0 / 64), ramp = (11 - 10.4722408) / (22.5134406 - 10.4722408);
    check_near(inv[11], f / 40 * ramp + f * (1 - ramp), 1e-8, "inv_freq", 11);
    f = pow(10000, -20.0 / 64);
    check_near(inv[10], f, 1e-12, "inv_freq", 10);
}

static void table_spots_are_the_sheets(void **state)
{
    (void)state;
    static const struct {
        int pos, i;
        double cosine, sine, tol;
    } spots[] = {
        {4095, 10, -0.587760045, -0.809035308, 5e-4}, {4095, 16, -0.862123092, -0.506698898, 5e-4},
        {4095, 31, 0.999906814, 0.0136515016, 1e-6},  {0, 7, 1, 0, 0},
        {1, 0, 0.540302306, 0.841470985, 1e-7},
    };
    model_config c = yarn(",\"mscale\":0.707,\"mscale_all_dim\":0.707");
    float *t = ltd_alloc(4096 * 64 * sizeof *t);
    model_rope_table(&c, 4096, t);
    for (size_t k = 0; k < sizeof spots / sizeof *spots; k++) {
        const float *pair = t + ((size_t)spots[k].pos * 32 + (size_t)spots[k].i) * 2;
        check_near(pair[0], spots[k].cosine, spots[k].tol, "cos", (int)k);
        check_near(pair[1], spots[k].sine, spots[k].tol, "sin", (int)k);
    }
    ltd_free(t);
}

static void d30_cos_factor_is_in_the_table(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        double factor;
    } cases[] = {{",\"mscale\":0.707,\"mscale_all_dim\":0.707", 1},
                 {",\"mscale\":1,\"mscale_all_dim\":0.707", 1.0857264},
                 {"", 1.3688879}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config c = yarn(cases[i].more);
        float t[2 * 64];
        model_rope_table(&c, 2, t);
        check_near(t[0], cases[i].factor, 1e-6, "cos at 0", (int)i);
        check_near(t[1], 0, 0, "sin at 0", (int)i);
        check_near(t[65], cases[i].factor * sin(1), 1e-6, "sin at 1", (int)i);
    }
}

/* y of one vector by the table: neighbours are a pair. */
static void rotate(const float *row, int32_t dim, const double *x, double *y)
{
    for (int32_t i = 0; i < dim / 2; i++) {
        double cosine = row[2 * i], sine = row[2 * i + 1];
        y[2 * i] = x[2 * i] * cosine - x[2 * i + 1] * sine;
        y[2 * i + 1] = x[2 * i] * sine + x[2 * i + 1] * cosine;
    }
}

static void d31_neighbours_are_a_pair(void **state)
{
    (void)state;
    model_config c = plain(4, 10000);
    float t[2 * 4];
    double q[4], k[4], dot = 0;
    model_rope_table(&c, 2, t);
    rotate(t + 4, 4, (const double[]){1, 0, 0, 0}, q);
    rotate(t, 4, (const double[]){0, 1, 0, 0}, k);
    for (int i = 0; i < 4; i++) dot += q[i] * k[i];
    check_near(dot, 0.8414710, 1e-7, "q.k", 0);
}

static void rotation_of_the_sheets_vector(void **state)
{
    (void)state;
    static const double want[8] = {0.2489707, -2.2221642, -2.7076487, 4.2034080,
                                   7.6282804, 1.6761080,  3.7103053,  -9.9616080};
    model_config c = plain(64, 10000);
    float *t = ltd_alloc(11 * 64 * sizeof *t);
    double x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    model_rope_table(&c, 11, t);
    rotate(t + 10 * 64, 8, x, y);
    for (int i = 0; i < 8; i++) check_near(y[i], want[i], 2e-6, "y", i);
    ltd_free(t);
}

static void angle_is_an_f32_product(void **state)
{
    (void)state;
    model_config c = plain(64, 10000);
    int32_t n = 100001;
    float *t = ltd_alloc((size_t)n * 64 * sizeof *t);
    double inv[32];
    model_rope_table(&c, n, t);
    model_rope_inv_freq(&c, inv);
    for (int32_t i = 0; i < 32; i++) {
        float angle = 100000.0F * (float)inv[i];
        assert_true(t[((size_t)100000 * 32 + (size_t)i) * 2] == (float)cos((double)angle));
    }
    ltd_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yarn_frequencies_are_the_sheets), cmocka_unit_test(plain_frequencies_are_moonlights),
        cmocka_unit_test(untruncated_ramp_is_between),     cmocka_unit_test(table_spots_are_the_sheets),
        cmocka_unit_test(d30_cos_factor_is_in_the_table),  cmocka_unit_test(d31_neighbours_are_a_pair),
        cmocka_unit_test(rotation_of_the_sheets_vector),   cmocka_unit_test(angle_is_an_f32_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
