/* byte_tokenizer.c - see byte_tokenizer.h. */
#include "tests/support/byte_tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "config/config.h"

/* The byte alphabet: printable Latin-1 characters are themselves, the other 68 bytes are U+0100 and up in
 * order. */
static void add_symbol(ltd_buf *b, int byte)
{
    unsigned cp = 0x100, i;
    for (i = 0; i < 256; i++) {
        bool self = (i >= 0x21 && i <= 0x7E) || (i >= 0xA1 && i <= 0xAC) || i >= 0xAE;
        if ((int)i == byte) {
            if (self) cp = i;
            break;
        }
        if (!self) cp++;
    }
    char s[2] = {(char)cp, 0};
    if (cp >= 0x80) s[0] = (char)(0xC0 | cp >> 6), s[1] = (char)(0x80 | (cp & 0x3F));
    ltd_buf_json_str(b, s, cp >= 0x80 ? 2 : 1);
}

static void add_str(ltd_buf *b, const char *s) { ltd_buf_json_str(b, s, strlen(s)); }

static const char *boolean(bool v) { return v ? "true" : "false"; }

static void add_added(ltd_buf *b, const support_added *a)
{
    ltd_buf_fmt(b, "{\"id\":%d,\"content\":", a->id);
    add_str(b, a->text);
    ltd_buf_fmt(b, ",\"single_word\":%s,\"lstrip\":%s,\"rstrip\":%s,\"normalized\":%s,\"special\":%s}",
                boolean(a->single_word), boolean(a->lstrip), boolean(a->rstrip), boolean(a->normalized),
                boolean(a->special));
}

static void add_model(ltd_buf *b, const support_tok_opts *o)
{
    ltd_buf_str(b, "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,");
    if (o->raw_model) ltd_buf_str(b, o->raw_model);
    if (o->ignore_merges) ltd_buf_str(b, "\"ignore_merges\":true,");
    ltd_buf_str(b, "\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        add_symbol(b, i);
        ltd_buf_fmt(b, ":%d,", i);
    }
    ltd_buf_str(b, "\"7,\\u01208\":280");
    for (const support_vocab *v = o->vocab; v && v->text; v++) {
        ltd_buf_str(b, ",");
        add_str(b, v->text);
        ltd_buf_fmt(b, ":%d", v->id);
    }
    ltd_buf_str(b, "},\"merges\":[");
    const char *comma = "";
    for (const char *const *m = o->merges; m && *m; m++, comma = ",") {
        ltd_buf_str(b, comma);
        const char *space = strchr(*m, ' ');
        if (o->merges_as_pairs && space) {
            ltd_buf_str(b, "[");
            ltd_buf_json_str(b, *m, (size_t)(space - *m));
            ltd_buf_str(b, ",");
            add_str(b, space + 1);
            ltd_buf_str(b, "]");
        } else {
            add_str(b, *m);
        }
    }
    if (o->raw_merges) ltd_buf_fmt(b, "%s%s", comma, o->raw_merges);
    ltd_buf_str(b, "]}");
}

char *support_byte_tokenizer_json(const support_tok_opts *o)
{
    static const support_tok_opts plain;
    static const support_added special[] = {{"<bos>", 256, .special = true},
                                            {"<eos>", 257, .special = true},
                                            {"<user>", 258, .special = true},
                                            {"<asst>", 259, .special = true}};
    static const char byte_level[] =
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}";
    ltd_buf b = {0};
    if (!o) o = &plain;
    ltd_buf_str(&b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int i = 0; i < 4; i++) {
        if (i) ltd_buf_str(&b, ",");
        add_added(&b, &special[i]);
    }
    for (const support_added *a = o->added; a && a->text; a++) {
        ltd_buf_str(&b, ",");
        add_added(&b, a);
    }
    ltd_buf_fmt(&b,
                "],\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,\"model\":",
                o->normalizer ? o->normalizer : "null", o->pre_tokenizer ? o->pre_tokenizer : byte_level,
                o->post_processor ? o->post_processor : "null", o->decoder ? o->decoder : byte_level);
    add_model(&b, o);
    ltd_buf_str(&b, "}\n");
    return b.data;
}

static void write_file(const char *dir, const char *name, const char *text)
{
    ltd_buf path = {0};
    ltd_buf_fmt(&path, "%s/%s", dir, name);
    FILE *f = fopen(path.data, "wb");
    LTD_CHECK(f, "cannot write %s", path.data);
    size_t n = strlen(text), done = fwrite(text, 1, n, f);
    LTD_CHECK(fclose(f) == 0 && done == n, "cannot write %s", path.data);
    ltd_buf_deinit(&path);
}

void support_write_byte_tokenizer(const char *dir, const support_tok_opts *o)
{
    char *json = support_byte_tokenizer_json(o);
    write_file(dir, "tokenizer.json", json);
    ltd_free(json);
    if (o && o->config) write_file(dir, "tokenizer_config.json", o->config);
}
