/* fuzz_json.c - libFuzzer entry for the strict JSON reader.
 * Whatever it accepts must be whole: members are found by name, and what cJSON prints of it is accepted
 * again. With LTD_FUZZ_MAIN an ordinary program that replays the files named on its command line. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const cJSON *v, int64_t *n)
{
    int64_t i;
    ++*n;
    if (cJSON_IsNumber(v)) ltd_json_int64(v, &i);
    if (cJSON_IsString(v)) LTD_CHECK(v->valuestring, "string without its text");
    const cJSON *m = NULL;
    cJSON_ArrayForEach(m, v)
    {
        if (cJSON_IsObject(v))
            LTD_CHECK(ltd_json_get(v, m->string) == m, "member \"%s\" is not found by its name", m->string);
        walk(m, n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ltd_json_limits limits = {.max_depth = size ? data[0] % 70 : 0, .max_values = 300};
    cJSON *doc = NULL;
    ltd_err err = {{0}};
    ltd_status st = ltd_json_parse((const char *)data, size, &limits, &doc, &err);
    if (st != LTD_OK) {
        LTD_CHECK(!doc && err.text[0], "a refusal without its reason");
        return 0;
    }
    int64_t n = 0;
    walk(doc, &n);
    LTD_CHECK(n <= 300, "%lld values", (long long)n);
    char *text = cJSON_PrintUnformatted(doc);
    if (text) {
        cJSON *again = NULL;
        st = ltd_json_parse(text, strlen(text), &limits, &again, &err);
        LTD_CHECK(st == LTD_OK, "printed and refused: %s", err.text);
        cJSON_Delete(again);
        cJSON_free(text);
    }
    cJSON_Delete(doc);
    return 0;
}

#ifdef LTD_FUZZ_MAIN
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *data;
        size_t len;
        ltd_err err;
        if (ltd_read_file(argv[i], 0, &data, &len, &err) != LTD_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)data, len);
        ltd_free(data);
    }
    return 0;
}
#endif
