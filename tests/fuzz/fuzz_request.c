/* fuzz_request.c - libFuzzer entry for request bodies: /v1/completions, /tokenize and /detokenize.
 * The first byte says which.  What is accepted must keep the promises that the scheduler builds on: ids
 * within the vocabulary, every prompt within the context, counts within their limits; what is refused has a
 * message and a client's status. With LTD_FUZZ_MAIN an ordinary program that replays the files named on its
 * command line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/server_private.h"
#include "tests/support/byte_tokenizer.h"

enum { CONTEXT = 64, VOCAB = 300 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static srv_const consts;

static void set_up(void)
{
    static ltd_options options = {.max_n = 4, .max_choices = 16, .n_served_names = 1};
    static model_info info = {
        .vocab_size = VOCAB, .context_length = CONTEXT, .default_temperature = 1, .default_top_p = 1};
    static char name[] = "m";
    char dir[] = "/tmp/latentd-fuzz-XXXXXX", path[64];
    tok *t;
    ltd_err err;
    LTD_CHECK(mkdtemp(dir), "no temporary folder");
    support_write_byte_tokenizer(dir, NULL);
    LTD_CHECK(tok_load(dir, VOCAB, &t, &err) == LTD_OK, "%s", err.text);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
    options.served_names[0] = name;
    consts = (srv_const){.o = &options, .info = &info, .tok = t, .salt_key = {1, 2}};
}

static void check_call(const srv_call *c)
{
    LTD_CHECK(c->n >= 1 && c->n <= 4 && c->n_prompts >= 1 && c->n_prompts * c->n <= 16, "%d x %d",
              c->n_prompts, c->n);
    LTD_CHECK(c->r.max_tokens >= 0 && c->r.max_tokens <= CONTEXT, "max_tokens %d", c->r.max_tokens);
    LTD_CHECK(c->r.temperature >= 0 && c->r.temperature <= 2 && c->r.top_p >= 0 && c->r.top_p <= 1 &&
                  c->r.min_p >= 0 && c->r.min_p <= 1,
              "sampling");
    LTD_CHECK(c->r.top_k >= 0 && c->r.n_logprobs >= -1 && c->r.n_logprobs <= 20, "top_k %d", c->r.top_k);
    for (int32_t i = 0; i < c->n_prompts; i++) {
        const srv_prompt *p = &c->prompts[i];
        LTD_CHECK(p->n >= 1 && p->n <= CONTEXT && p->ids, "prompt of %d", p->n);
        LTD_CHECK(!c->echo || p->text, "an echo without its text");
        for (int32_t k = 0; k < p->n; k++) LTD_CHECK(p->ids[k] >= 0 && p->ids[k] < VOCAB, "id %d", p->ids[k]);
    }
    for (int32_t i = 0; i < c->r.n_stops; i++)
        LTD_CHECK(c->r.stop_lens[i] > 0 && strlen(c->r.stops[i]) == c->r.stop_lens[i], "stop %d", i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    srv_error e = {0};
    srv_call *call = NULL;
    ltd_buf out = {0}, json = {0};
    ltd_status st;
    if (!consts.tok) set_up();
    if (size == 0) return 0;
    const char *body = (const char *)data + 1;
    if (data[0] == 't')
        st = srv__tokenize(&consts, body, size - 1, &out, &e);
    else if (data[0] == 'd')
        st = srv__detokenize(&consts, body, size - 1, &out, &e);
    else if ((st = srv__call_parse(&consts, body, size - 1, &call, &e)) == LTD_OK)
        check_call(call);
    if (st != LTD_OK) {
        LTD_CHECK((e.status == 400 || e.status == 404 || e.status == 503) && e.message[0] && !call,
                  "status %d", e.status);
        srv__error_json(&e, &json);
    }
    srv__call_destroy(call);
    ltd_buf_deinit(&out);
    ltd_buf_deinit(&json);
    return 0;
}

#ifdef LTD_FUZZ_MAIN
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *data;
        size_t len;
        ltd_err err;
        LTD_CHECK(ltd_read_file(argv[i], 0, &data, &len, &err) == LTD_OK, "%s", err.text);
        LLVMFuzzerTestOneInput((const uint8_t *)data, len);
        ltd_free(data);
    }
    return 0;
}
#endif
