#!/usr/bin/env python3
"""Chats with tools as Kimi's layout writes them: a template of the layout, rendered as Hugging Face's transformers renders chat templates, and
tiktoken's ids of what comes out.

usage: chats.py FOLDER           compare FOLDER/chats.jsonl with what is made now (exit 1: they differ)
       chats.py FOLDER --write   write it

A line has a request's body and the ids of its prompt. FOLDER/kimi has the vocabulary (make_vectors.py). K2_CHAT_TEMPLATE names another
template, a published one, to render with. Skipped (exit 77) where tiktoken or transformers are missing. K2_PYTHON names another python to run with.
"""
import json
import os
import sys

if os.environ.get("K2_PYTHON") and os.environ.get("K2_PYTHON") != sys.executable:
    os.environ["K2_PYTHON_FIRST"] = os.environ.pop("K2_PYTHON")
    os.execv(os.environ["K2_PYTHON_FIRST"], [os.environ["K2_PYTHON_FIRST"]] + sys.argv)
try:
    import tiktoken
    from transformers.utils.chat_template_utils import render_jinja_template

    import vocabularies as v
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TEMPLATE = """
{%- macro turn(kind, name) -%} <|im_{{ kind }}|>{{ name }}<|im_middle|> {%- endmacro -%}
{%- macro said(content) -%}
  {%- if content is string -%} {{ content }}
  {%- else -%} {%- for part in content or [] -%} {{ part.text }} {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- if tools -%} {{ turn("system", "tool_declare") }}{{ tools | tojson(separators=(",", ":"), sort_keys=true) }}<|im_end|> {%- endif -%}
{%- if messages[0].role != "system" -%}
  {{ turn("system", "system") }}You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>
{%- endif -%}
{%- for m in messages -%}
  {{ turn(m.role if m.role in ("user", "assistant") else "system", m.name or m.role) }}
  {%- if m.role == "tool" -%} ## Return of {{ m.tool_call_id + "\\n" }} {%- endif -%}
  {{ said(m.content) }}
  {%- if m.tool_calls -%}
    <|tool_calls_section_begin|>
    {%- for c in m.tool_calls -%}
      <|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments }}<|tool_call_end|>
    {%- endfor -%}
    <|tool_calls_section_end|>
  {%- endif -%}
  <|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%} {{ turn("assistant", "assistant") }} {%- endif -%}
"""

WEATHER = ('{"type":"function", "function":{"name":"get_weather", "description":"What is it like outside? <b>\\u00e9\\ud83d\\udc4d</b> \\"quoted\\"\\n",'
           ' "strict":false, "parameters":{"type":"object", "required":["city"], "properties":{"unit":{"enum":["C","F"],"type":"string"},'
           '"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":1e1,"default":3.0},"wind":{"type":"number","maximum":0.50}}}}}')
ADD = '{"function":{"parameters":{"properties":{"b":{"type":"number"},"a":{"type":"number"}},"type":"object"},"name":"add"},"type":"function"}'


def call(index, name, arguments):
    return json.dumps({"id": f"functions.{name}:{index}", "type": "function", "function": {"name": name, "arguments": arguments}})


BODIES = [
    '{"messages":[{"role":"user","content":"hi there"}]}',
    '{"messages":[{"role":"system","content":"be brief"},{"role":"user","name":"ann","content":"1+1?"}],"tools":[]}',
    '{"messages":[{"role":"user","content":[{"type":"text","text":"in "},{"type":"text","text":"parts \\u4f60\\u597d"}]},'
    '{"role":"assistant","content":"yes"},{"role":"user","content":""}],"tools":null}',
    f'{{"tools":[{WEATHER}],"messages":[{{"role":"user","content":"Weather in Beijing?"}}],"tool_choice":"auto"}}',
    f'{{"messages":[{{"role":"user","content":"3+4 and the weather"}},{{"role":"assistant","content":null,"tool_calls":['
    f'{call(0, "add", json.dumps({"b": 4, "a": 3}))},{call(1, "get_weather", json.dumps({"city": "Zürich"}, ensure_ascii=False))}]}},'
    '{"role":"tool","tool_call_id":"functions.add:0","name":"add","content":"7"},'
    '{"role":"tool","tool_call_id":"functions.get_weather:1","content":[{"type":"text","text":"sunny"},{"type":"text","text":", 20 C"}]}],'
    f'"tools":[{WEATHER},{ADD}]}}',
    '{"messages":[{"role":"system","content":""},{"role":"user","content":"go"},{"role":"assistant","content":"Let me see. ",'
    f'"tool_calls":[{call(0, "look", "")}]}},{{"role":"tool","tool_call_id":"functions.look:0","content":"two\\nlines\\t{{}}"}},'
    '{"role":"assistant","content":"Nothing."},{"role":"user","content":"thanks"}],"tool_choice":"none",'
    f'"tools":[{ADD}]}}',
    f'{{"messages":[{{"role":"assistant","tool_calls":[{call(0, "a.b", "not JSON [")}]}},'
    '{"role":"tool","tool_call_id":"call_17","content":"  spaces  "}]}',
]


def main():
    folder = sys.argv[1]
    template = TEMPLATE
    if os.environ.get("K2_CHAT_TEMPLATE"):
        with open(os.environ["K2_CHAT_TEMPLATE"], encoding="utf-8") as file:
            template = file.read()
    with open(os.path.join(folder, "kimi", "tokenizer_config.json"), encoding="utf-8") as file:
        special = {entry["content"]: int(i) for i, entry in json.load(file)["added_tokens_decoder"].items()}
    ranks = v.read_ranks(os.path.join(folder, "kimi", "tiktoken.model"))
    encoding = tiktoken.Encoding("kimi", pat_str=v.KIMI, mergeable_ranks=ranks, special_tokens=special)
    made = ""
    for body in BODIES:
        request = json.loads(body)
        rendered, _ = render_jinja_template(conversations=[request["messages"]], tools=request.get("tools") or None, chat_template=template,
                                            add_generation_prompt=True)
        made += f'{{"body":{body},"ids":{json.dumps(encoding.encode(rendered[0], allowed_special="all"))}}}\n'
    path = os.path.join(folder, "chats.jsonl")
    if sys.argv[2:] == ["--write"]:
        with open(path, "w", encoding="utf-8") as out:
            out.write(made)
        return
    with open(path, encoding="utf-8") as file:
        wrong = [i for i, (a, b) in enumerate(zip(file.read().splitlines(), made.splitlines(), strict=True)) if a != b]
    print(f"chats: {len(wrong)} of {len(BODIES)} differ{': ' + str(wrong) if wrong else ''}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
