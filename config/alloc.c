/* alloc.c - host memory: failing dies, except where a client chose the size. */
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

#ifdef LTD_DEBUG
static _Thread_local int guard_depth;
#define CHECK_GUARD(bytes)                                                                                   \
    LTD_CHECK(guard_depth == 0, "allocation of %zu bytes where none may happen", (size_t)(bytes))
#else
#define CHECK_GUARD(bytes) ((void)0)
#endif

void ltd_alloc_guard(bool on)
{
#ifdef LTD_DEBUG
    guard_depth += on ? 1 : -1;
    LTD_CHECK(guard_depth >= 0, "allocation guard ended more often than begun");
#else
    (void)on;
#endif
}

/* malloc(0) may be NULL; ours never is. */
static size_t at_least_one(size_t bytes) { return bytes ? bytes : 1; }

void *ltd_alloc(size_t bytes)
{
    CHECK_GUARD(bytes);
    void *p = malloc(at_least_one(bytes));
    LTD_CHECK(p, "out of memory: %zu bytes", bytes);
    return p;
}

void *ltd_calloc(size_t n, size_t bytes)
{
    size_t all;
    LTD_CHECK(!__builtin_mul_overflow(n, bytes, &all), "allocation of %zu x %zu bytes", n, bytes);
    CHECK_GUARD(all);
    void *p = calloc(1, at_least_one(all));
    LTD_CHECK(p, "out of memory: %zu x %zu bytes", n, bytes);
    return p;
}

void *ltd_realloc(void *p, size_t bytes)
{
    CHECK_GUARD(bytes);
    void *q = realloc(p, at_least_one(bytes));
    LTD_CHECK(q, "out of memory: %zu bytes", bytes);
    return q;
}

char *ltd_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(ltd_alloc(n), s, n);
}

void ltd_free(void *p) { free(p); }

void *ltd_try_alloc(size_t bytes)
{
    CHECK_GUARD(bytes);
    return malloc(at_least_one(bytes));
}

void *ltd_alloc_aligned(size_t align, size_t bytes)
{
    CHECK_GUARD(bytes);
    LTD_CHECK(align && (align & (align - 1)) == 0, "alignment %zu is no power of two", align);
    if (align < sizeof(void *)) align = sizeof(void *);
    void *p = NULL;
    int rc = posix_memalign(&p, align, at_least_one(bytes));
    LTD_CHECK(rc == 0, "out of memory: %zu bytes aligned to %zu", bytes, align);
    return p;
}
