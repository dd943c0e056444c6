"""A stock OpenAI client talks to the proxy, plain and streaming, also while engines die in mid-answer.

usage: openai_client.py PROXY_ALONE PROXY_STUB       starts both, on free ports
       openai_client.py URL MODEL                    asks a proxy that runs already
Exit status 77 with a reason when the client is not installed. K2_PYTHON names the interpreter that has it.
"""
import os
import subprocess
import sys

if os.environ.get("K2_PYTHON") and os.environ.get("K2_PYTHON_USED") != "1":
    os.environ["K2_PYTHON_USED"] = "1"
    os.execv(os.environ["K2_PYTHON"], [os.environ["K2_PYTHON"]] + sys.argv)
try:
    import openai
except ImportError as reason:
    print(f"skipped: no OpenAI client for {sys.executable} ({reason}); K2_PYTHON may name an interpreter that has one")
    sys.exit(77)


def start(*command):
    """A child that ends when we do: its standard input is ours to hold. Gives it and the address that it prints."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line = child.stdout.readline()
    assert line.startswith("listening on "), line
    return child, line.split()[-1]


def completion(client, model, **more):
    return client.completions.create(**(dict(model=model, prompt="The quick brown fox", max_tokens=24, temperature=0) | more))


def chat(client, model, **more):
    user = [{"role": "user", "content": "Say something."}]
    return client.chat.completions.create(**(dict(model=model, messages=user, max_tokens=24, temperature=0) | more))


def check_all(client, model):
    plain = completion(client, model, logprobs=1, n=1, frequency_penalty=0, user="someone")
    assert plain.object == "text_completion" and plain.model == model
    assert 1 <= plain.usage.completion_tokens <= 24
    assert plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens
    assert plain.choices[0].finish_reason in ("stop", "length")
    assert len(plain.choices[0].logprobs.token_logprobs) == plain.usage.completion_tokens
    assert all(value <= 0 for value in plain.choices[0].logprobs.token_logprobs)

    text, finish, usage = "", None, None
    for chunk in completion(client, model, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.text
            finish = choice.finish_reason or finish
    assert text == plain.choices[0].text and finish == plain.choices[0].finish_reason
    assert usage.completion_tokens == plain.usage.completion_tokens

    whole = chat(client, model, logprobs=True)
    assert whole.object == "chat.completion" and whole.choices[0].message.role == "assistant"
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    text, role = "", None
    for chunk in chat(client, model, stream=True):
        assert chunk.object == "chat.completion.chunk"
        for choice in chunk.choices:
            text += choice.delta.content or ""
            role = role or choice.delta.role
    assert text == whole.choices[0].message.content and role == "assistant"

    assert model in [m.id for m in client.models.list().data]
    if model != "stub-model":  # the stub answers with what it has
        check_choices(client, model)
        check_logprobs(client, model)
        check_ends(client, model)
        check_what_was_known(client, model)
    else:
        check_calls(client, model)
    check_refusals(client, model)
    return plain.choices[0].text, whole.choices[0].message.content


def check_choices(client, model):
    """n answers, in order; in a stream their chunks interleave and each is the one of the whole response."""
    ask = dict(n=3, seed=5, temperature=1.0, max_tokens=12, extra_body={"ignore_eos": True})
    whole = completion(client, model, **ask)
    assert [c.index for c in whole.choices] == [0, 1, 2] and len({c.text for c in whole.choices}) > 1
    assert whole.usage.completion_tokens == 36
    texts, ended, usage = [""] * 3, set(), None
    for chunk in completion(client, model, stream=True, stream_options={"include_usage": True}, **ask):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert choice.index not in ended
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ended.add(choice.index)
    assert texts == [c.text for c in whole.choices] and ended == {0, 1, 2} and usage == whole.usage
    talk = chat(client, model, **ask)
    assert [c.index for c in talk.choices] == [0, 1, 2] and all(c.message.role == "assistant" for c in talk.choices)
    assert completion(client, model, **(ask | {"n": 1})).choices[0].text == whole.choices[0].text


def check_logprobs(client, model):
    plain = completion(client, model, logprobs=4, extra_body={"ignore_eos": True}).choices[0]
    told = plain.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.text_offset) == len(told.top_logprobs) == 24
    for token, logprob, offset, tops in zip(told.tokens, told.token_logprobs, told.text_offset, told.top_logprobs):
        assert len(tops) in (4, 5) and tops[token] == logprob == max(tops.values())  # greedy
        if not token.startswith("token_id:"):
            assert plain.text[offset : offset + len(token)] == token
    streamed = []
    for chunk in completion(client, model, logprobs=4, stream=True, extra_body={"ignore_eos": True}):
        for choice in chunk.choices:
            streamed += choice.logprobs.text_offset if choice.logprobs else []
    assert streamed == told.text_offset

    prompt = "The quick brown fox"
    echo = completion(client, model, logprobs=4, echo=True, extra_body={"ignore_eos": True}).choices[0]
    assert echo.text == prompt + plain.text
    assert echo.logprobs.token_logprobs[0] is None and echo.logprobs.token_logprobs[-24:] == told.token_logprobs
    assert "".join(echo.logprobs.tokens[: len(prompt)]) == prompt and echo.logprobs.text_offset[: len(prompt)] == list(range(len(prompt)))

    content = chat(client, model, logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True}).choices[0].logprobs.content
    assert len(content) == 24
    for token in content:
        assert len(token.top_logprobs) == 3 and token.top_logprobs[0].logprob == token.logprob
        assert token.bytes is None or bytes(token.bytes).decode() == token.token


def check_ends(client, model):
    """Stop strings, also where one of their characters was held back; bias; penalties."""
    ask = dict(logit_bias={"65": 100})  # "A" and nothing else
    cut = completion(client, model, stop=["AAAA"], **ask)
    assert cut.choices[0].text == "" and cut.choices[0].finish_reason == "stop" and cut.usage.completion_tokens == 4
    kept = completion(client, model, stop=["AAAA"], extra_body={"include_stop_str_in_output": True, "min_tokens": 6}, **ask)
    assert kept.choices[0].text == "AAAAAAA", kept
    streamed = [c.text for chunk in completion(client, model, stop=["AAAB"], stream=True, **ask) for c in chunk.choices]
    assert "".join(streamed) == "A" * 24
    ids = completion(client, model, frequency_penalty=2, presence_penalty=2,
                     extra_body={"repetition_penalty": 50, "ignore_eos": True, "return_token_ids": True}).choices[0].token_ids
    assert len(ids) == 24 and len(set(ids)) >= 20, ids  # one may come again where all others are less likely still


def check_calls(client, model):
    """A call of a tool, whole and put together from its pieces, and in the next request."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    whole = chat(client, model, tools=tools).choices[0].message
    assert whole.content is None and len(whole.tool_calls) == 1, whole
    call = whole.tool_calls[0]
    assert (call.id, call.type, call.function.name) == ("functions.f:0", "function", "f") and len(call.function.arguments) == 24
    pieces, ids = "", set()
    for chunk in chat(client, model, tools=tools, tool_choice="auto", stream=True):
        for piece in (p for c in chunk.choices for p in c.delta.tool_calls or []):
            assert piece.index == 0
            pieces += piece.function.arguments or ""
            ids.add((piece.id, piece.function.name))
    assert pieces == call.function.arguments and ids - {(None, None)} == {(call.id, "f")}
    history = [{"role": "user", "content": "x"}, whole.model_dump(), {"role": "tool", "tool_call_id": call.id, "name": "f", "content": "7"}]
    assert chat(client, model, tools=tools, tool_choice="none", messages=history).choices[0].message is not None


