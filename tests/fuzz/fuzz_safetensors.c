/* fuzz_safetensors.c - any bytes as a safetensors file: refused, or every tensor readable to its last byte.
 */
#include <string.h>
#include <sys/mman.h>
#include <stdio.h>
#include <unistd.h>

#include "model/model_private.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(const st_files *f)
{
    volatile unsigned char sum = 0;
    for (int32_t i = 0; i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);
        const unsigned char *p = t->data;
        for (size_t k = 0; k < t->bytes; k++) sum = (unsigned char)(sum + p[k]);
        LTD_CHECK(st_find(f, t->name) == t, "%s", t->name);
        LTD_CHECK(t->rank >= 0 && t->rank <= 8, "%d", t->rank);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    char path[64];
    if (fd < 0) fd = memfd_create("fuzz", 0);
    LTD_CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n, "memfd");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    st_files *f = NULL;
    ltd_err err = {{0}};
    if (st_open_file(path, &f, &err) == LTD_OK)
        check(f);
    else
        LTD_CHECK(err.text[0], "a refusal without a reason");
    st_close(f);
    return 0;
}
