/* rows.c - the ops that go row by row: tasks of some rows each.  All are bound by memory. */
#include "kernels/cpu/fast.h"

enum { TASK_ELEMENTS = 1 << 14, MAX_WIDTH = 1 << 20 };

typedef void rows_fn(const cpu_vec *vec, const void *args, int32_t r0, int32_t r1, float *scratch);

typedef struct rows_job {
    const cpu_vec *vec;
    const void *args;
    rows_fn *fn;
    int32_t rows, per_task;
} rows_job;

static void rows_task(const void *arg, int32_t i, void *scratch)
{
    const rows_job *j = arg;
    j->fn(j->vec, j->args, i * j->per_task, fast_min(j->rows, (i + 1) * j->per_task), scratch);
}

/* width: elements that one row costs. */
static ltd_status run_rows(const kern_ctx *ctx, const char *op, int64_t width, int32_t rows, rows_fn *fn,
                           const void *args)
{
    if (width > MAX_WIDTH) {
        log_error("kernels", "op=%s elements=%lld: at most %d a row", op, (long long)width, MAX_WIDTH);
        return LTD_UNSUPPORTED;
    }
    rows_job j = {.vec = fast_vec(ctx),
                  .args = args,
                  .fn = fn,
                  .rows = rows,
                  .per_task = (int32_t)(TASK_ELEMENTS / (width < 1 ? 1 : width))};
    if (j.per_task < 1) j.per_task = 1;
    fast_run(ctx, width * rows * 4, (rows + j.per_task - 1) / j.per_task, rows_task, &j);
    return LTD_OK;
}

/* ---------------------------------------------------------------- norms */

/* The norm of d elements at x, to `out` through `inner`'s rounding; y: buffer of d. */
static void norm(const cpu_vec *v, const float *x, const float *weight, float eps, int32_t d,
                 kern_dtype inner, float *y)
{
    float factor = 1.0f / sqrtf(v->sum_squares(x, d) / (float)d + eps);
    v->scale_to(x, factor, d, y);
    if (inner == KERN_BF16) v->round(y, d);
    v->multiply(y, weight, d);
    if (inner == KERN_BF16) v->round(y, d);
}

static void add_norm_rows(const cpu_vec *v, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    const kern_add_norm_args *a = args;
    int32_t d = a->d;
    float *buffer = scratch, *y = scratch + d;
    for (int32_t r = r0; r < r1; r++) {
        const float *x = fast_read(v, &a->x, r * a->x.stride, d, buffer);
        if (a->delta.data) {
            v->add((float *)x, fast_read(v, &a->delta, r * a->delta.stride, d, y), d);
            if (a->x.dtype == KERN_BF16) v->round(buffer, d);
            fast_write(v, &a->x, r * a->x.stride, d, x);
        }
        if (!a->out.data) continue;
        norm(v, x, a->weight, a->eps, d, a->out.dtype, y);
        fast_write(v, &a->out, r * a->out.stride, d, y);
    }
}

ltd_status fast_add_norm(const kern_ctx *ctx, const kern_add_norm_args *a)
{
    CPU_TRY(cpu_check_act("add_norm", "x", &a->x, false));
    CPU_TRY(cpu_check_act("add_norm", "delta", &a->delta, true));
    CPU_TRY(cpu_check_act("add_norm", "out", &a->out, true));
    return run_rows(ctx, "add_norm", a->d, cpu_rows(a->rows_cap, a->rows), add_norm_rows, a);
}

static void latent_rows(const cpu_vec *v, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    const kern_latent_args *a = args;
    float *buffer = scratch, *y = scratch + a->d_c;
    for (int32_t r = r0; r < r1; r++) {
        int64_t from = r * a->kv_a.stride, to = a->slots ? a->slots[r] : r;
        norm(v, fast_read(v, &a->kv_a, from, a->d_c, buffer), a->norm_weight, a->eps, a->d_c, a->kv_a.dtype,
             y);
        fast_write(v, &a->latent, to * a->latent.stride, a->d_c, y);
        ref_rotate(&a->kv_a, from + a->d_c, &a->rope, to * a->rope.stride, a->d_rope,
                   a->cos_sin + (int64_t)a->pos[r] * a->d_rope);
    }
}

ltd_status fast_latent(const kern_ctx *ctx, const kern_latent_args *a)
{
    CPU_TRY(cpu_check_act("latent", "kv_a", &a->kv_a, false));
    CPU_TRY(cpu_check_act("latent", "latent", &a->latent, false));
    CPU_TRY(cpu_check_act("latent", "rope", &a->rope, false));
    return run_rows(ctx, "latent", a->d_c + a->d_rope, cpu_rows(a->rows_cap, a->rows), latent_rows, a);
}

