#include "kernels/cpu/cpu.h"
#include <string.h>

void ref_copy_rows_rows(const kern_copy_rows_args *a, int32_t r0, int32_t r1)
{
    size_t bytes = kern_dtype_bytes(a->src.dtype);
    for (int32_t r = r0; r < r1; r++) {
        int64_t from = (a->src_index ? a->src_index[r] : r) * a->src.stride,
                to = (a->dst_index ? a->dst_index[r] : r) * a->dst.stride;
        if (a->src.dtype == a->dst.dtype) {
            memcpy((char *)a->dst.data + (size_t)to * bytes, (const char *)a->src.data + (size_t)from * bytes,
                   (size_t)a->d * bytes);
            continue;
        }
        for (int32_t i = 0; i < a->d; i++) cpu_put(&a->dst, to + i, cpu_get(&a->src, from + i));
    }
}

ltd_status ref_copy_rows(const kern_ctx *ctx, const kern_copy_rows_args *a)
{
    (void)ctx;
    if (a->src.dtype != a->dst.dtype) {
        CPU_TRY(cpu_check_act("copy_rows", "src", &a->src, false));
        CPU_TRY(cpu_check_act("copy_rows", "dst", &a->dst, false));
    }
    ref_copy_rows_rows(a, 0, cpu_rows(a->rows_cap, a->rows));
    return LTD_OK;
}
