/* safetensors.c - the tensors of a checkpoint, read-only in memory maps.
 * A file is: u64 little-endian N, N bytes of JSON header, then the data.  Nothing of a file is believed
 * before all of its header is checked: every tensor's size follows from its shape and dtype, and the tensors
 * tile the data without a hole, an overlap or a byte left over.  After that a tensor is a pointer and can be
 * read to its last byte.  (A file that is cut while it is mapped is beyond us.) */
#include "model/model_private.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADER_BYTES = 100000000, MAX_HEADER_VALUES = 8000000, MAX_RANK = 8 };

typedef struct st_file { /* one mapping */
    char *path;
    const unsigned char *map;
    size_t map_bytes;
    const unsigned char *data; /* what offsets are relative to */
    uint64_t data_bytes;
} st_file;

struct st_files {
    char *path;
    st_file *files;
    int32_t n_files, cap_files;
    st_tensor *tensors;
    int32_t n, cap;
    uint64_t fingerprint;
};

/* ---------------------------------------------------------------- dtypes */

typedef struct dtype_info {
    const char *name;
    st_dtype type;
    int bits;
} dtype_info;

/* Every dtype that the format knows: a file may hold tensors that no model of ours needs. */
static const dtype_info dtypes[] = {
    {"BF16", ST_BF16, 16},        {"F16", ST_F16, 16},      {"F32", ST_F32, 32},
    {"F64", ST_OTHER, 64},        {"I64", ST_OTHER, 64},    {"U64", ST_OTHER, 64},
    {"C64", ST_OTHER, 64},        {"I32", ST_OTHER, 32},    {"U32", ST_OTHER, 32},
    {"I16", ST_OTHER, 16},        {"U16", ST_OTHER, 16},    {"BOOL", ST_OTHER, 8},
    {"U8", ST_OTHER, 8},          {"I8", ST_OTHER, 8},      {"F8_E4M3", ST_OTHER, 8},
    {"F8_E5M2", ST_OTHER, 8},     {"F8_E8M0", ST_OTHER, 8}, {"F8_E4M3FNUZ", ST_OTHER, 8},
    {"F8_E5M2FNUZ", ST_OTHER, 8}, {"F6_E2M3", ST_OTHER, 6}, {"F6_E3M2", ST_OTHER, 6},
    {"F4", ST_OTHER, 4},
};

static const dtype_info *dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

/* ---------------------------------------------------------------- one header entry */

static bool get_u64(const cJSON *v, uint64_t *out)
{
    int64_t n;
    if (ltd_json_int64(v, &n) != LTD_OK || n < 0) return false;
    *out = (uint64_t)n;
    return true;
}

/* Fills the shape; *bytes is what it takes with the given dtype. */
static ltd_status parse_shape(const st_file *f, const cJSON *shape, int bits, st_tensor *t, uint64_t *bytes,
                              ltd_err *err)
{
    uint64_t n_bits = (uint64_t)bits;
    bool empty = false, over = false;
    if (!cJSON_IsArray(shape))
        return ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\": shape must be a list of sizes", f->path,
                        t->name);
    for (const cJSON *v = shape->child; v; v = v->next) {
        uint64_t dim;
        if (!get_u64(v, &dim))
            return ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\": shape holds something that is no size",
                            f->path, t->name);
        if (t->rank == MAX_RANK)
            return ltd_fail(err, LTD_UNSUPPORTED, "%s: tensor \"%.200s\": more than %d dimensions", f->path,
                            t->name, MAX_RANK);
        t->shape[t->rank++] = (int64_t)dim;
        empty |= dim == 0;
        if (!empty)
            over |= __builtin_mul_overflow(n_bits, dim, &n_bits); /* past an overflow only a 0 would matter */
    }
    if (empty)
        n_bits = 0;
    else if (over)
        return ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\": shape overflows", f->path, t->name);
    if (n_bits % 8)
        return ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\": %s values do not fill whole bytes", f->path,
                        t->name, t->dtype_name);
    *bytes = n_bits / 8;
    return LTD_OK;
}

