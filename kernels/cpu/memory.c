/* memory.c - memory, weights and contexts of the CPU backend: what its two tables share. */
#include "kernels/cpu/cpu.h"
#include <string.h>

enum { MEM_ALIGN = 256 };

/* The pointer from ltd_try_alloc stands just before the aligned block. */
void *cpu_mem_take(size_t bytes)
{
    if (bytes > SIZE_MAX - MEM_ALIGN - sizeof(void *)) return NULL;
    char *raw = ltd_try_alloc(bytes + MEM_ALIGN + sizeof(void *));
    if (!raw) return NULL;
    void **p = (void **)(((uintptr_t)raw + sizeof(void *) + MEM_ALIGN - 1) & ~(uintptr_t)(MEM_ALIGN - 1));
    p[-1] = raw;
    return p;
}

void cpu_mem_give(void *p)
{
    if (p) ltd_free(((void **)p)[-1]);
}

ltd_status cpu_alloc(kern_backend *b, size_t bytes, void **out)
{
    (void)b;
    *out = cpu_mem_take(bytes);
    if (*out) return LTD_OK;
    log_error("kernels", "op=alloc bytes=%zu: no memory", bytes);
    return LTD_NO_MEMORY;
}

void cpu_free(kern_backend *b, void *p)
{
    (void)b;
    cpu_mem_give(p);
}

ltd_status cpu_upload(const kern_ctx *ctx, void *dst, const void *src, size_t bytes)
{
    (void)ctx;
    if (bytes) memcpy(dst, src, bytes);
    return LTD_OK;
}

ltd_status cpu_fill_zero(const kern_ctx *ctx, void *dst, size_t bytes)
{
    (void)ctx;
    if (bytes) memset(dst, 0, bytes);
    return LTD_OK;
}

ltd_status cpu_sync(const kern_ctx *ctx)
{
    (void)ctx;
    return LTD_OK;
}

/* ---------------------------------------------------------------- weights */

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
    if (exponent == 31) return kern_float(sign | 0x7f800000u | fraction << 13);
    if (exponent) return kern_float(sign | (exponent + 112) << 23 | fraction << 13);
    float f = (float)fraction * 5.9604644775390625e-8f; /* 2^-24 */
    return sign ? -f : f;
}

static void row_copy(kern_weight *w, int64_t row, const char *src, kern_dtype from)
{
    void *to = (char *)w->data + (size_t)(row * w->stride) * kern_dtype_bytes(w->dtype);
    if (from == w->dtype) {
        memcpy(to, src, (size_t)w->k * kern_dtype_bytes(from));
        return;
    }
    for (int32_t i = 0; i < w->k; i++) {
        uint16_t half;
        memcpy(&half, src + 2 * (size_t)i, 2);
        ((float *)to)[i] = from == KERN_F16 ? half_to_float(half) : kern_bf16_to_f32(half);
    }
}

/* bf16 only where all parts are. */
static ltd_status shape(const kern_weight_desc *d, kern_weight *w, ltd_err *err)
{
    *w = (kern_weight){
        .count = d->count, .k = d->k, .dtype = KERN_BF16, .stride = ((int64_t)d->k + 31) & ~31ll};
    for (int32_t i = 0; i < d->count * d->n_parts; i++) {
        const kern_weight_part *p = &d->parts[i];
        if (p->dtype == KERN_I32)
            return ltd_fail(err, LTD_UNSUPPORTED, "%s: integer weights are not supported", d->name);
        if (p->dtype != KERN_BF16) w->dtype = KERN_F32;
        if (i < d->n_parts)
            w->n += p->n;
        else if (p->n != d->parts[i % d->n_parts].n)
            return ltd_fail(err, LTD_INVALID, "%s: matrix %d differs in shape from matrix 0", d->name,
                            (int)(i / d->n_parts));
    }
    w->bytes = (size_t)w->count * (size_t)w->n * (size_t)w->stride * kern_dtype_bytes(w->dtype);
    return LTD_OK;
}

ltd_status cpu_weight_create(kern_backend *b, const kern_weight_desc *d, kern_weight **out, ltd_err *err)
{
    (void)b;
    kern_weight w;
    CPU_TRY(shape(d, &w, err));
    w.data = cpu_mem_take(w.bytes);
    if (!w.data) return ltd_fail(err, LTD_NO_MEMORY, "%s: no memory for %zu bytes", d->name, w.bytes);
    size_t element = kern_dtype_bytes(w.dtype), pad = (size_t)(w.stride - w.k) * element;
    int64_t row = 0;
    for (int32_t i = 0; i < d->count * d->n_parts; i++) {
        const kern_weight_part *p = &d->parts[i];
        for (int32_t j = 0; j < p->n; j++, row++) {
            row_copy(&w, row, (const char *)p->data + (size_t)j * (size_t)d->k * kern_dtype_bytes(p->dtype),
                     p->dtype);
            if (pad) memset((char *)w.data + (size_t)(row * w.stride + w.k) * element, 0, pad);
        }
    }
    *out = ltd_alloc(sizeof w);
    **out = w;
    return LTD_OK;
}

void cpu_weight_destroy(kern_backend *b, kern_weight *w)
{
    (void)b;
    if (!w) return;
    cpu_mem_give(w->data);
    ltd_free(w);
}

size_t cpu_weight_bytes(const kern_weight *w) { return w->bytes; }
