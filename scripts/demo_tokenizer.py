#!/usr/bin/env python3
"""Trains the tokenizer of the bundled checkpoint and turns the corpus into token ids.

    scripts/demo_tokenizer.py build/demo-corpus tests/models/demo

Reads train.jsonl, valid.txt and heldout.txt of the first folder (scripts/demo_corpus.py).
Writes tokenizer.json, tokenizer_config.json, generation_config.json and heldout.txt into the
second, and train.npy, valid.npy (uint16 ids, every document as BOS text EOS) into the first.

The pre-tokenizer is the one of the DeepSeek-V2 family: line ends, letters, punctuation,
trailing blanks, CJK, single digits, then bytes.
"""
import json
import os
import shutil
import sys

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB = 3000
BOS, EOS = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
USER, ASSISTANT = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"

# The letters that the family's pre-tokenizer knows, as code point ranges.
LETTERS = """41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1
3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15
1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3
1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f
2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf
fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"""
PUNCT = "21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002"
CJK = "4e00-9fa5 800-4e00 ac00-d7ff"

CHAT = """{% if add_generation_prompt is not defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}\
{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] + '\\n\\n' }}\
{% elif m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\\n\\n' }}\
{% elif m['role'] == 'assistant' %}{{ 'Assistant: ' + m['content'] + eos_token }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""


def ranges(text):
    out = ""
    for r in text.split():
        out += "-".join(chr(int(x, 16)) for x in r.split("-"))
    return "[" + out + "]"


def build(texts):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([])
    split = [pre_tokenizers.Split(Regex(p), "isolated") for p in
             ("[\r\n]", r"\s?" + ranges(LETTERS) + "+", r"\s?" + ranges(PUNCT) + "+", r"\s+$", ranges(CJK) + "+")]
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        split + [pre_tokenizers.Digits(individual_digits=True),
                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False)
    tok.train_from_iterator(texts, trainer)
    tok.add_special_tokens([AddedToken(t, normalized=True, special=True) for t in (BOS, EOS)])
    tok.add_tokens([AddedToken(t, normalized=True, special=False) for t in (USER, ASSISTANT)])
    return tok


def dump(path, obj):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(obj, f, ensure_ascii=False, indent=2)
        f.write("\n")


def main():
    corpus, out = sys.argv[1], sys.argv[2]
    os.makedirs(out, exist_ok=True)
    docs = [json.loads(line) for line in open(os.path.join(corpus, "train.jsonl"), encoding="utf-8")]
    tok = build([d["text"] for d in docs])
    tok.save(os.path.join(out, "tokenizer.json"), pretty=False)
    bos, eos = tok.token_to_id(BOS), tok.token_to_id(EOS)

    def added(t):
        return {"__type": "AddedToken", "content": t, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    dump(os.path.join(out, "tokenizer_config.json"), {
        "add_bos_token": True, "add_eos_token": False, "bos_token": added(BOS), "eos_token": added(EOS), "pad_token": added(EOS),
        "unk_token": None, "clean_up_tokenization_spaces": False, "model_max_length": 4096,
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT})
    dump(os.path.join(out, "generation_config.json"), {
        "bos_token_id": bos, "eos_token_id": eos, "do_sample": True, "temperature": 0.8, "top_p": 1.0})
    shutil.copy(os.path.join(corpus, "heldout.txt"), os.path.join(out, "heldout.txt"))

    ids = []
    for d, e in zip(docs, tok.encode_batch([d["text"] for d in docs], add_special_tokens=False)):
        ids.append(np.array([bos] + e.ids + ([eos] if d["end"] else []), np.uint16))
    ids = np.concatenate(ids)
    np.save(os.path.join(corpus, "train.npy"), ids)
    text = open(os.path.join(corpus, "valid.txt"), encoding="utf-8").read()
    valid = np.array(tok.encode(text, add_special_tokens=False).ids, np.uint16)
    np.save(os.path.join(corpus, "valid.npy"), valid)
    held = tok.encode(open(os.path.join(out, "heldout.txt"), encoding="utf-8").read(), add_special_tokens=False)
    assert tok.decode(valid.tolist(), skip_special_tokens=False) == text
    print("vocab", tok.get_vocab_size(), "bos", bos, "eos", eos, "train", ids.size, "valid", valid.size,
          "chars a token %.2f" % (len(text) / valid.size), "heldout", len(held.ids))


if __name__ == "__main__":
    main()