def check_what_was_known(client, model):
    """Which stop ended the answer, how much of the prompt had been computed before, and what the prompt is worth, in a stream too."""
    ask = dict(logit_bias={"65": 100}, prompt="The quick brown fox, asked about more than once, jumps over the lazy dog again and again.")
    for stop, more, reason in (("AAAA", {}, "AAAA"), (None, {"stop_token_ids": [65]}, 65), (None, {"ignore_eos": True}, None)):
        assert completion(client, model, stop=stop, extra_body=more, **ask).choices[0].stop_reason == reason
        ends = [c.stop_reason for chunk in completion(client, model, stop=stop, extra_body=more, stream=True, **ask) for c in chunk.choices if c.finish_reason]
        assert ends == [reason], ends
    again = completion(client, model, **ask).usage
    assert 0 < again.prompt_tokens_details.cached_tokens < again.prompt_tokens, again
    streamed = [chunk.usage for chunk in completion(client, model, stream=True, stream_options={"include_usage": True}, **ask) if chunk.usage]
    assert streamed[0].prompt_tokens_details.cached_tokens == again.prompt_tokens_details.cached_tokens
    scored = completion(client, model, extra_body={"prompt_logprobs": 2}, **ask).choices[0].prompt_logprobs
    first = next(iter(completion(client, model, extra_body={"prompt_logprobs": 2}, stream=True, **ask))).choices[0].prompt_logprobs
    assert len(scored) == again.prompt_tokens and first == scored


