/* tokenizer_parts.c - tokenizer.json's other components, and tokenizer_config.json.
 * Each component type is either done as the file says or refused by name; truncation and padding are a
 * caller's settings and play no part here. What a plain encode puts around a text: tokenizer_config.json's
 * add_bos_token and add_eos_token where they are given, else the post-processor's template. */
#include <stdio.h>
#include <string.h>

#include <cJSON.h>

#include "model/tokenizer_private.h"

/* The GPT-2 pattern that ByteLevel's use_regex stands for. */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const char *type_of(const cJSON *v)
{
    const cJSON *type = ltd_json_get(v, "type");
    return cJSON_IsString(type) ? type->valuestring : NULL;
}

static ltd_status unknown_type(const tok__loader *ld, const cJSON *v, const char *where)
{
    const char *type = type_of(v);
    if (!type) return tok__fail(ld, LTD_CORRUPT, "%s has no type", where);
    return tok__fail(ld, LTD_UNSUPPORTED, "%s: the type \"%.80s\" is not supported", where, type);
}

/* ------------------------------------------------------------------ normalizer */

static ltd_status load_normalizer(tok__loader *ld, const cJSON *v, const char *where)
{
    static const char *const keys[] = {"type", "normalizers", NULL};
    if (ltd_json_is_null(v)) return LTD_OK;
    const char *type = type_of(v);
    if (!type || strcmp(type, "Sequence") != 0) return unknown_type(ld, v, where);
    ltd_status st = tok__only_keys(ld, v, where, keys);
    const cJSON *list = ltd_json_get(v, "normalizers");
    if (st == LTD_OK && !cJSON_IsArray(list))
        return tok__fail(ld, LTD_CORRUPT, "%s.normalizers is not a list", where);
    for (const cJSON *x = st == LTD_OK ? list->child : NULL; x && st == LTD_OK; x = x->next)
        st = load_normalizer(ld, x, "normalizer.normalizers");
    return st;
}

/* ------------------------------------------------------------------ pre-tokenizer */

typedef struct pretok_loader {
    tok__loader *ld;
    bool byte_level; /* seen: must be the last */
} pretok_loader;

static ltd_status load_split(tok__loader *ld, const cJSON *v, const char *where, tok__step *step)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const behaviors[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                            "Contiguous"};
    const cJSON *pattern = ltd_json_get(v, "pattern"), *behavior = ltd_json_get(v, "behavior");
    const cJSON *re = ltd_json_get(pattern, "Regex"), *literal = ltd_json_get(pattern, "String");
    int b = 0;
    ltd_status st = tok__only_keys(ld, v, where, keys);
    if (st != LTD_OK) return st;
    while (b < 5 && !(cJSON_IsString(behavior) && strcmp(behavior->valuestring, behaviors[b]) == 0)) b++;
    if (b == 5)
        return tok__fail(ld, LTD_UNSUPPORTED, "%s: the behavior \"%.80s\" is not known", where,
                         cJSON_IsString(behavior) ? behavior->valuestring : "?");
    step->behavior = (tok__behavior)b;
    if (b == TOK__REMOVED) ld->t->removes = true;
    if ((st = tok__get_bool(ld, v, where, "invert", false, &step->invert)) != LTD_OK) return st;
    if (cJSON_IsString(re) && !literal)
        return tok__step_compile(ld, where, re->valuestring, strlen(re->valuestring), step);
    if (!cJSON_IsString(literal) || re)
        return tok__fail(ld, LTD_CORRUPT, "%s: no pattern {Regex} or {String}", where);
    if (!literal->valuestring[0]) return tok__fail(ld, LTD_UNSUPPORTED, "%s: an empty pattern", where);
    step->literal = ltd_strdup(literal->valuestring);
    step->n_literal = strlen(literal->valuestring);
    return LTD_OK;
}

static ltd_status load_byte_level(pretok_loader *p, const cJSON *v, const char *where)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    tok *t = p->ld->t;
    bool trim, regex;
    ltd_status st = tok__only_keys(p->ld, v, where, keys);
    if (st != LTD_OK) return st;
    if ((st = tok__get_bool(p->ld, v, where, "add_prefix_space", true, &t->prefix_space)) != LTD_OK)
        return st;
    if ((st = tok__get_bool(p->ld, v, where, "trim_offsets", true, &trim)) != LTD_OK)
        return st; /* about offsets only */
    if ((st = tok__get_bool(p->ld, v, where, "use_regex", true, &regex)) != LTD_OK) return st;
    p->byte_level = true;
    return regex ? tok__step_compile(p->ld, where, byte_level_pattern, strlen(byte_level_pattern),
                                     &t->byte_level)
                 : LTD_OK;
}

static ltd_status load_pretok(pretok_loader *p, const cJSON *v, const char *where);

