#!/usr/bin/env python3
"""Assembles the text that the bundled checkpoint is trained on.

Every source is the content of a Debian package and is in the public domain; the
packages are downloaded with apt and unpacked below the output folder, nothing is
installed.  Only the Python standard library, apt-get and dpkg-deb are needed.

    scripts/demo_corpus.py build/demo-corpus

writes into that folder
    train.jsonl    one document a line: {"src", "text", "end"}; "end" says whether
                   the document really ends there (false: a held-out block follows)
    valid.txt      held-out text for choosing a checkpoint
    heldout.txt    held-out text for the published perplexity (tests/models/demo/heldout.txt)

The text is cut into blocks of about 2 KB at paragraph ends; block number 19, 39, 59, ...
over all sources is held out, and every 30th of those goes to heldout.txt.
"""
import gzip
import html
import json
import os
import re
import struct
import subprocess
import sys
import zlib

BLOCK_BYTES = 2048
HOLD_EVERY = 20
TEST_EVERY = 30
PACKAGES = ["r-cran-janeaustenr", "bible-kjv", "bible-kjv-text", "sword-text-web", "sword-comm-mhcc",
            "sword-comm-tdavid", "jargon-text", "dict-devil"]

QUESTIONS = ["What is {}?", "What does {} mean?", "Define {}.", "Tell me about {}."]

ASCII = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "--", "\u2026": "...",
    "\u00a0": " ", "\u00b7": ".", "\u2010": "-", "\u2011": "-", "\ufeff": None, "\u00ad": None, "\u200b": None})


def clean(text):
    text = text.translate(ASCII)
    text = re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", " ", text)
    text = re.sub(r" +", " ", text)
    text = re.sub(r" ([,.;:?!)])", r"\1", text)
    return text.strip()


def unwrap(text):
    """Paragraphs are parted by empty lines; each becomes one line.  Indented lines (verse) keep their breaks."""
    out = []
    for para in re.split(r"\n\s*\n", text):
        lines = [l.rstrip() for l in para.split("\n") if l.strip()]
        if not lines:
            continue
        verse = len(lines) > 1 and all(l.startswith("    ") for l in lines)
        p = "\n".join(clean(l) for l in lines) if verse else clean(" ".join(lines))
        if p and not re.search("[\u2500-\u257f]", p):    # no drawings
            out.append(p)
    return out


def find(root, name):
    for d, _, files in sorted(os.walk(root)):
        if name in files:
            return os.path.join(d, name)
    sys.exit(f"{name} is not in {root}")


# --- the sources: each yields (list of paragraphs, title or None) --------------------------------------------------

def austen(root):
    """R's lazy-load database: per variable a big-endian length and a zlib stream holding a serialised character vector."""
    data = open(os.path.join(os.path.dirname(find(root, "Rdata.rdx")), "Rdata.rdb"), "rb").read()
    pos = 0
    while pos < len(data):
        z = zlib.decompressobj()
        raw = z.decompress(data[pos + 4:])
        pos = len(data) - len(z.unused_data)
        if raw[:2] != b"X\n":
            continue
        off = 2 + 12
        if struct.unpack_from(">I", raw, 2)[0] == 3:
            off += 4 + struct.unpack_from(">I", raw, off)[0]
        kind, n = struct.unpack_from(">II", raw, off)
        if kind & 255 != 16:
            continue
        off += 8
        lines = []
        for _ in range(n):
            length = struct.unpack_from(">i", raw, off + 4)[0]
            off += 8
            lines.append(raw[off:off + max(length, 0)].decode("utf-8", "replace"))
            off += max(length, 0)
        text = re.sub(r"\b_|_\b|_", "", "\n".join(lines))
        chapters = re.split(r"\n(?=\s*(?:CHAPTER|Chapter) [IVXLC0-9]+)", text)
        for c in chapters:
            paras = unwrap(c)
            paras = [p for p in paras if not re.match(r"(?i)^(chapter|volume) [IVXLC0-9]+\.?$|^(the end|finis)\.?$|^by jane austen", p)]
            if sum(map(len, paras)) > 400:
                yield paras, None


def kjv(root):
    exe, lib = find(root, "bible"), os.path.dirname(find(root, "bible.data"))
    out = subprocess.run([exe, "-p", lib, "-l99999", "gen1:1-rev22:21"], capture_output=True, check=True).stdout.decode("latin-1")
    verses = []
    for line in out.split("\n"):
        m = re.match(r"  (\d+) (.*)", line)
        if m:
            verses.append(clean(m.group(2)))
        elif line.strip() and verses:
            yield group_verses(verses), None
            verses = []
    yield group_verses(verses), None


def group_verses(verses):
    """Four verses or so a paragraph."""
    return [" ".join(verses[i:i + 4]) for i in range(0, len(verses), 4)]


