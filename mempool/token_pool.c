/* token_pool.c - where a slot's bytes are: one device allocation per layer and store, rows indexed by slot.
 * Which stores there are and what planes lie in them is the kind's (mla_pool.c, mha_pool.c).  Contents are
 * undefined until written, but for slot 0: padding rows write there, and what they read back must not be NaN.
 */
#include "mempool/mempool_private.h"

struct pool_tokens {
    pool_tokens_desc desc;
    const pool_kind_ops *kind;
    kern_backend *backend;
    int64_t elems[POOL_MAX_STORES];
    void **stores; /* [n_layers][POOL_MAX_STORES], 256-byte aligned; NULL where the kind has none */
};

static const pool_kind_ops *kind_of(pool_kind kind) { return kind == POOL_MHA ? &pool__mha : &pool__mla; }

size_t pool_tokens_slot_bytes(const pool_tokens_desc *d)
{
    int64_t elems[POOL_MAX_STORES], sum = 0;
    kind_of(d->kind)->row_elems(d, elems);
    for (int i = 0; i < POOL_MAX_STORES; i++) sum += elems[i];
    return (size_t)sum * (size_t)d->n_layers * kern_dtype_bytes(d->dtype);
}

/* The rows of slot 0, in every layer. */
static ltd_status zero_padding(pool_tokens *p, ltd_err *err)
{
    const kern_ops *ops = p->backend->ops;
    kern_ctx *ctx;
    ltd_status st = ops->ctx_create(p->backend, 0, 0, 0, &ctx, err);
    if (st != LTD_OK) return st;
    size_t elem = kern_dtype_bytes(p->desc.dtype);
    for (int32_t i = 0; i < p->desc.n_layers * POOL_MAX_STORES && st == LTD_OK; i++)
        if (p->stores[i])
            st = ops->fill_zero(ctx, p->stores[i], (size_t)p->elems[i % POOL_MAX_STORES] * elem);
    if (st == LTD_OK) st = ops->sync(ctx);
    ops->ctx_destroy(ctx);
    if (st != LTD_OK) ltd_fail(err, st, "token pool: clearing the padding slot: %s", ltd_status_text(st));
    return st;
}

ltd_status pool_tokens_create(kern_backend *b, const pool_tokens_desc *d, pool_tokens **out, ltd_err *err)
{
    const pool_kind_ops *kind = kind_of(d->kind);
    int64_t elems[POOL_MAX_STORES];
    kind->row_elems(d, elems);
    if (d->n_layers < 1 || d->n_slots < 1 || elems[0] < 1 || elems[1] < 0)
        return ltd_fail(err, LTD_INVALID,
                        "token pool (%s): %d layers, %d slots, rows of %ld and %ld elements", kind->name,
                        d->n_layers, d->n_slots, (long)elems[0], (long)elems[1]);
    if (d->dtype != KERN_F32 && d->dtype != KERN_BF16)
        return ltd_fail(err, LTD_UNSUPPORTED, "token pool (%s): cache dtype %d; f32 and bf16 are served",
                        kind->name, (int)d->dtype);
    pool_tokens *p = ltd_calloc(1, sizeof *p);
    p->desc = *d;
    p->kind = kind;
    p->backend = b;
    p->stores = ltd_calloc((size_t)d->n_layers * POOL_MAX_STORES, sizeof *p->stores);
    ltd_status st = LTD_OK;
    for (int32_t i = 0; i < d->n_layers * POOL_MAX_STORES; i++) {
        int64_t row = elems[i % POOL_MAX_STORES];
        p->elems[i % POOL_MAX_STORES] = row;
        if (!row) continue;
        size_t bytes = (size_t)row * kern_dtype_bytes(d->dtype) * ((size_t)d->n_slots + 1);
        if ((st = b->ops->alloc(b, bytes, &p->stores[i])) == LTD_OK) continue;
        p->stores[i] = NULL;
        ltd_fail(err, st,
                 "token pool (%s): layer %d's %zu bytes (%d slots): %s; lower --max-total-tokens or "
                 "--mem-fraction",
                 kind->name, i / POOL_MAX_STORES, bytes, d->n_slots, ltd_status_text(st));
        goto fail;
    }
    if ((st = zero_padding(p, err)) != LTD_OK) goto fail;
    *out = p;
    return LTD_OK;
fail:
    pool_tokens_destroy(p);
    return st;
}

void pool_tokens_destroy(pool_tokens *p)
{
    if (!p) return;
    for (int32_t i = p->desc.n_layers * POOL_MAX_STORES - 1; i >= 0; i--)
        if (p->stores[i]) p->backend->ops->free(p->backend, p->stores[i]);
    ltd_free(p->stores);
    ltd_free(p);
}

const pool_tokens_desc *pool_tokens_get_desc(const pool_tokens *p) { return &p->desc; }

kern_tensor pool_tokens_plane(const pool_tokens *p, pool_plane plane, int32_t layer)
{
    LTD_CHECK(layer >= 0 && layer < p->desc.n_layers, "token pool: layer %d of %d", layer, p->desc.n_layers);
    pool_view v = p->kind->view(&p->desc, plane);
    if (v.store < 0) return (kern_tensor){.dtype = p->desc.dtype};
    char *base = p->stores[layer * POOL_MAX_STORES + v.store];
    return (kern_tensor){.data = base + v.offset * (int64_t)kern_dtype_bytes(p->desc.dtype),
                         .dtype = p->desc.dtype,
                         .stride = p->elems[v.store]};
}
