"""Another engine on our model directory: its greedy tokens for fifty prompts are those of our engine.

usage: greedy.py transformers|vllm CHECKPOINT OUR_URL HELDOUT_JSONL

Prompts are token ids, as our engine makes them of a chat: the other engine knows nothing of our tokenizer. Sums are taken in another
order there, so where two tokens are as likely as each other up to TIE the engines may part; such a place is named, and the rest of
that answer is not compared.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

PROMPTS, NEW_TOKENS, TIE = 50, 24, 1e-4
START_SECONDS = 200  # vLLM's, on a busy machine


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]


def ours(url, line):
    """(prompt ids, greedy ids, gap between the two likeliest at each) of one line of a prompt file."""
    prompt = json.loads(line)
    messages = prompt.get("messages") or [{"role": "user", "content": prompt["prompt"]}]
    common = {"model": "k2rl", "temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    chat = post(url + "/v1/chat/completions", common | {"messages": messages, "logprobs": True, "top_logprobs": 2})
    gaps = [t["top_logprobs"][0]["logprob"] - t["top_logprobs"][1]["logprob"] for t in chat["logprobs"]["content"]]
    again = post(url + "/v1/completions", common | {"prompt": chat["prompt_token_ids"]})
    assert again["token_ids"] == chat["token_ids"], "chat and completion differ"
    return chat["prompt_token_ids"], chat["token_ids"], gaps


class Transformers:
    def __init__(self, checkpoint):
        import torch
        import transformers

        self.torch, self.name = torch, f"transformers {transformers.__version__}"
        torch.set_num_threads(1)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None

    def greedy(self, prompt):
        ids = self.torch.tensor([prompt])
        out = self.model.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS, attention_mask=self.torch.ones_like(ids), pad_token_id=258)
        return out[0, len(prompt) :].tolist()

    def close(self):
        pass


class Vllm:
    """vLLM's server on loopback. Its latent attention on a CPU takes only heads of 512 + 64; any other goes its usual way. Its own CPU
    operators are off: the rotary one of 0.32 turns slices of heads as if they stood side by side, and differs from transformers, too."""

    def __init__(self, checkpoint):
        self.name = "vLLM " + subprocess.run([sys.executable, "-c", "import vllm; print(vllm.__version__)"], capture_output=True, text=True,
                                             check=True).stdout.split()[-1]
        self.scratch = tempfile.mkdtemp(prefix="k2rl-vllm-", dir="/tmp")
        with open(os.path.join(checkpoint, "config.json")) as f:
            config = json.load(f)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        latent = config["kv_lora_rank"] == 512 and config["qk_rope_head_dim"] == 64
        env = os.environ | {"HOME": self.scratch, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
                            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "VLLM_MLA_DISABLE": "0" if latent else "1"}
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(os.path.join(self.scratch, "log"), "w+")
        self.child = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", checkpoint, "--served-model-name", "k2rl", "--host", "127.0.0.1",
             "--port", str(port), "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "4",
             "--compilation-config", json.dumps({"custom_ops": ["none"]})],
            env=env, stdout=self.log, stderr=self.log, start_new_session=True)
        self.await_health()

    def await_health(self):
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.child.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5)
                return
            except OSError:
                time.sleep(0.2)
        self.log.seek(0)
        errors = [line for line in self.log if "Error" in line]
        self.close()
        print(f"SKIPPED: {self.name} does not serve this directory: {errors[-1].strip() if errors else 'it has said nothing'}")
        sys.exit(77)

    def greedy(self, prompt):
        body = {"model": "k2rl", "prompt": prompt, "temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True, "return_token_ids": True}
        return post(self.url + "/v1/completions", body)["token_ids"]

    def close(self):
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()
        self.log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


def main():
    which, checkpoint, url, heldout = sys.argv[1:5]
    with open(heldout) as f:
        lines = [line for _, line in zip(range(PROMPTS), f)]
    assert len(lines) == PROMPTS, f"{heldout} has {len(lines)} prompts"
    answers = [ours(url, line) for line in lines]
    engine = {"transformers": Transformers, "vllm": Vllm}[which](os.path.abspath(checkpoint))
    equal, ties, distinct = 0, [], set()
    try:
        for i, (prompt, ids, gaps) in enumerate(answers):
            theirs = engine.greedy(prompt)
            assert len(theirs) == len(ids) == NEW_TOKENS
            distinct.add(tuple(ids))
            at = next((k for k in range(NEW_TOKENS) if ids[k] != theirs[k]), NEW_TOKENS)
            equal += at == NEW_TOKENS
            if at < NEW_TOKENS:
                assert gaps[at] <= TIE, f"prompt {i}, token {at}: ours {ids[at]}, theirs {theirs[at]}, {gaps[at]:.3g} between the likeliest"
                ties.append(f"prompt {i} token {at} ({gaps[at]:.1e})")
    finally:
        engine.close()
    assert len(distinct) > PROMPTS // 5, f"only {len(distinct)} different answers: nothing was learned that could be compared"
    print(f"{engine.name}: {equal} of {PROMPTS} greedy answers of {NEW_TOKENS} tokens equal, {len(distinct)} different; "
          f"parted at ties: {', '.join(ties) or 'none'}")


main()
