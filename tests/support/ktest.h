/* ktest.h - what kernel tests share: devices to compare, random and poisoned tensors, exact and relative
 * comparison. CPU device memory is host memory, so tensors are plain heap blocks of their exact size, which
 * the address sanitizer watches. */
#ifndef LTD_TESTS_KTEST_H
#define LTD_TESTS_KTEST_H

#include "kernels/kernels.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- devices */
enum { KT_MAX_DEVICES = 16 };
typedef struct kt_device {
    kern_backend *backend;
    kern_ctx *ctx;
    char name[32]; /* "v3/2": instruction set / threads */
} kt_device;
typedef struct kt_devices {
    kt_device at[KT_MAX_DEVICES]; /* 0: the definitions */
    int n;
} kt_devices;
/* The definitions, then "cpu" in every instruction set that the machine runs, with 1, 2 and 3 threads. */
int kt_setup(void **state);
int kt_teardown(void **state);
kt_device kt_open(const char *name, const char *isa, int threads);
void kt_close(kt_device *d);

/* ---------------------------------------------------------------- random numbers (a seed printed by
 * kt_setup; KT_SEED sets it) */
uint64_t kt_random(void);
float kt_uniform(float lo, float hi);
int32_t kt_below(int32_t n);

/* ---------------------------------------------------------------- tensors */
/* rows x cols at the given stride, the gaps between rows NaN; kt_poison: all NaN. */
kern_tensor kt_tensor(kern_dtype t, int64_t rows, int64_t cols, int64_t stride, float lo, float hi);
kern_tensor kt_poison(kern_dtype t, int64_t rows, int64_t stride);
void kt_free(kern_tensor *t);
double kt_get(const kern_tensor *t, int64_t i);
void kt_put(const kern_tensor *t, int64_t i, float v);
float kt_round(kern_dtype t, float v);

/* A weight on a device from f32 values in [-scale, scale], which *values receives as the device holds them
 * (free()). */
kern_weight *kt_weight(const kt_device *d, kern_dtype t, int32_t count, int32_t n, int32_t k, float scale,
                       float **values);

/* ---------------------------------------------------------------- comparison */
typedef ltd_status kt_run(const kern_ctx *ctx, const void *args);
typedef struct kt_out {
    const char *name;
    void *data;
    size_t bytes;
} kt_out;
/* Runs on every device from the same initial outputs; all must end with the bits of device 0, which are left
 * in place. */
void kt_same_bits(const kt_devices *d, kt_run *run, const void *args, const kt_out *outs, int n_outs);

/* Relative Frobenius distance of rows x cols of t from double values; places of NaN and infinities must
 * agree.  Fails above tolerance, naming the worst index. */
void kt_near(const char *what, const kern_tensor *t, int64_t rows, int64_t cols, const double *expected,
             double tolerance);
/* All elements of row `row` up to stride are still poison. */
void kt_untouched(const kern_tensor *t, int64_t row);

#define KT_OUT(t, rows)                                                                                      \
    {                                                                                                        \
#t, (t).data, (size_t)(rows) * (size_t)(t).stride *kern_dtype_bytes((t).dtype)                       \
    }
#define KT_LEN(a) ((int)(sizeof(a) / sizeof *(a)))

#endif
