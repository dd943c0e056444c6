#!/usr/bin/env python3
"""Write tests/unit/token/vectors: small vocabularies, and the ids that tiktoken and Hugging Face's tokenizers give for some lines.

usage: make_vectors.py FOLDER

expected.txt has a line for each text: reader, file, pattern, "plain" or "trusted", the text's bytes in hexadecimal ("-": none), ids.
"""
import json
import os
import sys

import tiktoken
import tokenizers

import lines
import vocabularies as v
from compare import ordered, text_of

NAMES = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", None, "<|start_header_id|>", "<|end_header_id|>", None, "[EOT]",
         "<|im_system|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
         "<|tool_call_end|>", None, "<|im_middle|>"]
SHOWN = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")


def kimi_directory(folder, ranks):
    """Names as Kimi-K2's directory has them, behind few ranks."""
    os.makedirs(folder, exist_ok=True)
    special = {f"<|reserved_token_{len(ranks) + i}|>" if i >= len(NAMES) or not NAMES[i] else NAMES[i]: len(ranks) + i for i in range(256)}
    entries = {str(special[n]): {"content": n, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": n not in SHOWN}
               for n in NAMES if n}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as out:
        json.dump({"added_tokens_decoder": entries, "bos_token": "[BOS]", "eos_token": "[EOS]", "tokenizer_class": "TikTokenTokenizer"}, out, indent=1)
    v.save_ranks(ranks, os.path.join(folder, "tiktoken.model"))
    return special


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    records = lines.lines(7, 40, ordered)
    text = lines.prose(7, 60_000, ordered) + "\n".join(text_of(r) for r in lines.lines(8, 400, ordered))
    out = open(os.path.join(folder, "expected.txt"), "w", encoding="ascii")

    def put(reader, file, pattern, mode, record, ids):
        out.write(f"{reader} {file} {pattern or '-'} {mode} {record.hex() or '-'} {' '.join(map(str, ids))}\n")

    for style in v.STYLES:
        file = f"{style}.json"
        trained = v.train(style, text, 600)
        path = v.save(trained, os.path.join(folder, file), pairs=style != "deepseek")
        t = tokenizers.Tokenizer.from_file(path)
        for i, record in enumerate(records):
            mode = "trusted" if i % 3 == 0 else "plain"
            t.encode_special_tokens = mode == "plain"
            put("json", file, "", mode, record, t.encode(text_of(record), add_special_tokens=False).ids)
        if style != "qwen2":
            continue
        ranks = v.ranks_of(trained)
        special = kimi_directory(os.path.join(folder, "kimi"), ranks)
        for pattern, regex in v.PATTERNS.items():
            plain = tiktoken.Encoding(pattern, pat_str=regex, mergeable_ranks=ranks, special_tokens={})
            for record in records:
                put("tiktoken", "kimi/tiktoken.model", pattern, "plain", record, plain.encode_ordinary(text_of(record)))
        e = tiktoken.Encoding("kimi", pat_str=v.KIMI, mergeable_ranks=ranks, special_tokens=special)
        for record in records[::3] + [b"<|im_user|>user<|im_middle|>hi<|im_end|>", b"[BOS][EOS]<|reserved_token_%d|>" % (len(ranks) + 200)]:
            put("tiktoken", "kimi", "", "trusted", record, e.encode(text_of(record), allowed_special="all"))
    out.close()


if __name__ == "__main__":
    main()
