/* kernels_private.h - what the registry needs of each backend. */
#ifndef LTD_KERNELS_KERNELS_PRIVATE_H
#define LTD_KERNELS_KERNELS_PRIVATE_H

#include "kernels/kernels.h"

/* name: "cpu" or "cpu-ref". */
ltd_status cpu_backend_open(const char *name, const kern_backend_options *o, kern_backend **out,
                            ltd_err *err);
void cpu_backend_close(kern_backend *b);

#endif
