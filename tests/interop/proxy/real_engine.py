"""Real engines behind the proxy: an engine is killed in mid-answer, and the client's stream is still, to the token, the character
and the bit of each log-probability, the answer that nobody disturbed. Then the stock OpenAI client, where it is installed.

usage: real_engine.py K2RL SOURCE_DIR
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

k2rl, source = sys.argv[1:3]
children = []


def start(*arguments):
    """A server of ours, and the address that it prints."""
    child = subprocess.Popen([k2rl, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    children.append(child)
    line = child.stdout.readline()
    urls = [word for word in line.split() if word.startswith("http://")]
    assert urls, f"k2rl {arguments[0]} printed {line!r}"
    return child, urls[0]


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def fields(choice, chat):
    """Ids, text and log-probabilities of a choice, whole or of one chunk."""
    logprobs = choice.get("logprobs")
    if chat:
        text = (choice.get("delta") or choice.get("message"))["content"]
        return choice["token_ids"], text, [t["logprob"] for t in logprobs["content"]] if logprobs else []
    return choice["token_ids"], choice["text"], logprobs["token_logprobs"] if logprobs else []


def ask(url, chat, seed, stream, at=None, then=None):
    """One answer; `then` is called once, when `at` tokens have come."""
    body = {"max_tokens": 90, "seed": seed, "temperature": 1.0, "ignore_eos": True, "stream": stream}
    if chat:
        body |= {"messages": [{"role": "user", "content": "12+7="}], "logprobs": True}
    else:
        body |= {"prompt": "hello w\u00f6rld", "logprobs": 1}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    ids, text, logprobs, ended = [], "", [], False
    with urllib.request.urlopen(request, timeout=60) as answer:
        if not stream:
            return fields(json.load(answer)["choices"][0], chat)
        for line in answer:
            line = line.decode().strip()
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                ended = True
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                more = fields(choice, chat)
                ids, text, logprobs = ids + more[0], text + more[1], logprobs + more[2]
            if then and len(ids) >= at:
                then()
                then = None
    assert ended
    return ids, text, logprobs


def kill_in_mid_answer(model):
    engine = ["rollout", "--model", model, "--name", "m", "--listen"]
    engines = {url: child for child, url in (start(*engine, "127.0.0.1:0"), start(*engine, "127.0.0.1:0"))}
    _, url = start("proxy", "--listen", "127.0.0.1:0", *[a for u in engines for a in ("--engine", u)],
                   "--set", "proxy.health_ms=20")
    killed = trials = 0
    # On a busy machine an answer may be over before this program gets to the kill: then there are more trials.
    while trials < 6 or (killed == 0 and trials < 60):
        trial, trials = trials, trials + 1
        chat = bool(trial % 2)
        want = ask(url, chat, trial, stream=False)

        def kill_the_busy_one():
            nonlocal killed
            for e in get(url + "/k2/engines")["engines"]:
                if e["requests"] > 0:
                    engines[e["url"]].send_signal(signal.SIGKILL)
                    engines[e["url"]].wait()
                    killed += 1

        got = ask(url, chat, trial, True, at=5 + 7 * (trial % 6), then=kill_the_busy_one)
        assert got == want, f"trial {trial}:\n{got}\n{want}"
        for at, child in list(engines.items()):  # a new one in the place of the dead
            if child.poll() is not None:
                engines[at] = start(*engine, at.removeprefix("http://"))[0]
    assert killed > 0, "every answer was over before its engine could be killed"
    print(f"ok: {killed} engines killed in mid-answer, {trials} answers whole and equal")
    return url


def main():
    scratch = tempfile.mkdtemp(prefix="k2rl-proxy-", dir="/tmp")
    try:
        subprocess.run([k2rl, "master", "--cfg", os.path.join(source, "configs/quickstart.json"), "--pretrain",
                        "--set", f"run.dir={scratch}/run", "--set", "pretrain.steps=5", "--set", "data.task_corpus=2000"],
                       cwd=source, check=True, stdout=subprocess.DEVNULL, timeout=100)
        model = sorted(glob.glob(f"{scratch}/run/checkpoints/step_*"))[-1]
        url = kill_in_mid_answer(model)
        client = os.path.join(os.path.dirname(os.path.abspath(__file__)), "openai_client.py")
        status = subprocess.run([sys.executable, client, url, "m"], timeout=100).returncode
        assert status in (0, 77), f"openai_client.py ended with {status}"
    finally:
        for child in children:
            child.kill()
            child.wait()
        shutil.rmtree(scratch)


main()