/* Checks an entry on its own; that the entries tile the data is checked once all are there. */
static ltd_status parse_entry(const st_file *f, const cJSON *e, st_tensor *t, ltd_err *err)
{
    const cJSON *dtype = ltd_json_get(e, "dtype"), *offsets = ltd_json_get(e, "data_offsets");
    if (!cJSON_IsObject(e))
        return ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\": entry must be an object", f->path, t->name);
    if (!cJSON_IsString(dtype))
        return ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\": dtype must be a string", f->path, t->name);
    const dtype_info *info = dtype_find(dtype->valuestring);
    if (!info)
        return ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\": unknown dtype \"%.40s\"", f->path, t->name,
                        dtype->valuestring);
    t->dtype = info->type;
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", info->name);

    uint64_t bytes = 0, begin, end;
    ltd_status st = parse_shape(f, ltd_json_get(e, "shape"), info->bits, t, &bytes, err);
    if (st != LTD_OK) return st;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 || !get_u64(offsets->child, &begin) ||
        !get_u64(offsets->child->next, &end))
        return ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\": data_offsets must be two offsets", f->path,
                        t->name);
    if (begin > end || end > f->data_bytes)
        return ltd_fail(err, LTD_CORRUPT,
                        "%s: tensor \"%.200s\": data_offsets [%llu, %llu] do not lie within the %llu data "
                        "bytes of the file",
                        f->path, t->name, (unsigned long long)begin, (unsigned long long)end,
                        (unsigned long long)f->data_bytes);
    if (end - begin != bytes)
        return ltd_fail(err, LTD_CORRUPT,
                        "%s: tensor \"%.200s\": data_offsets span %llu bytes, shape and dtype %s make %llu",
                        f->path, t->name, (unsigned long long)(end - begin), t->dtype_name,
                        (unsigned long long)bytes);
    t->data = f->data + begin;
    t->bytes = bytes;
    return LTD_OK;
}

static ltd_status check_metadata(const st_file *f, const cJSON *m, ltd_err *err)
{
    if (!cJSON_IsObject(m)) return ltd_fail(err, LTD_CORRUPT, "%s: __metadata__ must be an object", f->path);
    for (const cJSON *v = m->child; v; v = v->next)
        if (!cJSON_IsString(v))
            return ltd_fail(err, LTD_CORRUPT, "%s: __metadata__ \"%.200s\" must be a string", f->path,
                            v->string);
    return LTD_OK;
}

/* ---------------------------------------------------------------- one file */

static int by_place(const void *a, const void *b)
{
    const st_tensor *x = *(const st_tensor *const *)a, *y = *(const st_tensor *const *)b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    if (p != q) return p < q ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* the empty ones first */
}

/* In order of their places, each tensor begins where the one before ended, from the first data byte to the
 * last. */
static ltd_status check_tiling(const st_file *f, const st_tensor *t, int32_t n, ltd_err *err)
{
    const st_tensor **order = ltd_alloc((size_t)n * sizeof *order + 1);
    ltd_status st = LTD_OK;
    uint64_t end = 0;
    for (int32_t i = 0; i < n; i++) order[i] = &t[i];
    qsort(order, (size_t)n, sizeof *order, by_place);
    for (int32_t i = 0; i < n && st == LTD_OK; i++) {
        uint64_t begin = (uint64_t)((const unsigned char *)order[i]->data - f->data);
        if (begin != end)
            st = ltd_fail(
                err, LTD_CORRUPT,
                "%s: tensor \"%.200s\": begins at data byte %llu, but what lies before it ends at %llu (%s)",
                f->path, order[i]->name, (unsigned long long)begin, (unsigned long long)end,
                begin < end ? "an overlap" : "a hole");
        end = begin + order[i]->bytes;
    }
    if (st == LTD_OK && end != f->data_bytes)
        st = ltd_fail(err, LTD_CORRUPT, "%s: the tensors end at data byte %llu%s%.200s%s, the file at %llu",
                      f->path, (unsigned long long)end, n ? " (tensor \"" : "", n ? order[n - 1]->name : "",
                      n ? "\")" : "", (unsigned long long)f->data_bytes);
    ltd_free(order);
    return st;
}

static ltd_status map_file(st_file *f, ltd_err *err)
{
    struct stat s;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC |
                               O_NONBLOCK); /* NONBLOCK: a FIFO of that name must not hang the start */
    if (fd < 0)
        return ltd_fail(err, errno == ENOENT ? LTD_NOT_FOUND : LTD_IO, "%s: cannot be opened: %s", f->path,
                        strerror(errno));
    ltd_status st = LTD_OK;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        st = ltd_fail(err, LTD_IO, "%s: is not a regular file", f->path);
    } else if (s.st_size < 8) {
        st = ltd_fail(err, LTD_CORRUPT,
                      "%s: has %lld bytes; a safetensors file begins with 8 bytes of header length", f->path,
                      (long long)s.st_size);
    } else {
        f->map_bytes = (size_t)s.st_size;
        void *map = mmap(NULL, f->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            st = ltd_fail(err, LTD_IO, "%s: cannot be mapped: %s", f->path, strerror(errno));
        else
            f->map = map;
    }
    close(fd);
    return st;
}