static ltd_status load_pretok_list(pretok_loader *p, const cJSON *v, const char *where)
{
    static const char *const keys[] = {"type", "pretokenizers", NULL};
    const cJSON *list = ltd_json_get(v, "pretokenizers");
    ltd_status st = tok__only_keys(p->ld, v, where, keys);
    if (st != LTD_OK) return st;
    if (!cJSON_IsArray(list)) return tok__fail(p->ld, LTD_CORRUPT, "%s.pretokenizers is not a list", where);
    int at = 0;
    for (const cJSON *x = list->child; x && st == LTD_OK; x = x->next, at++) {
        char inner[64];
        snprintf(inner, sizeof inner, "%.40s[%d]", where, at);
        st = load_pretok(p, x, inner);
    }
    return st;
}

static ltd_status load_pretok(pretok_loader *p, const cJSON *v, const char *where)
{
    static const char *const digits_keys[] = {"type", "individual_digits", NULL};
    tok *t = p->ld->t;
    const char *type = type_of(v);
    ltd_status st;
    if (!type) return unknown_type(p->ld, v, where);
    if (strcmp(type, "Sequence") == 0) return load_pretok_list(p, v, where);
    if (p->byte_level)
        return tok__fail(p->ld, LTD_UNSUPPORTED, "%s: %.80s after ByteLevel is not supported", where, type);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(p, v, where);
    bool split = strcmp(type, "Split") == 0;
    if (!split && strcmp(type, "Digits") != 0) return unknown_type(p->ld, v, where);
    if (t->n_steps == TOK__MAX_STEPS)
        return tok__fail(p->ld, LTD_UNSUPPORTED, "%s: more than %d steps", where, TOK__MAX_STEPS);
    tok__step *step = &t->steps[t->n_steps++];
    if (split) return load_split(p->ld, v, where, step);
    bool each;
    if ((st = tok__only_keys(p->ld, v, where, digits_keys)) != LTD_OK) return st;
    if ((st = tok__get_bool(p->ld, v, where, "individual_digits", false, &each)) != LTD_OK) return st;
    if ((st = tok__step_compile(p->ld, where, "\\p{N}+", each ? 5 : 6, step)) != LTD_OK) return st;
    memset(step->first, 0xFF,
           sizeof step->first); /* PCRE2 does not work it out for \p: of ASCII only 0 to 9 */
    memset(step->first, 0, 16);
    step->first['0' >> 3] = 0xFF;
    step->first['8' >> 3] = 0x03;
    step->has_first = true;
    return LTD_OK;
}

/* ------------------------------------------------------------------ decoder and post-processor */

static const char *const byte_level_keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};

static ltd_status load_decoder(tok__loader *ld, const cJSON *v, const char *where)
{
    static const char *const keys[] = {"type", "decoders", NULL};
    if (ltd_json_is_null(v)) return tok__fail(ld, LTD_UNSUPPORTED, "%s: none; ByteLevel is needed", where);
    const char *type = type_of(v);
    if (type && strcmp(type, "ByteLevel") == 0) return tok__only_keys(ld, v, where, byte_level_keys);
    if (!type || strcmp(type, "Sequence") != 0) return unknown_type(ld, v, where);
    ltd_status st = tok__only_keys(ld, v, where, keys);
    if (st != LTD_OK) return st;
    const cJSON *list = ltd_json_get(v, "decoders");
    if (!cJSON_IsArray(list) || !list->child)
        return tok__fail(ld, LTD_CORRUPT, "%s.decoders is not a list of decoders", where);
    for (const cJSON *x = list->child; x; x = x->next)
        if ((st = load_decoder(ld, x, "decoder.decoders")) != LTD_OK) return st;
    return list->child->next ? tok__fail(ld, LTD_UNSUPPORTED, "%s: more than one decoder", where) : LTD_OK;
}

/* A template's special token: its ids. */
static ltd_status put_template_ids(tok__loader *ld, const cJSON *template, const cJSON *piece, int32_t *ids,
                                   int *n)
{
    tok *t = ld->t;
    const cJSON *name = ltd_json_get(ltd_json_get(piece, "SpecialToken"), "id");
    if (!cJSON_IsString(name))
        return tok__fail(ld, LTD_UNSUPPORTED, "post_processor.single holds a piece that is not understood");
    const cJSON *list =
        ltd_json_get(ltd_json_get(ltd_json_get(template, "special_tokens"), name->valuestring), "ids");
    if (!cJSON_IsArray(list))
        return tok__fail(ld, LTD_CORRUPT, "post_processor.special_tokens has no ids for \"%.80s\"",
                         name->valuestring);
    for (const cJSON *x = list->child; x; x = x->next) {
        int64_t id;
        if (ltd_json_int64(x, &id) != LTD_OK || id < 0 || id >= t->info.n_ids || !t->entries[id].text)
            return tok__fail(ld, LTD_CORRUPT,
                             "post_processor.special_tokens: \"%.80s\" has an id that is no token",
                             name->valuestring);
        if (*n == TOK__MAX_AROUND)
            return tok__fail(ld, LTD_UNSUPPORTED, "post_processor.single has more than %d special tokens",
                             TOK__MAX_AROUND);
        ids[(*n)++] = (int32_t)id;
    }
    return LTD_OK;
}

