"""Makes tokenizer_more.json: ids that the Hugging Face tokenizers package gives under random pre-tokenizers, merges and
added tokens on a vocabulary of 256 bytes.   pip install tokenizers==0.23.3; python make_tokenizer_more.py > tokenizer_more.json"""
import json
import random

from tokenizers import Tokenizer

SEED, CONFIGS, TEXTS = 7, 70, 5
PATTERNS = [
    r"[\r\n]", r"\s?[A-Za-z]+", r"\s+$", r"\p{N}{1,3}",
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"x*", r"a|bb", r"(?=b)", r"$", r"^", r"\w+", r"[\w-]+", r"\W+", r"\d", r"\S+", r"[^\S\n]+", r"\h+", r"a{,2}",
    r"(?<=a)b", r"(?<!a)b+", r"a++b", r"(?>a+)b", r"a.b", r"\p{Han}+", r"\P{L}+", r"\p{^L}", r"\u0061+",
    r"[\u4e00-\u9fff]+", r"\s\Z", r"(?:ab|a)+?b", r"[-a]+", r"[a\-b]+", r"\t|\v|\f", r"[\p{P}\p{S}]+"]
LITERALS = ["a", "ab", " ", "\n", "é", "你", "."]
CHARS = "a a b ab aab x X 1 23 . - , ' é 你 好 ٣ ½ \u0301 \u00a0 \u180e \u0085 \u2003 🚀 _ { } 's 'S 'ſ ll \u200d ² Ⅷ \U0001fae8".split(" ")
CHARS += ["\n", "\n\n", "\r", "\t", " ", "  ", " \n"]
ADDED = ["<s>", "<a", "<a>", "ab", "你", "é", "x ", " x", "\n", "b1", "##"]


def alphabet():
    own = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    extra = iter(range(0x100, 0x144))
    return [chr(b) if b in own else chr(next(extra)) for b in range(256)]


def steps(rnd):
    out = []
    for _ in range(rnd.choice([0, 1, 1, 1, 2, 3])):
        r = rnd.random()
        if r < 0.15:
            out.append({"type": "Digits", "individual_digits": rnd.random() < 0.5})
            continue
        pattern = {"String": rnd.choice(LITERALS)} if r < 0.25 else {"Regex": rnd.choice(PATTERNS)}
        behavior = rnd.choice(["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
        out.append({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": rnd.random() < 0.4})
    out.append({"type": "ByteLevel", "add_prefix_space": rnd.random() < 0.3, "trim_offsets": True,
                "use_regex": rnd.random() < 0.4})
    return {"type": "Sequence", "pretokenizers": out}


def config(rnd):
    vocab = {}
    merges = []
    symbols = ["a", "b", "Ġ", "x", "1", "Ċ", "Ã", "©"]
    for _ in range(rnd.randrange(0, 15)):
        a, b = rnd.choice(symbols), rnd.choice(symbols)
        if a + b not in vocab:
            vocab[a + b] = 300 + len(vocab)
            merges.append([a, b])
            symbols.append(a + b)
    rnd.shuffle(merges)
    added = []
    for text in rnd.sample(ADDED, rnd.randrange(0, 5)):
        flags = {k: rnd.random() < p for k, p in (("single_word", 0.2), ("lstrip", 0.3), ("rstrip", 0.3), ("normalized", 0.5))}
        known = {**{c: i for i, c in enumerate(alphabet())}, **vocab}
        added.append({"id": known.get(text, 600 + len(added)), "content": text, "special": rnd.random() < 0.5, **flags})
    return {"pre_tokenizer": steps(rnd), "vocab": vocab, "merges": merges if rnd.random() < 0.5 else [" ".join(m) for m in merges],
            "ignore_merges": rnd.random() < 0.3, "added_tokens": added}


def reference(c):
    """All ids by text: the package gives added tokens numbers of its own."""
    model = {"type": "BPE", "vocab": {**{s: i for i, s in enumerate(alphabet())}, **c["vocab"]}, "merges": c["merges"],
             "ignore_merges": c["ignore_merges"]}
    file = {"version": "1.0", "added_tokens": c["added_tokens"], "normalizer": None, "pre_tokenizer": c["pre_tokenizer"],
            "post_processor": None, "decoder": None, "model": model}
    tk = Tokenizer.from_str(json.dumps(file))
    ids = {**{a["content"]: a["id"] for a in c["added_tokens"]}, **model["vocab"]}
    return lambda text: [ids[tk.id_to_token(i)] for i in tk.encode(text, add_special_tokens=False).ids]


def main():
    rnd = random.Random(SEED)
    out = []
    while len(out) < CONFIGS:
        c = config(rnd)
        encode = reference(c)
        c["cases"] = []
        for _ in range(TEXTS):
            text = "".join(rnd.choice(CHARS) if rnd.random() < 0.8 else rnd.choice(ADDED) for _ in range(rnd.randrange(1, 20)))
            try:
                c["cases"].append({"text": text, "ids": encode(text)})
            except BaseException:  # the package panics where swallowed white space holds another token
                pass
        out.append(c)
    about = "Made by make_tokenizer_more.py with tokenizers 0.23.3; the vocabulary is the 256 bytes plus vocab."
    print(json.dumps({"_about": about, "configs": out}, ensure_ascii=True, separators=(",", ":")).replace('{"pre_tok', '\n{"pre_tok'))


main()
