/* matmul.c - dense, grouped and per-head products: cut into tasks of some rows x some outputs.
 * A task widens its input rows once (bf16, or rows that want padding), then runs dots (or chain) over its
 * weights.  How it is cut leaves no trace in the bits. One row is bound by reading the weights; from some 8
 * rows on by multiply and add (two instructions a product, since nothing is fused). */
#include "kernels/cpu/fast.h"

enum {
    ROW_BLOCK = 64, /* input rows of one task at most */
    ROW_BLOCK_MIN = 12,
    X_CACHE_BYTES = 1 << 19, /* and no more than stay in L2 */
    CHUNK = 64,              /* outputs of one task */
    CHUNK_MIN = 16,
    COLUMN_CHUNK = 128, /* HEADS_IN: columns of one task */
};
#define X_SCRATCH_BYTES (CPU_SCRATCH_BYTES - (size_t)ROW_BLOCK * COLUMN_CHUNK * 4)

/* Input row of an output row, of any of the products. */
typedef struct rows_of {
    const kern_tensor *x;
    const int32_t *gather;
    int32_t gather_div;
    int64_t head; /* elements added: a head's place */
    int32_t width;
} rows_of;

typedef struct mm_job {
    const cpu_vec *vec;
    const kern_weight *w;
    rows_of in;
    const kern_tensor *out;
    int64_t out_head;
    int64_t w_row; /* first weight row (dense: of the matrix) */
    int32_t n, rows, row_block, chunk, n_chunks;
    const int32_t *offsets; /* grouped */
    int32_t head_rows, row0, n_heads;
} mm_job;

static int32_t row_block_of(int32_t k)
{
    size_t row = (size_t)(k < 1 ? LANES : fast_pad(k)) * 4, fit = X_SCRATCH_BYTES / row,
           cached = X_CACHE_BYTES / row & ~(size_t)3;
    if (cached < ROW_BLOCK_MIN) cached = ROW_BLOCK_MIN;
    if (fit > cached) fit = cached;
    return fit < ROW_BLOCK ? (int32_t)fit : ROW_BLOCK;
}

static ltd_status check_k(const char *op, int32_t k)
{
    if (row_block_of(k) > 0) return LTD_OK;
    log_error("kernels", "op=%s k=%d: too wide", op, (int)k);
    return LTD_UNSUPPORTED;
}

/* Fewer outputs a task where there would be too few tasks. */
static int32_t chunk_of(const kern_ctx *ctx, int32_t n, int32_t n_blocks)
{
    int32_t c = CHUNK;
    while (c > CHUNK_MIN && (int64_t)((n + c - 1) / c) * n_blocks < 4 * fast_threads(ctx)) c /= 2;
    return c;
}

/* Padded f32 rows r0 .. r0 + n, in place where possible. */
static void take_rows(const mm_job *j, int32_t r0, int32_t n, const float **x, float *buffer)
{
    const rows_of *in = &j->in;
    int32_t padded = fast_pad(in->width);
    bool in_place = in->x->dtype == KERN_F32 && padded == in->width;
    for (int32_t i = 0; i < n; i++) {
        int64_t row = in->gather ? in->gather[r0 + i] / in->gather_div : r0 + i,
                at = row * in->x->stride + in->head;
        if (in_place) {
            x[i] = fast_at(in->x, at);
            continue;
        }
        x[i] = buffer + (int64_t)i * padded;
        fast_read_padded(j->vec, in->x, at, in->width, padded, buffer + (int64_t)i * padded);
    }
}

/* Output rows r0 .. r0 + rows, columns c0 .. c0 + n of out (whose row starts at out_head) from weight rows
 * w_row + c0 on. */
static void dots_block(const mm_job *j, int32_t r0, int32_t rows, int64_t w_row, int32_t c0, int32_t n,
                       int64_t out_at, float *scratch)
{
    const float *x[ROW_BLOCK];
    float *tile = scratch + X_SCRATCH_BYTES / 4;
    const void *w = cpu_weight_row(j->w, w_row + c0);
    take_rows(j, r0, rows, x, scratch);
    int64_t at = r0 * j->out->stride + out_at + c0;
    if (j->out->dtype == KERN_F32) {
        j->vec->dots(x, rows, w, j->w->dtype, j->w->stride, j->w->k, n, fast_at(j->out, at), j->out->stride);
        return;
    }
    j->vec->dots(x, rows, w, j->w->dtype, j->w->stride, j->w->k, n, tile, CHUNK);
    for (int32_t i = 0; i < rows; i++)
        j->vec->narrow(tile + (int64_t)i * CHUNK, n, fast_at(j->out, at + i * j->out->stride));
}

/* ---------------------------------------------------------------- dense */

static void dense_task(const void *arg, int32_t i, void *scratch)
{
    const mm_job *j = arg;
    int32_t n_blocks = (j->rows + j->row_block - 1) / j->row_block, r0 = i % n_blocks * j->row_block,
            c0 = i / n_blocks * j->chunk;
    dots_block(j, r0, fast_min(j->row_block, j->rows - r0), j->w_row, c0, fast_min(j->chunk, j->n - c0), 0,
               scratch);
}

ltd_status fast_matmul(const kern_ctx *ctx, const kern_matmul_args *a)
{
    CPU_TRY(cpu_check_act("matmul", "x", &a->x, false));
    CPU_TRY(cpu_check_act("matmul", "out", &a->out, false));
    CPU_TRY(check_k("matmul", a->w->k));
    mm_job j = {.vec = fast_vec(ctx),
                .w = a->w,
                .in = {.x = &a->x, .width = a->w->k},
                .out = &a->out,
                .w_row = (int64_t)a->matrix * a->w->n};
    j.n = a->w->n;
    j.rows = cpu_rows(a->rows_cap, a->rows);
    j.row_block = row_block_of(a->w->k);
    int32_t n_blocks = (j.rows + j.row_block - 1) / j.row_block;
    j.chunk = chunk_of(ctx, j.n, n_blocks);
    fast_run(ctx, (int64_t)j.rows * j.n * a->w->k, n_blocks * ((j.n + j.chunk - 1) / j.chunk), dense_task,
             &j);
    return LTD_OK;
}

