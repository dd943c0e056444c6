"""transformers loads a run's checkpoint; its greedy tokens and its log-probabilities are those that our engine serves.

usage: same_answers.py CHECKPOINT_DIRECTORY URL
"""
import json
import sys
import urllib.request

import torch
import transformers

DIFFERENCE_MAX = 1e-4
NEW_TOKENS = 24
checkpoint, url = sys.argv[1:3]
CHATS = ["fold abc", "copy hgfedc", "twin pa", "back mnopab", "What is this?"]
TEXTS = ["fold abc", "a", "\u00e4\u00f6\u00fc \u4e2d\u6587", "copy copy copy ab", "x" * 60]


def post(path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def ask(body, chat):
    """(prompt ids, new ids, log-probabilities of the new ids) of one answer that goes on to NEW_TOKENS."""
    body = body | {"model": "k2rl", "max_tokens": NEW_TOKENS, "ignore_eos": True, "return_token_ids": True}
    if chat:
        answer = post("/v1/chat/completions", body | {"logprobs": True})
        choice = answer["choices"][0]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
    else:
        answer = post("/v1/completions", body | {"logprobs": 1})
        choice = answer["choices"][0]
        logprobs = choice["logprobs"]["token_logprobs"]
    prompt = choice.get("prompt_token_ids") or answer["prompt_token_ids"]
    assert len(choice["token_ids"]) == len(logprobs) == NEW_TOKENS, answer
    assert answer["usage"]["prompt_tokens"] == len(prompt), answer
    return prompt, choice["token_ids"], logprobs


def requests():
    for text in CHATS:
        yield {"messages": [{"role": "user", "content": text}]}, True
    for text in TEXTS:
        yield {"prompt": text}, False
    yield {"prompt": [256, 97, 263, 98, 257, 99]}, False


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    wrong = {key: sorted(value) for key, value in info.items() if value}
    assert not wrong, f"transformers found {wrong}"
    assert type(model).__name__ == "DeepseekV3ForCausalLM", type(model)
    model.eval()
    model.generation_config.eos_token_id = None
    largest, answers = 0.0, 0
    for body, chat in requests():
        for temperature in (0.0, 1.0):
            prompt, ids, logprobs = ask(body | {"temperature": temperature, "seed": answers}, chat)
            logits = model(torch.tensor([prompt + ids]), use_cache=False).logits[0, len(prompt) - 1 : -1]
            theirs = torch.log_softmax(logits, -1)[torch.arange(NEW_TOKENS), torch.tensor(ids)]
            largest = max(largest, float((theirs - torch.tensor(logprobs)).abs().max()))
            answers += 1
            if temperature == 0:
                greedy = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS,
                                        attention_mask=torch.ones(1, len(prompt), dtype=torch.long), pad_token_id=258)
                assert greedy[0, len(prompt) :].tolist() == ids, f"{body}: {ids}, transformers {greedy[0, len(prompt):].tolist()}"
    assert largest <= DIFFERENCE_MAX, f"log-probabilities differ by up to {largest}"
    print(f"transformers {transformers.__version__}: {answers} answers of {NEW_TOKENS} tokens, greedy ones equal, "
          f"log-probabilities within {largest:.1e}")


main()
