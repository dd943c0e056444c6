#!/usr/bin/env python3
"""The same model, configuration and weights in our trainer and engine and in what one would use instead, in turns; CSV on stdout.

usage: peers.py PEER_OURS CONFIG [THREADS...]      (default: 2)

Lines are name,value,unit,ratio,against: our tokens a second, and the median of (their seconds / ours), so above 1 we are faster.
  generate_B_tT    B prompts of 32 tokens and 32 new tokens each, greedy, T threads; new tokens by the time of all
  train_SxL_tT     one step on S sequences of L tokens
  ..._bf16         ours computes in bf16, else in f32
  ..._cpu          of processor time, all threads together: it stands on a busy machine too, but counts the time that a side spends waiting in a loop
  against          the program, the type of its weights, and the way it runs where it has several
A peer that is not there has a line "absent: reason".

PyTorch: DeepseekV3ForCausalLM of transformers, with the faster of its ways to run experts, and AdamW fused.
vLLM: K2_VLLM_PYTHON names an interpreter that imports it; it runs in the way that takes least processor time for a token.
llama.cpp: K2_NODE_MODULES names a folder with node-llama-cpp; weights in f32 as ours, and in f16, its usual type.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

if os.environ.get("K2_PYTHON") and os.environ["K2_PYTHON"] != sys.executable:
    python = os.environ.pop("K2_PYTHON")
    os.execv(python, [python] + sys.argv)
os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

HERE = os.path.dirname(os.path.abspath(__file__))
TURNS = 5
SEQUENCES, LENGTH = 16, 128
PROMPT, NEW = 32, 32
BATCHES = (1, 8, 64)
LEARNING_RATE = 1e-5
ways = {}  # how a peer runs


def row(name, value, unit, ratio, against):
    print(f"{name},{value},{unit},{ratio},{against}", flush=True)


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


class Process:
    """A program that answers one line to each line."""

    def __init__(self, *command, log=None):
        """`log` gets what it says on stderr, which is shown otherwise."""
        self.log = log and open(log, "w+", encoding="utf-8", errors="replace")
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=self.log)

    def line(self):
        answer = self.child.stdout.readline()
        if not answer:
            status, said = self.child.wait(), ""
            if self.log:
                self.log.seek(0)
                said = "".join(line for line in self.log if "Error" in line)[-200:].strip().replace("\n", " ").replace(",", ";")
            raise RuntimeError(f"{self.child.args[0]} ended with status {status} {said}")
        return answer.split()

    def ask(self, text):
        self.child.stdin.write(text + "\n")
        self.child.stdin.flush()
        return self.line()

    def close(self):
        self.child.stdin.close()
        self.child.wait()
        if self.log:
            self.log.close()


def compare(name, tokens, against, ours, theirs):
    """ours and theirs give (wall, cpu) seconds of a run."""
    ours(), theirs()
    mine, wall, cpu = [], [], []
    for turn in range(TURNS):
        first, second = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
        a = first()
        b = second()
        (w, c), (their_w, their_c) = (a, b) if turn % 2 == 0 else (b, a)
        mine.append((w, c))
        wall.append(their_w / w)
        cpu.append(their_c / c)
    for suffix, ratios, at in (("", wall, 0), ("_cpu", cpu, 1)):
        seconds = statistics.median(m[at] for m in mine)
        row(name + suffix, f"{tokens / seconds:.0f}", "tokens/s", f"{statistics.median(ratios):.2f}", against)


def prompts(vocab, batch):
    return [[(i * 31 + p * 7919 + p // 3) % vocab for p in range(PROMPT)] for i in range(batch)]


def vocab_of(directory):
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        return json.load(file)["vocab_size"]


def agreement(peer, ours, theirs):
    same = sum(a == b for a, b in zip(ours, theirs))
    say(f"{peer}: {same} of the {len(ours)} greedy tokens are ours")


def timed(run):
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


# ---- PyTorch


def torch_generate(torch, model, threads, vocab, ours):
    for batch in BATCHES:
        ids = torch.tensor(prompts(vocab, batch))
        out = []

        def theirs():
            def run():
                with torch.no_grad():
                    out[:] = model.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, use_cache=True,
                                            attention_mask=torch.ones_like(ids), pad_token_id=0, eos_token_id=vocab + 1)[0, PROMPT:].tolist()
            return timed(run)

        def mine():
            answer = ours.ask(f"generate {batch} {PROMPT} {NEW}")
            mine.ids = [int(t) for t in answer[2:]]
            return float(answer[0]), float(answer[1])

        compare(f"generate_{batch}_t{threads}", batch * NEW, f"pytorch f32 ({ways['pytorch']} experts)", mine, theirs)
        agreement(f"pytorch, batch {batch}", mine.ids, out)


def torch_train(torch, model, threads, vocab, ours, bf16):
    """With bf16 PyTorch computes under autocast, and its weights stay f32, as ours do."""
    tokens = SEQUENCES * LENGTH
    ids = torch.tensor([(i * 7919 + i // 3) % vocab for i in range(tokens)]).reshape(SEQUENCES, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    losses = [[], []]

    def theirs():
        def run():
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(ids, labels=ids, use_cache=False).loss
            losses[1].append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return timed(run)

    def mine():
        wall, cpu, loss = map(float, ours.ask(f"train {tokens} {LENGTH} {LEARNING_RATE}"))
        losses[0].append(loss)
        return wall, cpu

    name, kind = ("_bf16", "bf16 autocast") if bf16 else ("", "f32")
    compare(f"train_{SEQUENCES}x{LENGTH}_t{threads}{name}", tokens, f"pytorch {kind} ({ways['pytorch']} experts)", mine, theirs)
    difference = max(abs(a - b) for a, b in zip(*losses))
    say(f"pytorch {kind}: losses of {len(losses[0])} steps differ by at most {difference:.1e}")


def fastest_experts(torch, model, vocab):
    """transformers can run experts one by one or as one grouped product."""
    ways["pytorch"] = "eager"
    if not hasattr(model, "set_experts_implementation"):
        return
    ids = torch.tensor(prompts(vocab, 16))
    seconds = {}
    for way in ("eager", "grouped_mm"):
        try:
            model.set_experts_implementation(way)
            runs = [timed(lambda: model(ids, labels=ids, use_cache=False).loss.backward())[1] for _ in range(4)]
            seconds[way] = min(runs[1:])
        except (RuntimeError, ValueError, NotImplementedError) as error:
            say(f"pytorch cannot run experts as {way}: {error}")
    model.zero_grad()
    best = min(seconds, key=seconds.get)
    model.set_experts_implementation(best)
    ways["pytorch"] = best
    say(f"pytorch runs experts as {best}")


def peer_torch(directory, threads, ours, ours_bf16):
    try:
        import torch
        import transformers
    except ImportError as error:
        row(f"pytorch_t{threads}", "", "", "", f"absent: {error}")
        return
    torch.set_num_threads(threads)
    say(f"torch {torch.__version__}, transformers {transformers.__version__}, {threads} threads")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    vocab = model.config.vocab_size
    fastest_experts(torch, model, vocab)
    torch_generate(torch, model.eval(), threads, vocab, ours)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    torch_train(torch, model.train(), threads, vocab, ours, False)
    model.load_state_dict(start)
    torch_train(torch, model, threads, vocab, ours_bf16, True)


# ---- llama.cpp


def peer_llama(directory, threads, ours, ours_bf16):
    modules = os.environ.get("K2_NODE_MODULES", "")
    node = shutil.which("node")
    name = f"llama_t{threads}"
    if not node or not os.path.isdir(os.path.join(modules, "node-llama-cpp")):
        row(name, "", "", "", "absent: no node" if not node else "absent: K2_NODE_MODULES names no folder with node-llama-cpp")
        return
    try:
        import gguf
    except ImportError as error:
        row(name, "", "", "", f"absent: {error}")
        return
    for kind in ("f32", "f16"):
        path = os.path.join(directory, f"{kind}.gguf")
        gguf.convert(directory, path, kind == "f16")
        try:
            theirs = Process(node, os.path.join(HERE, "llama.mjs"), modules, path, str(threads))
            theirs.line()
        except RuntimeError as error:
            row(name, "", "", "", f"absent: {error}")
            return
        ids = ",".join(map(str, prompts(vocab_of(directory), 1)[0]))
        last = {}

        def run(who, process, text):
            answer = process.ask(text)
            last[who] = [int(t) for t in answer[2:]]
            return float(answer[0]), float(answer[1])

        for mine, suffix in ((ours, ""), (ours_bf16, "_bf16")) if kind == "f16" else ((ours, ""),):
            compare(f"generate_1_t{threads}{suffix}", NEW, f"llama.cpp {kind}", lambda: run("ours", mine, f"generate 1 {PROMPT} {NEW}"),
                    lambda: run("theirs", theirs, f"generate {ids} {NEW}"))
            agreement(f"llama.cpp {kind}{suffix and ', ours in bf16'}", last["ours"], last["theirs"])
        theirs.close()


# ---- vLLM


VLLM_WAYS = ("compiled", "eager", "eager, torch operators")  # vllm_side.py says what they are
vllm_best = []  # the fastest of them, once it is known


def vllm_start(directory, threads, way):
    cache = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "vllm_cache")
    os.makedirs(cache, exist_ok=True)
    theirs = Process(os.environ["K2_VLLM_PYTHON"], os.path.join(HERE, "vllm_side.py"), directory, str(threads), way, cache,
                     log=os.path.join(cache, "log"))
    theirs.line()
    return theirs


def vllm_fastest(directory, threads):
    """Its processor time for a batch of each size, by way; the fastest stays on. Of a later number of threads only that one is started."""
    seconds, running, failed = {}, {}, ""
    for way in vllm_best or VLLM_WAYS:
        try:
            running[way] = vllm_start(directory, threads, way)
            runs = [[float(running[way].ask(f"generate {batch} {PROMPT} {NEW}")[1]) for _ in range(3)] for batch in BATCHES]
            seconds[way] = sum(min(r[1:]) / batch for r, batch in zip(runs, BATCHES))
            say(f"vllm, {way}: " + ", ".join(f"{min(r[1:]):.3f} s at batch {batch}" for r, batch in zip(runs, BATCHES)) + " of processor time")
        except RuntimeError as error:
            failed = str(error)
            say(f"vllm, {way}: does not run this model: {error}")
            running.pop(way, None)
    if not seconds:
        raise RuntimeError(failed)
    best = min(seconds, key=seconds.get)
    for way, process in running.items():
        if way != best:
            process.close()
    vllm_best[:] = [best]
    return best, running[best]


def peer_vllm(directory, threads, ours):
    python = os.environ.get("K2_VLLM_PYTHON", "")
    name = f"vllm_t{threads}"
    if not python or subprocess.run([python, "-c", "import vllm"], capture_output=True, check=False).returncode != 0:
        row(name, "", "", "", "absent: K2_VLLM_PYTHON names no interpreter that imports vllm")
        return
    last = {}

    def run(who, process, text):
        answer = process.ask(text)
        last[who] = [int(t) for t in answer[2:]]
        return float(answer[0]), float(answer[1])

    try:
        way, theirs = vllm_fastest(directory, threads)
        for batch in BATCHES:
            text = f"generate {batch} {PROMPT} {NEW}"
            compare(f"generate_{batch}_t{threads}", batch * NEW, f"vllm f32 ({way.replace(',', ' with')})", lambda: run("ours", ours, text),
                    lambda: run("theirs", theirs, text))
            agreement(f"vllm, batch {batch}", last["ours"], last["theirs"])
        theirs.close()
    except RuntimeError as error:
        row(name, "", "", "", f"absent: it does not run this model: {error}")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print("name,value,unit,ratio,against")
    for threads in [int(t) for t in sys.argv[3:]] or [2]:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        with tempfile.TemporaryDirectory(prefix="k2_peers_") as directory:
            ours, ours_bf16 = (Process(sys.argv[1], sys.argv[2], str(threads), compute) for compute in ("f32", "bf16"))
            ours.ask(f"save {directory}")
            peer_vllm(directory, threads, ours)
            peer_llama(directory, threads, ours, ours_bf16)
            peer_torch(directory, threads, ours, ours_bf16)
            ours.close()
            ours_bf16.close()


if __name__ == "__main__":
    main()