/* Maps the file and parses its header; *header is the caller's. */
static ltd_status open_header(st_file *f, cJSON **header, uint64_t *header_bytes, ltd_err *err)
{
    ltd_status st = map_file(f, err);
    if (st != LTD_OK) return st;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | f->map[i];
    if (n > MAX_HEADER_BYTES)
        return ltd_fail(err, LTD_CORRUPT, "%s: header length %llu is over the format's limit of %d", f->path,
                        (unsigned long long)n, MAX_HEADER_BYTES);
    if (n > f->map_bytes - 8)
        return ltd_fail(err, LTD_CORRUPT,
                        "%s: header length %llu passes the end of the file (%zu bytes): cut short, or no "
                        "safetensors file",
                        f->path, (unsigned long long)n, f->map_bytes);
    const char *text = (const char *)f->map + 8;
    if (n == 0 || text[0] != '{')
        return ltd_fail(err, LTD_CORRUPT, "%s: the header must begin with '{'", f->path);
    ltd_err why;
    ltd_json_limits limits = {.max_depth = 16, .max_values = MAX_HEADER_VALUES};
    st = ltd_json_parse(text, n, &limits, header, &why);
    if (st != LTD_OK) return ltd_fail(err, st, "%s: header: %s", f->path, why.text);
    f->data = f->map + 8 + n;
    f->data_bytes = f->map_bytes - 8 - n;
    *header_bytes = n;
    return LTD_OK;
}

static st_tensor *push_tensor(st_files *s, const char *name, const char *file)
{
    if (s->n == s->cap) {
        s->cap *= 2;
        s->tensors = ltd_realloc(s->tensors, (size_t)s->cap * sizeof *s->tensors);
    }
    st_tensor *t = &s->tensors[s->n++];
    *t = (st_tensor){.name = ltd_strdup(name), .file = file};
    return t;
}

/* Adds a file and its tensors, unsorted. */
static ltd_status add_file(st_files *s, const char *path, ltd_err *err)
{
    if (s->n_files == s->cap_files) {
        s->cap_files = s->cap_files ? s->cap_files * 2 : 16;
        s->files = ltd_realloc(s->files, (size_t)s->cap_files * sizeof *s->files);
    }
    st_file *f = &s->files[s->n_files++];
    *f = (st_file){.path = ltd_strdup(path)};

    cJSON *header = NULL;
    uint64_t n = 0;
    int32_t first = s->n;
    ltd_status st = open_header(f, &header, &n, err);
    for (const cJSON *e = header ? header->child : NULL; e && st == LTD_OK; e = e->next) {
        if (strcmp(e->string, "__metadata__") == 0)
            st = check_metadata(f, e, err);
        else
            st = parse_entry(f, e, push_tensor(s, e->string, f->path), err);
    }
    if (st == LTD_OK) st = check_tiling(f, s->tensors + first, s->n - first, err);
    if (st == LTD_OK)
        for (uint64_t i = 0; i < 8 + n; i++)
            s->fingerprint = (s->fingerprint ^ f->map[i]) * 0x100000001b3u; /* FNV-1a */
    cJSON_Delete(header);
    return st;
}

/* ---------------------------------------------------------------- the index */

/* One file of a weight_map may only be a name within the checkpoint's own folder. */
static bool plain_file_name(const char *s)
{
    return *s && !strchr(s, '/') && !strchr(s, '\\') && !strstr(s, "..") && strcmp(s, ".") != 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Opens each file that the map names, once, in the order of their names. */
static ltd_status open_listed(st_files *s, const cJSON *map, const char *index, ltd_err *err)
{
    int32_t n = cJSON_GetArraySize(map), i = 0;
    const char **names = ltd_alloc((size_t)n * sizeof *names + 1);
    ltd_status st = LTD_OK;
    for (const cJSON *v = map->child; v && st == LTD_OK; v = v->next, i++) {
        if (!cJSON_IsString(v) || !plain_file_name(v->valuestring))
            st = ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\": \"%.200s\" is no plain file name", index,
                          v->string, cJSON_IsString(v) ? v->valuestring : "");
        else
            names[i] = v->valuestring;
    }
    if (st == LTD_OK) qsort(names, (size_t)n, sizeof *names, by_text);
    for (i = 0; i < n && st == LTD_OK; i++) {
        char path[4096];
        if (i > 0 && strcmp(names[i], names[i - 1]) == 0) continue;
        snprintf(path, sizeof path, "%s/%s", s->path, names[i]);
        ltd_err why;
        st = add_file(s, path, &why);
        if (st == LTD_NOT_FOUND)
            ltd_fail(err, st, "%s is missing, which %s lists", path, index);
        else if (st != LTD_OK)
            ltd_fail(err, st, "%s", why.text);
    }
    ltd_free(names);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

/* Sorts by name; the same name in two files is nobody's to choose. */
static ltd_status sort_tensors(st_files *s, ltd_err *err)
{
    qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_name);
    for (int32_t i = 1; i < s->n; i++)
        if (by_name(&s->tensors[i - 1], &s->tensors[i]) == 0)
            return ltd_fail(err, LTD_CORRUPT, "tensor \"%.200s\" is in two files: %s and %s",
                            s->tensors[i].name, s->tensors[i - 1].file, s->tensors[i].file);
    return LTD_OK;
}