def check_refusals(client, model):
    """Bad requests arrive as the client's own exceptions and name the parameter."""
    user = [{"role": "user", "content": "x"}]
    refused = [
        (openai.BadRequestError, "max_tokens", client.completions, dict(model=model, prompt="x", max_tokens=-1)),
        (openai.BadRequestError, "n", client.completions, dict(model=model, prompt="x", n=0)),
        (openai.BadRequestError, "best_of", client.completions, dict(model=model, prompt="x", best_of=3)),
        (openai.BadRequestError, "logprobs", client.completions, dict(model=model, prompt="x", logprobs=21)),
        (openai.BadRequestError, "presence_penalty", client.completions, dict(model=model, prompt="x", presence_penalty=3)),
        (openai.BadRequestError, "temperature", client.chat.completions, dict(model=model, messages=user, temperature="hot")),
        (openai.BadRequestError, "messages", client.chat.completions, dict(model=model, messages=[])),
        (openai.BadRequestError, "messages[0].role", client.chat.completions,
         dict(model=model, messages=[{"role": "oracle", "content": "x"}])),
    ]
    if model != "stub-model":  # the stub answers for any
        refused += [
            (openai.BadRequestError, "tools", client.chat.completions,
             dict(model=model, messages=user, tools=[{"type": "function", "function": {"name": "f"}}])),
            (openai.NotFoundError, "model", client.completions, dict(model="no-such-model", prompt="x")),
            (openai.NotFoundError, "model", client.chat.completions, dict(model="no-such-model", messages=user, stream=True)),
        ]
    for kind, param, where, arguments in refused:
        try:
            where.create(**arguments)
        except kind as error:
            assert error.param == param and error.type == "invalid_request_error", (arguments, error)
        else:
            raise AssertionError(f"taken: {arguments}")


def connect(url):
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)


def main():
    if sys.argv[1].startswith("http://"):
        check_all(connect(sys.argv[1]), sys.argv[2])
        print("ok: plain and streaming, completions and chat")
        return
    proxy_program, stub_program = sys.argv[1:3]
    children = []
    try:
        healthy, healthy_url = start(stub_program, "0")
        children.append(healthy)
        proxy, url = start(proxy_program, "--listen", "127.0.0.1:0", "--engine", healthy_url, "--set", "log.level=error")
        children.append(proxy)
        right = check_all(connect(url), "stub-model")

        # Two engines of which one dies in mid-answer again and again: the client gets the same answers.
        dying, dying_url = start(stub_program, "0", "die-after=5", "times=1000")
        children.append(dying)
        both, url = start(proxy_program, "--listen", "127.0.0.1:0", "--engine", dying_url, "--engine", healthy_url,
                          "--set", "log.level=error", "--set", "proxy.health_ms=20", "--set", "proxy.retries=100")
        children.append(both)
        for _ in range(3):
            assert check_all(connect(url), "stub-model") == right
        print("ok: plain and streaming, completions and chat, and with an engine that dies in mid-answer")
    finally:
        for child in children:
            child.kill()
            child.wait()


main()