static ltd_status load_template(tok__loader *ld, const cJSON *v, const char *where)
{
    static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
    tok *t = ld->t;
    const cJSON *single = ltd_json_get(v, "single");
    bool text = false;
    ltd_status st = tok__only_keys(ld, v, where, keys);
    if (st != LTD_OK) return st;
    if (!cJSON_IsArray(single)) return tok__fail(ld, LTD_CORRUPT, "%s.single is not a list", where);
    if (t->n_before || t->n_behind)
        return tok__fail(ld, LTD_UNSUPPORTED, "%s: more than one template", where);
    for (const cJSON *x = single->child; x; x = x->next) {
        const cJSON *sequence = ltd_json_get(x, "Sequence");
        if (!sequence) {
            st = text ? put_template_ids(ld, v, x, t->behind, &t->n_behind)
                      : put_template_ids(ld, v, x, t->before, &t->n_before);
            if (st != LTD_OK) return st;
            continue;
        }
        const cJSON *id = ltd_json_get(sequence, "id");
        if (text || !cJSON_IsString(id) || strcmp(id->valuestring, "A") != 0)
            return tok__fail(ld, LTD_UNSUPPORTED, "%s.single: the sequence A is not there just once", where);
        text = true;
    }
    return text ? LTD_OK
                : tok__fail(ld, LTD_UNSUPPORTED, "%s.single: the sequence A is not there just once", where);
}

static ltd_status load_post(tok__loader *ld, const cJSON *v, const char *where)
{
    static const char *const keys[] = {"type", "processors", NULL};
    if (ltd_json_is_null(v)) return LTD_OK;
    const char *type = type_of(v);
    if (type && strcmp(type, "ByteLevel") == 0)
        return tok__only_keys(ld, v, where, byte_level_keys); /* about offsets only */
    if (type && strcmp(type, "TemplateProcessing") == 0) return load_template(ld, v, where);
    if (!type || strcmp(type, "Sequence") != 0) return unknown_type(ld, v, where);
    ltd_status st = tok__only_keys(ld, v, where, keys);
    const cJSON *list = ltd_json_get(v, "processors");
    if (st == LTD_OK && !cJSON_IsArray(list))
        return tok__fail(ld, LTD_CORRUPT, "%s.processors is not a list", where);
    for (const cJSON *x = st == LTD_OK ? list->child : NULL; x && st == LTD_OK; x = x->next)
        st = load_post(ld, x, "post_processor.processors");
    return st;
}

ltd_status tok__load_parts(tok__loader *ld, const cJSON *root)
{
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    pretok_loader p = {ld, false};
    const cJSON *version = ltd_json_get(root, "version"), *pretok = ltd_json_get(root, "pre_tokenizer");
    ltd_status st = tok__only_keys(ld, root, "the file", keys);
    if (st != LTD_OK) return st;
    if (!ltd_json_is_null(version) && !(cJSON_IsString(version) && strcmp(version->valuestring, "1.0") == 0))
        return tok__fail(ld, LTD_UNSUPPORTED, "the version is not \"1.0\"");
    if ((st = load_normalizer(ld, ltd_json_get(root, "normalizer"), "normalizer")) != LTD_OK) return st;
    if (!ltd_json_is_null(pretok) && (st = load_pretok(&p, pretok, "pre_tokenizer")) != LTD_OK) return st;
    if (!p.byte_level)
        return tok__fail(ld, LTD_UNSUPPORTED,
                         "pre_tokenizer: no ByteLevel; vocabularies of characters are not supported");
    if ((st = load_decoder(ld, ltd_json_get(root, "decoder"), "decoder")) != LTD_OK) return st;
    return load_post(ld, ltd_json_get(root, "post_processor"), "post_processor");
}

/* ------------------------------------------------------------------ tokenizer_config.json */

/* bos_token, eos_token: a string, {content}, or null. */
static ltd_status config_token(tok__loader *ld, const cJSON *config, const char *key, int32_t *id)
{
    const cJSON *v = ltd_json_get(config, key);
    *id = -1;
    if (ltd_json_is_null(v)) return LTD_OK;
    if (cJSON_IsObject(v)) v = ltd_json_get(v, "content");
    if (!cJSON_IsString(v))
        return tok__fail(ld, LTD_CORRUPT, "%s is neither a string nor an object with content", key);
    *id = tok_find(ld->t, v->valuestring);
    return *id >= 0
               ? LTD_OK
               : tok__fail(ld, LTD_CORRUPT, "%s \"%.80s\" is not in tokenizer.json", key, v->valuestring);
}