static void rope_rows(const cpu_vec *v, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    (void)v, (void)scratch;
    ref_rope_rows(args, r0, r1);
}

ltd_status fast_rope(const kern_ctx *ctx, const kern_rope_args *a)
{
    CPU_TRY(cpu_check_act("rope", "q", &a->q, false));
    return run_rows(ctx, "rope", (int64_t)a->n_heads * a->d_rope, cpu_rows(a->rows_cap, a->rows), rope_rows,
                    a);
}

/* ---------------------------------------------------------------- moving rows */

static void embed_rows(const cpu_vec *v, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    (void)scratch;
    const kern_embed_args *a = args;
    const kern_tensor table = {.data = a->table->data, .dtype = a->table->dtype, .stride = a->table->stride};
    for (int32_t r = r0; r < r1; r++) {
        LTD_DCHECK(a->ids[r] < a->table->n, "embed: row %d has id %d of %d", (int)r, (int)a->ids[r],
                   (int)a->table->n);
        if (a->ids[r] >= 0)
            fast_convert(v, &table, a->ids[r] * table.stride, &a->out, r * a->out.stride, a->table->k);
        else
            memset(fast_at(&a->out, r * a->out.stride), 0,
                   (size_t)a->table->k * kern_dtype_bytes(a->out.dtype));
    }
}

ltd_status fast_embed(const kern_ctx *ctx, const kern_embed_args *a)
{
    CPU_TRY(cpu_check_act("embed", "out", &a->out, false));
    return run_rows(ctx, "embed", a->table->k, cpu_rows(a->rows_cap, a->rows), embed_rows, a);
}

static void copy_rows_rows(const cpu_vec *v, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    (void)scratch;
    const kern_copy_rows_args *a = args;
    for (int32_t r = r0; r < r1; r++)
        fast_convert(v, &a->src, (a->src_index ? a->src_index[r] : r) * a->src.stride, &a->dst,
                     (a->dst_index ? a->dst_index[r] : r) * a->dst.stride, a->d);
}

ltd_status fast_copy_rows(const kern_ctx *ctx, const kern_copy_rows_args *a)
{
    if (a->src.dtype != a->dst.dtype) {
        CPU_TRY(cpu_check_act("copy_rows", "src", &a->src, false));
        CPU_TRY(cpu_check_act("copy_rows", "dst", &a->dst, false));
    }
    return run_rows(ctx, "copy_rows", a->d, cpu_rows(a->rows_cap, a->rows), copy_rows_rows, a);
}

static void mha_write_rows(const cpu_vec *vec, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    (void)scratch;
    const kern_mha_write_args *a = args;
    int32_t d_k = a->d_nope + a->d_rope, d_kv = a->d_nope + a->d_v;
    for (int32_t r = r0; r < r1; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int64_t kv = r * a->kv.stride + (int64_t)h * d_kv,
                    k = a->slots[r] * a->k.stride + (int64_t)h * d_k;
            fast_convert(vec, &a->kv, kv, &a->k, k, a->d_nope);
            fast_convert(vec, &a->k_pe, r * a->k_pe.stride, &a->k, k + a->d_nope, a->d_rope);
            fast_convert(vec, &a->kv, kv + a->d_nope, &a->v, a->slots[r] * a->v.stride + (int64_t)h * a->d_v,
                         a->d_v);
        }
}

ltd_status fast_mha_write(const kern_ctx *ctx, const kern_mha_write_args *a)
{
    CPU_TRY(cpu_check_act("mha_write", "kv", &a->kv, false));
    CPU_TRY(cpu_check_act("mha_write", "k_pe", &a->k_pe, false));
    CPU_TRY(cpu_check_act("mha_write", "k", &a->k, false));
    CPU_TRY(cpu_check_act("mha_write", "v", &a->v, false));
    return run_rows(ctx, "mha_write", (int64_t)a->n_heads * (a->d_nope + a->d_rope + a->d_v),
                    cpu_rows(a->rows_cap, a->rows), mha_write_rows, a);
}

/* ---------------------------------------------------------------- attention parts */

