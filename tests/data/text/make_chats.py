"""Writes chats.json: what jinja2 renders from chat templates, for the tests of src/text/chat_template.cc.

  pip install jinja2 gguf && python make_chats.py MODEL.gguf...
The models' own templates are read from the GGUF files and not stored; the others stand below and in chat_templates.py.
A chat that a template refuses is null.
"""
import json
import pathlib
import sys

import jinja2
import jinja2.sandbox
from gguf import GGUFReader

import chat_templates

LLAMA3_TURN = ("'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
               "'<|eot_id|>'")
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = " + LLAMA3_TURN +
          " %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}")
LLAMA3_OPEN = "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
              "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "chatml, spelt differently": """
{#- a comment #}
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" }}
{%- endif %}
""",
    "chatml with a default": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
                             "{{ '<|im_start|>system\nYou\\'re \"brief\".<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
                             "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3": LLAMA3 + LLAMA3_OPEN,
    "llama3, guarded": LLAMA3 + "{% if add_generation_prompt %}" + LLAMA3_OPEN + "{% endif %}",
    # The parts of Llama 3.1's and 3.2's template that plain chat reaches, with a tools part of our own.
    "llama3.2": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools is not none %}
    {{- tools | tojson }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- message.tool_calls | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
}
CHATS = [
    [("user", "Hi")],
    [("system", "Be terse."), ("user", "Hi")],
    [("system", ""), ("user", "")],
    [("user", "  What is 2+2?\n"), ("assistant", " 4 "), ("user", "\u00a0and 3+3?\u3000")],
    [("system", "\tS\n\n"), ("user", "a"), ("assistant", "b"), ("system", "again"), ("user", "{{ c }} <|im_end|>")],
    [("assistant", "I speak first"), ("user", "\u4f60\u597d \U0001f600")],
    [("user", "q"), ("assistant", "<think>\n\nhm\n\n</think>\n\nanswer\n"), ("user", "again")],
    [("system", "S"), ("user", "q"), ("assistant", "<think>a</think>b</think>\nc")],
    [("user", "<tool_response>x</tool_response>"), ("assistant", "\nno thought")],
    [("user", "q"), ("assistant", "<think>x</think>y"), ("assistant", "z")],
    [("system", "S"), ("user", "one"), ("user", "two")],
    [("system", "only")],
    [("system", "A"), ("user", "u"), ("assistant", " \u2003a\n"), ("system", "B"), ("user", "v</think>w ")],
]


def render(template, messages):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.globals["raise_exception"] = raise_exception
    try:  # BOS is left out: it is not put into text
        return env.from_string(template).render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="</s>")
    except jinja2.exceptions.TemplateError:
        return None


def main():
    templates = TEMPLATES | chat_templates.TEMPLATES
    models = {}
    for path in sys.argv[1:]:
        models[pathlib.Path(path).name] = GGUFReader(path).fields["tokenizer.chat_template"].contents()
    rows = []
    for name, template in list(templates.items()) + list(models.items()):
        row = {"name": name, "model_file": name} if name in models else {"name": name, "template": template}
        row["rendered"] = [render(template, [{"role": r, "content": c} for r, c in chat]) for chat in CHATS]
        rows.append(row)
    out = {"jinja2": jinja2.__version__, "chats": CHATS, "templates": rows}
    pathlib.Path(__file__).with_name("chats.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