/* add_bos_token, add_eos_token: where given, they replace what the post-processor's template puts there. */
static ltd_status config_add(tok__loader *ld, const cJSON *config, const char *key, int32_t id, int32_t *ids,
                             int *n)
{
    bool add;
    if (ltd_json_is_null(ltd_json_get(config, key))) return LTD_OK;
    ltd_status st = tok__get_bool(ld, config, "the file", key, false, &add);
    if (st != LTD_OK) return st;
    if (add && id < 0) return tok__fail(ld, LTD_CORRUPT, "%s is true, but the token is not given", key);
    *n = add ? 1 : 0;
    ids[0] = id;
    return LTD_OK;
}

/* A string, or a list of {name, template}: the one called default, or the only one. */
static ltd_status config_template(tok__loader *ld, const cJSON *v)
{
    const cJSON *best = NULL, *first = NULL;
    int n = 0;
    if (ltd_json_is_null(v)) return LTD_OK;
    if (!cJSON_IsString(v) && !cJSON_IsArray(v))
        return tok__fail(ld, LTD_CORRUPT, "chat_template is neither a string nor a list");
    if (cJSON_IsString(v)) best = v;
    for (const cJSON *x = best ? NULL : v->child; x; x = x->next, n++) {
        const cJSON *name = ltd_json_get(x, "name"), *text = ltd_json_get(x, "template");
        if (!cJSON_IsString(name) || !cJSON_IsString(text))
            return tok__fail(ld, LTD_CORRUPT, "chat_template[%d] is not {name, template}", n);
        if (n == 0) first = text;
        if (strcmp(name->valuestring, "default") == 0) best = text;
    }
    if (!best && n == 1) best = first;
    if (best) ld->t->chat_template = ltd_strdup(best->valuestring);
    return LTD_OK;
}

ltd_status tok__load_config(tok__loader *ld, const cJSON *config)
{
    tok *t = ld->t;
    ltd_status st;
    if (config) {
        if (!cJSON_IsObject(config)) return tok__fail(ld, LTD_CORRUPT, "not an object");
        if ((st = config_token(ld, config, "bos_token", &t->info.bos)) != LTD_OK) return st;
        if ((st = config_token(ld, config, "eos_token", &t->info.eos)) != LTD_OK) return st;
        if ((st = config_add(ld, config, "add_bos_token", t->info.bos, t->before, &t->n_before)) != LTD_OK)
            return st;
        if ((st = config_add(ld, config, "add_eos_token", t->info.eos, t->behind, &t->n_behind)) != LTD_OK)
            return st;
        if ((st = config_template(ld, ltd_json_get(config, "chat_template"))) != LTD_OK) return st;
    }
    t->info.add_bos = t->n_before > 0;
    t->info.add_eos = t->n_behind > 0;
    t->info.chat_template = t->chat_template;
    return LTD_OK;
}

/* ------------------------------------------------------------------ both files */

ltd_status tok__load_text(const char *json, size_t n, const char *config, size_t n_config, int32_t vocab_size,
                          tok **out, ltd_err *err)
{
    tok__loader ld = {ltd_calloc(1, sizeof(tok)), "tokenizer.json", vocab_size, err};
    cJSON *root = NULL, *root_config = NULL;
    ltd_err inner = {{0}};
    ld.t->info.bos = ld.t->info.eos = -1;
    *out = NULL;
    ltd_status st = ltd_json_parse(json, n, NULL, &root, &inner);
    if (st != LTD_OK) {
        tok__fail(&ld, st, "%s", inner.text);
        goto done;
    }
    if (!cJSON_IsObject(root)) {
        st = tok__fail(&ld, LTD_CORRUPT, "not an object");
        goto done;
    }
    if ((st = tok__load_model(&ld, root)) != LTD_OK) goto done;
    if ((st = tok__load_parts(&ld, root)) != LTD_OK) goto done; /* a template names the model's tokens */
    ld.name = "tokenizer_config.json";
    if (config && (st = ltd_json_parse(config, n_config, NULL, &root_config, &inner)) != LTD_OK) {
        tok__fail(&ld, st, "%s", inner.text);
        goto done;
    }
    st = tok__load_config(&ld, root_config);
done:
    cJSON_Delete(root);
    cJSON_Delete(root_config);
    if (st == LTD_OK)
        *out = ld.t;
    else
        tok_destroy(ld.t);
    return st;
}
