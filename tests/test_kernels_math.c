/* The elementary functions against libm in double precision. */
#include "kernels/numerics.h"
#include "tests/support/ktest.h"

static double ulps(float y, double exact)
{
    int e;
    frexp(exact, &e);
    double unit = ldexp(1, e - 24);
    if (unit < 0x1p-149) unit = 0x1p-149;
    return fabs((double)y - exact) / unit;
}

static void exp_everywhere_is_within_two_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = -103; x < 88.7; x += 0.000731) {
        double u = ulps(kern_exp((float)x), exp((double)(float)x));
        if (u > worst) worst = u;
    }
    for (double x = 1e-9; x < 1; x *= 1.001) {
        double u = fmax(ulps(kern_exp((float)x), exp((double)(float)x)),
                        ulps(kern_exp((float)-x), exp((double)(float)-x)));
        if (u > worst) worst = u;
    }
    print_message("exp: %.2f ulp\n", worst);
    assert_true(worst < 2);
}

static void exp_of_special_values_is_exact(void **state)
{
    (void)state;
    assert_true(kern_exp(0.0f) == 1 && kern_exp(-0.0f) == 1);
    assert_true(kern_bits(kern_exp(-INFINITY)) == 0);
    assert_true(kern_exp(-200.0f) == 0 && kern_exp(-3e38f) == 0);
    assert_true(kern_exp(INFINITY) == INFINITY && kern_exp(89.5f) == INFINITY && kern_exp(3e38f) == INFINITY);
    assert_true(isnan(kern_exp(NAN)));
    assert_true(kern_exp(-100.0f) > 0);
}

static void log_everywhere_is_within_two_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = 1e-44; x < 3e38; x *= 1.00037) {
        double u = ulps(kern_log((float)x), log((double)(float)x));
        if (u > worst) worst = u;
    }
    for (double x = 0.4; x < 2.5; x += 0.0000031) {
        double u = (float)x == 1 ? 0 : ulps(kern_log((float)x), log((double)(float)x));
        if (u > worst) worst = u;
    }
    print_message("log: %.2f ulp\n", worst);
    assert_true(worst < 2);
}

static void log_of_special_values_is_exact(void **state)
{
    (void)state;
    assert_true(kern_log(1.0f) == 0);
    assert_true(kern_log(0.0f) == -INFINITY && kern_log(-0.0f) == -INFINITY);
    assert_true(kern_log(INFINITY) == INFINITY);
    assert_true(isnan(kern_log(-1.0f)) && isnan(kern_log(-INFINITY)) && isnan(kern_log(NAN)));
}

static void silu_and_sigmoid_are_accurate_and_finite(void **state)
{
    (void)state;
    for (double x = -100; x < 100; x += 0.0037) {
        float f = (float)x;
        double s = 1 / (1 + exp(-(double)f));
        assert_true(fabs(kern_sigmoid(f) - s) <= 5e-7 * s + 1e-37);
        assert_true(fabs(kern_silu(f) - f * s) <= 5e-7 * fabs(f * s) + 1e-36);
    }
    assert_true(kern_silu(-1e30f) == 0 && kern_silu(1e30f) == 1e30f);
}

/* 256 bins for each of many (seed, position) pairs over ids, and for each of many ids over positions and
 * seeds. */
static double chi_square(const int *bins, int n_bins, double total)
{
    double sum = 0, e = total / n_bins;
    for (int i = 0; i < n_bins; i++) sum += (bins[i] - e) * (bins[i] - e) / e;
    return (sum - (n_bins - 1)) / sqrt(2.0 * (n_bins - 1)); /* about standard normal */
}

static void noise_is_uniform_along_ids_positions_and_seeds(void **state)
{
    (void)state;
    double worst = 0;
    for (int axis = 0; axis < 3; axis++)
        for (int fixed = 0; fixed < 60; fixed++)
            for (int shift = 24; shift >= 9; shift -= 15) {
                int bins[256] = {0}, n = 100000;
                for (int i = 0; i < n; i++) {
                    kern_noise key = kern_noise_key(axis == 2 ? (uint64_t)i : 7u + (uint64_t)fixed / 6,
                                                    axis == 1 ? i : fixed);
                    bins[kern_noise_bits(key, axis == 0 ? (uint32_t)i : (uint32_t)fixed * 977u) >> shift &
                         255]++;
                }
                worst = fmax(worst, fabs(chi_square(bins, 256, n)));
            }
    print_message("noise: worst of 360 chi-squares %.2f sigma\n", worst);
    assert_true(worst < 5);
}

static void noise_of_neighbours_is_uncorrelated(void **state)
{
    (void)state;
    enum { N = 200000 };
    for (int axis = 0; axis < 3; axis++) {
        double xy = 0, top = 0;
        for (int i = 0; i < N; i++) {
            uint32_t a, b;
            if (axis == 0)
                a = kern_noise_bits(kern_noise_key(1, 5), (uint32_t)i),
                b = kern_noise_bits(kern_noise_key(1, 5), (uint32_t)i + 1);
            else if (axis == 1)
                a = kern_noise_bits(kern_noise_key(1, i), 3),
                b = kern_noise_bits(kern_noise_key(1, i + 1), 3);
            else
                a = kern_noise_bits(kern_noise_key((uint64_t)i, 5), 3),
                b = kern_noise_bits(kern_noise_key((uint64_t)i + 1, 5), 3);
            xy += (a * 0x1p-32 - 0.5) * (b * 0x1p-32 - 0.5) * 12;
            top += (a >> 31) == (b >> 31) ? 1 : -1;
        }
        assert_true(fabs(xy / sqrt(N)) < 4.5);
        assert_true(fabs(top / sqrt(N)) < 4.5);
    }
}

static void gumbel_is_finite_at_both_ends(void **state)
{
    (void)state;
    float low = 100, high = -100;
    double sum = 0;
    enum { N = 3000000 };
    for (int i = 0; i < N; i++) {
        float g = kern_gumbel(kern_noise_key(3, i / 100000), (uint32_t)i);
        assert_true(isfinite(g));
        low = g < low ? g : low;
        high = g > high ? g : high;
        sum += g;
    }
    assert_true(low > -3 && low < -2.4 && high > 12 && high < 17);
    assert_true(fabs(sum / N - 0.5772157) < 4 * 1.2825 / sqrt(N));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_everywhere_is_within_two_ulp),
        cmocka_unit_test(exp_of_special_values_is_exact),
        cmocka_unit_test(log_everywhere_is_within_two_ulp),
        cmocka_unit_test(log_of_special_values_is_exact),
        cmocka_unit_test(silu_and_sigmoid_are_accurate_and_finite),
        cmocka_unit_test(noise_is_uniform_along_ids_positions_and_seeds),
        cmocka_unit_test(noise_of_neighbours_is_uncorrelated),
        cmocka_unit_test(gumbel_is_finite_at_both_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