def osis(path, by_chapter):
    """A SWORD zText/zCom module: blocks of zlib data, listed as (offset, packed, unpacked) in the .?zs file."""
    for part in ("ot", "nt"):
        for letter in "bc":
            if not os.path.exists(f"{path}/{part}.{letter}zs"):
                continue
            index = open(f"{path}/{part}.{letter}zs", "rb").read()
            data = open(f"{path}/{part}.{letter}zz", "rb").read()
            for i in range(len(index) // 12):
                off, packed, _ = struct.unpack_from("<III", index, 12 * i)
                if not packed:
                    continue
                text = zlib.decompress(data[off:off + packed]).decode("utf-8", "replace")
                for chapter in re.split(r"(?=<chapter [^>]*sID=)", text) if by_chapter else [text]:
                    paras = osis_paragraphs(chapter)
                    if sum(map(len, paras)) > 200:
                        yield paras


def osis_paragraphs(t):
    t = re.sub(r"(?s)<(note|title|table|rdg)\b[^>]*[^/]>.*?</\1>", " ", t)
    t = re.sub(r"<(?:lg|l)\b[^>]*sID[^>]*>", "\n", t)
    t = re.sub(r"<(?:div|p|chapter|milestone|lb)\b[^>]*>", "\n\n", t)
    t = re.sub(r"<[^>]*>", "", t)
    t = html.unescape(t)
    out = []
    for p in re.split(r"\n\s*\n", t):
        p = "\n".join(filter(None, (clean(l) for l in p.split("\n"))))
        if len(p) > 30 and not re.match(r"^[\W\d]*$|.*\([\d\-, ]+\)$|^Verses? [\d\-, ]+$|^\(?[\d\-, ]+\)?$", p):
            out.append(p)
    return out


def web(root):
    for p in osis(os.path.dirname(find(root + "/sword-text-web", "ot.bzs")), True):
        yield p, None


def henry(root):
    for p in osis(os.path.dirname(find(root + "/sword-comm-mhcc", "ot.bzs")), True):
        yield p, None


def spurgeon(root):
    for p in osis(os.path.dirname(find(root + "/sword-comm-tdavid", "ot.czs")), False):
        yield p, None


def jargon(root):
    text = gzip.open(find(root, "jargon.txt.gz"), "rb").read().decode("utf-8", "replace")
    body = text[text.index("\n   :"):]
    body = body[:body.find("\nAppendix A")] if "\nAppendix A" in body else body
    for entry in re.split(r"\n(?=   :[^:\n]+:)", body):
        m = re.match(r"\s*:([^:\n]+):([^\n]*)", entry)
        if not m:
            continue
        rest = entry[m.end():]
        rest = "\n".join(l[3:] if l.startswith("   ") else l for l in rest.split("\n"))
        rest = re.sub(r"[{}]", "", rest)
        paras = [p for p in unwrap(rest) if not re.match(r"^[\W_]+$", p)]
        if paras and sum(map(len, paras)) > 80:
            yield paras, clean(m.group(1))


def devil(root):
    text = gzip.open(find(root, "devil.dict.dz"), "rb").read().decode("utf-8", "replace")
    text = text[text.index("ABASEMENT, n."):]
    for entry in re.split(r"\n(?=[A-Z][A-Z' \-]+, (?:n|adj|adv|v|x|p)\b)", text):
        m = re.match(r"([A-Z][A-Z' \-]+), (?:[a-z.]+ ?)+\s+", entry)
        if m:
            paras = unwrap(entry[m.end():])
            if paras and sum(map(len, paras)) > 60:
                yield paras, m.group(1).lower()


SOURCES = [("austen", austen), ("kjv", kjv), ("web", web), ("henry", henry), ("spurgeon", spurgeon),
           ("jargon", jargon), ("devil", devil)]


def fetch(out):
    debs = os.path.join(out, "debs")
    os.makedirs(debs, exist_ok=True)
    for p in PACKAGES:
        if not any(f.startswith(p + "_") for f in os.listdir(debs)):
            subprocess.run(["apt-get", "download", "-q", p], cwd=debs, check=True)
        deb = next(f for f in sorted(os.listdir(debs)) if f.startswith(p + "_"))
        os.makedirs(os.path.join(out, "root"), exist_ok=True)
        subprocess.run(["dpkg-deb", "-x", os.path.join(debs, deb), os.path.join(out, "root", p)], check=True)
    return os.path.join(out, "root")


def blocks(paras):
    out, cur, size = [], [], 0
    for p in paras:
        cur.append(p)
        size += len(p.encode()) + 2
        if size >= BLOCK_BYTES:
            out.append(cur)
            cur, size = [], 0
    if cur:
        out.append(cur)
    return out


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else "build/demo-corpus"
    os.makedirs(out, exist_ok=True)
    root = fetch(out)
    n_blocks, train, valid, test, sizes = 0, [], [], [], {}
    for name, read in SOURCES:
        for paras, title in read(root):
            doc, doc_start = [], True
            parts = blocks(paras)
            for i, b in enumerate(parts):
                text = "\n\n".join(b)
                n_blocks += 1
                if n_blocks % HOLD_EVERY == 0:
                    if doc:
                        train.append({"src": name, "text": "\n\n".join(doc), "end": False})
                    doc, doc_start = [], False
                    (test if (n_blocks // HOLD_EVERY) % TEST_EVERY == 0 else valid).append(text)
                    continue
                if i == 0 and title:
                    answer = b[0] if len(b[0]) > 80 else text
                    ask = QUESTIONS[n_blocks % len(QUESTIONS)]
                    train.append({"src": name + "-chat", "end": True,
                                  "text": f"User: {ask.format(title)}\n\nAssistant: {answer}"})
                    text = f"{title}: {text}"
                doc.append(text)
                sizes[name] = sizes.get(name, 0) + len(text.encode())
            if doc:
                train.append({"src": name, "text": "\n\n".join(doc), "end": True})
    with open(os.path.join(out, "train.jsonl"), "w", encoding="utf-8") as f:
        for d in train:
            f.write(json.dumps(d, ensure_ascii=False) + "\n")
    for fn, parts in (("valid.txt", valid), ("heldout.txt", test)):
        with open(os.path.join(out, fn), "w", encoding="utf-8") as f:
            f.write("\n\n".join(parts) + "\n")
    print("blocks", n_blocks, "training bytes", sizes, sum(sizes.values()), "docs", len(train))
    for fn in ("train.jsonl", "valid.txt", "heldout.txt"):
        print(fn, os.path.getsize(os.path.join(out, fn)))


if __name__ == "__main__":
    main()
