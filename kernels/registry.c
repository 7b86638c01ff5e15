/* registry.c - which backends there are, and why one is not there. */
#include "kernels/kernels.h"
#include "kernels/kernels_private.h"
#include <string.h>

bool kern_backend_can(const char *name, ltd_err *reason)
{
    if (strcmp(name, "cpu") == 0 || strcmp(name, "cpu-ref") == 0) return true;
    if (strcmp(name, "cuda") == 0)
        ltd_fail(reason, LTD_UNSUPPORTED,
                 "device cuda: this build has no CUDA backend; --device cpu or auto serves on the CPU");
    else
        ltd_fail(reason, LTD_UNSUPPORTED, "there is no backend \"%s\"; there are cpu, cpu-ref and cuda",
                 name);
    return false;
}

ltd_status kern_backend_open(const char *name, const kern_backend_options *o, kern_backend **out,
                             ltd_err *err)
{
    static const kern_backend_options defaults = {0};
    if (!kern_backend_can(name, err)) return LTD_UNSUPPORTED;
    return cpu_backend_open(name, o ? o : &defaults, out, err);
}

void kern_backend_close(kern_backend *b)
{
    if (b) cpu_backend_close(b);
}