/* Each listed tensor is in its file. */
static ltd_status check_listed(const st_files *s, const cJSON *map, const char *index, ltd_err *err)
{
    for (const cJSON *v = map->child; v; v = v->next) {
        const st_tensor *t = st_find(s, v->string);
        if (!t)
            return ltd_fail(err, LTD_NOT_FOUND, "%s: tensor \"%.200s\" is not in %s/%s", index, v->string,
                            s->path, v->valuestring);
        if (strcmp(strrchr(t->file, '/') + 1, v->valuestring) != 0)
            return ltd_fail(err, LTD_CORRUPT, "%s: tensor \"%.200s\" is not in %s/%s but in %s", index,
                            v->string, s->path, v->valuestring, t->file);
    }
    int32_t extra = s->n - cJSON_GetArraySize(map);
    if (extra > 0) log_warn("model", "%s: %d tensors of its files are not listed", index, extra);
    return LTD_OK;
}

static ltd_status open_index(st_files *s, const char *index, ltd_err *err)
{
    cJSON *json = NULL;
    ltd_status st = ltd_json_parse_file(index, 0, &json, err);
    if (st != LTD_OK) return st;
    const cJSON *map = ltd_json_get(json, "weight_map");
    if (!cJSON_IsObject(map) || !map->child)
        st = ltd_fail(err, LTD_CORRUPT, "%s: weight_map must be an object of tensor names and their files",
                      index);
    if (st == LTD_OK) st = open_listed(s, map, index, err);
    if (st == LTD_OK) st = sort_tensors(s, err);
    if (st == LTD_OK) st = check_listed(s, map, index, err);
    cJSON_Delete(json);
    return st;
}

/* ---------------------------------------------------------------- the public part */

static st_files *create(const char *path)
{
    st_files *s = ltd_calloc(1, sizeof *s);
    s->path = ltd_strdup(path);
    s->cap = 64;
    s->tensors = ltd_alloc((size_t)s->cap * sizeof *s->tensors);
    s->fingerprint = 0xcbf29ce484222325u;
    return s;
}

static ltd_status finish(st_files *s, ltd_status st, st_files **out)
{
    if (st == LTD_OK)
        *out = s;
    else
        st_close(s);
    return st;
}

ltd_status st_open_file(const char *path, st_files **out, ltd_err *err)
{
    st_files *s = create(path);
    ltd_status st = add_file(s, path, err);
    if (st == LTD_OK) st = sort_tensors(s, err);
    return finish(s, st, out);
}

ltd_status st_open(const char *dir, st_files **out, ltd_err *err)
{
    char single[4096], index[4096];
    st_files *s = create(dir);
    snprintf(single, sizeof single, "%s/model.safetensors", dir);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", dir);
    bool has_single = access(single, F_OK) == 0, has_index = access(index, F_OK) == 0;
    if (has_single && has_index)
        log_warn("model", "%s: both model.safetensors and an index are there; the index is not used", dir);
    ltd_status st;
    if (has_single) {
        st = add_file(s, single, err);
        if (st == LTD_OK) st = sort_tensors(s, err);
    } else if (has_index) {
        st = open_index(s, index, err);
    } else {
        st = ltd_fail(err, LTD_NOT_FOUND,
                      "%s: holds neither model.safetensors nor model.safetensors.index.json (other weight "
                      "formats must be converted)",
                      dir);
    }
    return finish(s, st, out);
}

void st_close(st_files *s)
{
    if (!s) return;
    for (int32_t i = 0; i < s->n; i++) ltd_free((char *)s->tensors[i].name);
    for (int32_t i = 0; i < s->n_files; i++) {
        if (s->files[i].map) munmap((void *)s->files[i].map, s->files[i].map_bytes);
        ltd_free(s->files[i].path);
    }
    ltd_free(s->tensors);
    ltd_free(s->files);
    ltd_free(s->path);
    ltd_free(s);
}

const st_tensor *st_find(const st_files *s, const char *name)
{
    st_tensor key = {.name = name};
    return bsearch(&key, s->tensors, (size_t)s->n, sizeof *s->tensors, by_name);
}

int32_t st_count(const st_files *s) { return s->n; }

const st_tensor *st_at(const st_files *s, int32_t i)
{
    LTD_CHECK(i >= 0 && i < s->n, "i=%d n=%d", i, s->n);
    return &s->tensors[i];
}

const char *st_path(const st_files *s) { return s->path; }
uint64_t st_fingerprint(const st_files *s) { return s->fingerprint; }