static void merge_rows(const cpu_vec *v, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    (void)scratch;
    const kern_merge_args *a = args;
    for (int32_t r = r0; r < r1; r++) {
        float *acc = (float *)a->acc.data + r * a->acc.stride;
        for (int32_t h = 0; a->part.data && h < a->n_heads; h++) {
            const float *part = (const float *)a->part.data + r * a->part.stride + (int64_t)h * a->d_v;
            float *lse = &a->acc_lse[(int64_t)r * a->n_heads + h],
                  part_lse = a->part_lse[(int64_t)r * a->n_heads + h], wa, wb;
            if (part_lse == -KERN_INF) continue;
            if (*lse == -KERN_INF) {
                memcpy(acc + (int64_t)h * a->d_v, part, (size_t)a->d_v * 4);
                *lse = part_lse;
                continue;
            }
            float m = lanes_pair(*lse, part_lse, &wa, &wb);
            v->merge(acc + (int64_t)h * a->d_v, wa, part, wb, a->d_v);
            *lse = m + kern_log(wa + wb);
        }
        if (a->out.data) fast_write(v, &a->out, r * a->out.stride, (int64_t)a->n_heads * a->d_v, acc);
    }
}

ltd_status fast_merge(const kern_ctx *ctx, const kern_merge_args *a)
{
    CPU_TRY(cpu_check_f32("merge", "acc", &a->acc));
    if (a->part.data) CPU_TRY(cpu_check_f32("merge", "part", &a->part));
    CPU_TRY(cpu_check_act("merge", "out", &a->out, true));
    return run_rows(ctx, "merge", (int64_t)a->n_heads * a->d_v, cpu_rows(a->rows_cap, a->rows), merge_rows,
                    a);
}

/* ---------------------------------------------------------------- feed-forward */

static void silu_mul_rows(const cpu_vec *v, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    const kern_silu_mul_args *a = args;
    for (int32_t r = r0; r < r1; r++) {
        const float *x = fast_read(v, &a->x, r * a->x.stride, 2 * (int64_t)a->d, scratch);
        float *y =
            a->out.dtype == KERN_F32 ? fast_at(&a->out, r * a->out.stride) : scratch + 2 * (int64_t)a->d;
        v->silu_mul(x, x + a->d, a->d, y);
        fast_write(v, &a->out, r * a->out.stride, a->d, y);
    }
}

ltd_status fast_silu_mul(const kern_ctx *ctx, const kern_silu_mul_args *a)
{
    CPU_TRY(cpu_check_act("silu_mul", "x", &a->x, false));
    CPU_TRY(cpu_check_act("silu_mul", "out", &a->out, false));
    return run_rows(ctx, "silu_mul", a->d, cpu_rows(a->rows_cap, a->rows), silu_mul_rows, a);
}

static void route_rows(const cpu_vec *v, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    (void)v, (void)scratch;
    ref_route_rows(args, r0, r1);
}

ltd_status fast_route(const kern_ctx *ctx, const kern_route_args *a)
{
    CPU_TRY(cpu_check_route(a));
    int32_t n = cpu_rows(a->rows_cap, a->rows);
    CPU_TRY(run_rows(ctx, "route", (int64_t)a->n_experts * 16, n, route_rows, a));
    for (int64_t i = (int64_t)n * a->top_k; i < (int64_t)a->rows_cap * a->top_k; i++) a->ids[i] = -1;
    return LTD_OK;
}

static void moe_combine_rows(const cpu_vec *v, const void *args, int32_t r0, int32_t r1, float *scratch)
{
    const kern_moe_combine_args *a = args;
    float *o = scratch, *buffer = scratch + a->d;
    for (int32_t r = r0; r < r1; r++) {
        memset(o, 0, (size_t)a->d * 4);
        for (int32_t k = 0; k < a->top_k; k++) {
            int64_t at = a->inverse[(int64_t)r * a->top_k + k];
            if (at >= 0)
                v->add_scaled(o, a->weights[(int64_t)r * a->top_k + k],
                              fast_read(v, &a->expert, at * a->expert.stride, a->d, buffer), a->d);
        }
        if (a->shared.data) v->add(o, fast_read(v, &a->shared, r * a->shared.stride, a->d, buffer), a->d);
        fast_write(v, &a->out, r * a->out.stride, a->d, o);
    }
}

ltd_status fast_moe_combine(const kern_ctx *ctx, const kern_moe_combine_args *a)
{
    CPU_TRY(cpu_check_act("moe_combine", "expert", &a->expert, false));
    CPU_TRY(cpu_check_act("moe_combine", "shared", &a->shared, true));
    CPU_TRY(cpu_check_act("moe_combine", "out", &a->out, false));
    return run_rows(ctx, "moe_combine", (int64_t)a->d, cpu_rows(a->rows_cap, a->rows), moe_combine_rows, a);
}
