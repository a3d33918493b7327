"""Writes tool_chats.json: what jinja2 renders of chats with tools, for the tests of src/text/chat_template.cc.

  pip install jinja2 && python make_tool_chats.py
The templates are Qwen2.5's and Qwen 3's with the tools parts that their models carry.
"""
import json
import pathlib

import jinja2
import jinja2.sandbox

import chat_templates

TOOL_LIST = r"""# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}"""
RESPONSE = r"""
        {%- if @FIRST or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- @CONTENT }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}"""
QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are helpful.' }}
    {%- endif %}
    {{- "\n\n""" + TOOL_LIST + r"""
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}""" + RESPONSE.replace("@FIRST", "(loop.index0 == 0)").replace(
        "@CONTENT", "message.content") + r"""
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
QWEN3_CALLS = r"""
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}"""


def qwen3(template, content):
    """The plain template with the published tools parts for those of chat_templates.py."""
    for ours, published in [
            ("    {{- tools | tojson }}", "    {%- if messages[0].role == 'system' %}\n        {{- messages[0].content + "
             "'\\n\\n' }}\n    {%- endif %}\n    {{- \"" + TOOL_LIST),
            ("            {{- message.tool_calls | tojson }}", QWEN3_CALLS),
            ("        {{- message.content }}\n", RESPONSE.replace("@FIRST", "loop.first").replace("@CONTENT", content) + "\n")]:
        assert template.count(ours) == 1, ours
        template = template.replace(ours, published)
    return template


TEMPLATES = {
    "qwen2.5": QWEN25,
    "qwen3": qwen3(chat_templates.QWEN3_A, "message.content"),
    "qwen3, later": qwen3(chat_templates.QWEN3_B, "content"),
    "qwen3 thinking": qwen3(chat_templates.QWEN3_THINKING, "content"),
    "qwen3 instruct": qwen3(chat_templates.QWEN3_INSTRUCT, "content"),
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a place <b>now</b> & 'soon', \u00fc",
                                      "parameters": {"type": "object", "properties": {
                                          "place": {"type": "string", "enum": []}, "days": {"minimum": 0.5, "default": None}},
                                          "required": ["place"], "additionalProperties": False}}},
    {"function": {"name": "zero", "parameters": {}}, "type": "function"},
]


def call(name, **arguments):
    return {"function": {"name": name, "arguments": arguments}}


CHATS = [
    {"tools": TOOLS, "messages": [{"role": "user", "content": "Hi"}]},
    {"tools": TOOLS[:1], "messages": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hi"}]},
    {"tools": TOOLS, "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call("get_weather", place="B\u00f6blingen", days=2, at=[1, {"x": True}])]},
        {"role": "tool", "content": "{\"sun\": 1}"}]},
    {"tools": TOOLS, "messages": [
        {"role": "system", "content": "S"}, {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call("zero"), call("get_weather", place="\"q\"\n")]},
        {"role": "tool", "content": "a"}, {"role": "tool", "content": "b"},
        {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Thanks"}]},
    {"tools": [], "messages": [
        {"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes", "tool_calls": [call("zero")]},
        {"role": "tool", "content": "0"}, {"role": "assistant", "content": "<think>ok</think>done", "tool_calls": [call("zero", a=1.5)]}]},
]


def render(template, chat):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    # As Hugging Face's tokenizers define it.
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env.from_string(template).render(messages=chat["messages"], tools=chat["tools"] or None,
                                            add_generation_prompt=True, bos_token="", eos_token="</s>")


def main():
    rows = [{"name": name, "template": template, "rendered": [render(template, chat) for chat in CHATS]}
            for name, template in TEMPLATES.items()]
    out = {"jinja2": jinja2.__version__, "chats": CHATS, "templates": rows}
    pathlib.Path(__file__).with_name("tool_chats.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