/* ---------------------------------------------------------------- grouped */

static void group_task(const void *arg, int32_t i, void *scratch)
{
    const mm_job *j = arg;
    int32_t e = i / j->n_chunks, c0 = i % j->n_chunks * j->chunk, end = j->offsets[e + 1];
    for (int32_t r0 = j->offsets[e]; r0 < end; r0 += j->row_block)
        dots_block(j, r0, fast_min(j->row_block, end - r0), (int64_t)e * j->n, c0,
                   fast_min(j->chunk, j->n - c0), 0, scratch);
}

ltd_status fast_grouped_matmul(const kern_ctx *ctx, const kern_grouped_matmul_args *a)
{
    CPU_TRY(cpu_check_act("grouped_matmul", "x", &a->x, false));
    CPU_TRY(cpu_check_act("grouped_matmul", "out", &a->out, false));
    CPU_TRY(check_k("grouped_matmul", a->w->k));
    mm_job j = {
        .vec = fast_vec(ctx), .w = a->w, .out = &a->out, .n = a->w->n, .offsets = a->offsets, .chunk = CHUNK};
    j.in = (rows_of){.x = &a->x, .gather = a->gather, .gather_div = a->gather_div, .width = a->w->k};
    j.row_block = row_block_of(a->w->k);
    j.n_chunks = (j.n + CHUNK - 1) / CHUNK;
    LTD_DCHECK(a->offsets[a->w->count] <= a->rows_cap, "grouped_matmul: %d rows of %d",
               (int)a->offsets[a->w->count], (int)a->rows_cap);
    fast_run(ctx, (int64_t)a->offsets[a->w->count] * j.n * a->w->k, a->w->count * j.n_chunks, group_task, &j);
    return LTD_OK;
}

/* ---------------------------------------------------------------- per head */

static void heads_out_task(const void *arg, int32_t i, void *scratch)
{
    mm_job j = *(const mm_job *)arg;
    int32_t h = i / j.n_chunks, c0 = i % j.n_chunks * j.chunk;
    j.in.head *= h;
    for (int32_t r0 = 0; r0 < j.rows; r0 += j.row_block)
        dots_block(&j, r0, fast_min(j.row_block, j.rows - r0), (int64_t)h * j.head_rows + j.row0, c0,
                   fast_min(j.chunk, j.n - c0), h * j.out_head, scratch);
}

static void heads_in_task(const void *arg, int32_t i, void *scratch)
{
    const mm_job *j = arg;
    int32_t h = i / j->n_chunks, c0 = i % j->n_chunks * COLUMN_CHUNK,
            n = fast_min(COLUMN_CHUNK, j->w->k - c0), d = j->in.width;
    float *x = scratch, *o = x + X_SCRATCH_BYTES / 4;
    const char *w = cpu_weight_row(j->w, (int64_t)h * j->head_rows + j->row0);
    for (int32_t r0 = 0; r0 < j->rows; r0 += j->row_block) {
        int32_t rows = fast_min(j->row_block, j->rows - r0);
        const float *p = x;
        int64_t p_stride = d;
        if (j->in.x->dtype == KERN_F32)
            p = fast_at(j->in.x, r0 * j->in.x->stride + h * j->in.head), p_stride = j->in.x->stride;
        else
            for (int32_t r = 0; r < rows; r++)
                fast_read_padded(j->vec, j->in.x, (r0 + r) * j->in.x->stride + h * j->in.head, d, d,
                                 x + (int64_t)r * d);
        memset(o, 0, (size_t)rows * COLUMN_CHUNK * 4);
        j->vec->chain(p, p_stride, rows, w + (size_t)c0 * kern_dtype_bytes(j->w->dtype), j->w->dtype,
                      j->w->stride, d, fast_pad(n), o, COLUMN_CHUNK);
        for (int32_t r = 0; r < rows; r++)
            fast_write(j->vec, j->out, (r0 + r) * j->out->stride + h * j->out_head + c0, n,
                       o + (int64_t)r * COLUMN_CHUNK);
    }
}

ltd_status fast_heads_matmul(const kern_ctx *ctx, const kern_heads_matmul_args *a)
{
    CPU_TRY(cpu_check_act("heads_matmul", "x", &a->x, false));
    CPU_TRY(cpu_check_act("heads_matmul", "out", &a->out, false));
    bool in = a->dir == KERN_HEADS_IN;
    int32_t width = in ? a->d : a->w->k;
    CPU_TRY(check_k("heads_matmul", width));
    mm_job j = {.vec = fast_vec(ctx),
                .w = a->w,
                .out = &a->out,
                .out_head = a->out_head,
                .head_rows = a->head_rows,
                .row0 = a->row0};
    j.in = (rows_of){.x = &a->x, .head = a->x_head, .width = width};
    j.n = a->d;
    j.rows = cpu_rows(a->rows_cap, a->rows);
    j.row_block = row_block_of(width);
    j.chunk = CHUNK;
    j.n_chunks = in ? (a->w->k + COLUMN_CHUNK - 1) / COLUMN_CHUNK : (a->d + CHUNK - 1) / CHUNK;
    fast_run(ctx, (int64_t)j.rows * a->n_heads * a->d * a->w->k, a->n_heads * j.n_chunks,
             in ? heads_in_task : heads_out_task, &j);
    return LTD_OK;
}
