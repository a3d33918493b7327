"""Chat templates for make_chats.py: the parts that plain chat reaches, as the families publish them, with tools parts
of our own."""

QWEN3_END = r"""
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {{- message.tool_calls | tojson }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""
QWEN3_START = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {{- tools | tojson }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and @not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}"""
QWEN3_THINK = QWEN3_END[:QWEN3_END.rindex("{%- if add_generation_prompt %}")] + r"""{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
{%- endif %}"""
QWEN3_A = QWEN3_START.replace("@", "") + r"""
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in message.content %}
                {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
                {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}""" + QWEN3_END
# Messages whose content may be something other than text.
QWEN3_CONTENT = r"""
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
"""
QWEN3_B = QWEN3_START.replace("@", "message.content is string and ") + QWEN3_CONTENT + r"""        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}""" + QWEN3_END

QWEN3_THINKING = QWEN3_B.removesuffix(QWEN3_END) + QWEN3_THINK

QWEN3_INSTRUCT = QWEN3_START[:QWEN3_START.index("{%- set ns")] + "{%- for message in messages %}" + QWEN3_CONTENT + r"""        {{- '<|im_start|>' + message.role + '\n' + content }}
""" + QWEN3_END[QWEN3_END.index("        {%- if message.tool_calls"):QWEN3_END.index("    {%- if enable_thinking")] + "{%- endif %}"

MISTRAL_NEMO = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- Alternation, tools left out #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- tools | tojson }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif (message.tool_calls is defined and message.tool_calls is not none) %}
        {{- message.tool_calls | tojson }}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {{- message.content }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_V3 = MISTRAL_NEMO
for nemo, v3 in [("[INST]", "[INST] "),
                 ("elif (message.tool_calls is defined and message.tool_calls is not none) %}",
                  "elif message.tool_calls is defined and message.tool_calls is not none %}"),
                 ('message["content"] + eos_token}}', '" " + message["content"]|trim + eos_token}}')]:
    assert nemo in MISTRAL_V3
    MISTRAL_V3 = MISTRAL_V3.replace(nemo, v3)

GLM4_0414 = r"""[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
{%- for tool in tools %}

{{ tool | tojson }}
{%- endfor %}
{%- endif -%}

{%- for msg in messages %}
    {%- if msg.role == 'system' %}
<|system|>
{{ msg.content }}
    {%- endif %}
{%- endfor %}

{%- for message in messages if message.role != 'system' %}
    {%- set role = message['role'] %}
    {%- set content = message['content'] %}@VISIBLE
    {%- set meta = message.get("metadata", "") %}

    {%- if role == 'user' %}
<|user|>
{{ @NAME }}
    {%- elif role == 'assistant' and not meta %}
<|assistant|>
{{ @NAME }}
    {%- elif role == 'assistant' and meta %}
<|assistant|>{{ meta }}
{{ @NAME }}
    {%- elif role == 'observation' %}
<|observation|>
{{ @NAME }}
    {%- endif %}
{%- endfor %}
{% if add_generation_prompt %}<|assistant|>@OPEN{% endif %}"""


GLM4 = ("[gMASK]<sop>{% for item in messages %}{% if item['tools'] is defined %}<|system|>\n{{ item['tools'] | tojson }}"
        "{% endif %}{% if item['content'] %}<|{{ item['role'] }}|>{{ item['metadata'] }}\n{{ item['content'] }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>@{% endif %}")

DEEPSEEK2 = ("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}"
             "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}"
             "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}"
             "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}"
             "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")

R1 = ("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
      "{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}"
      "{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}"
      "{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}"
      "{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<\uff5cUser\uff5c>' + message['content']}}{%- endif %}"
      "{%- if message['role'] == 'assistant' and message['content'] is none %}{%- set ns.is_tool = false -%}"
      "{{ message['tool_calls'] | tojson }}{%- endif %}"
      "{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- if ns.is_tool %}"
      "{{'<\uff5ctool\u2581outputs\u2581end\uff5c>' + message['content'] + '<\uff5cend\u2581of\u2581sentence\uff5c>'}}"
      "{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}@STRIP"
      "{{'<\uff5cAssistant\uff5c>' + content + '<\uff5cend\u2581of\u2581sentence\uff5c>'}}{%- endif %}{%- endif %}"
      "{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{ message['content'] }}{%- endif %}{%- endfor -%}"
      "{% if ns.is_tool %}{{'<\uff5ctool\u2581outputs\u2581end\uff5c>'}}{% endif %}"
      "{% if add_generation_prompt and not ns.is_tool %}{{'<\uff5cAssistant\uff5c>@THINK'}}{% endif %}")
R1_STRIP = "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"

GEMMA3 = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {{ message['content'] | tojson }}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""

PHI35 = ("{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}"
         "{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}"
         "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
         "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
PHI3 = ("{% for message in messages %}{% if (message['role'] == 'user') %}"
        "{{'<|user|>' + '\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n'}}"
        "{% elif (message['role'] == 'assistant') %}{{message['content'] + '<|end|>' + '\n'}}{% endif %}{% endfor %}")

PHI4_MINI = ("{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}"
             "{{ message['tools'] | tojson }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
             "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}")

TULU = ("{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}"
        "{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}"
        "{% elif message['role'] == 'assistant' %}{% if not loop.last %}"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}{% else %}"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}")

TEMPLATES = {
    "qwen3": QWEN3_A,
    "qwen3, later": QWEN3_B,
    "qwen3 thinking": QWEN3_THINKING,
    "qwen3 instruct": QWEN3_INSTRUCT,
    "mistral nemo": MISTRAL_NEMO,
    "mistral v0.3": MISTRAL_V3,
    "glm4": GLM4.replace("@", "\n"),
    "glm4 without a newline": GLM4.replace("@", ""),
    "glm4 0414": GLM4_0414.replace("@VISIBLE", "").replace("@NAME", "content").replace("@OPEN", ""),
    "glm z1 0414": GLM4_0414.replace(
        "@VISIBLE", "\n    {%- set visible = content.split('</think>')[-1].strip() %}").replace("@NAME", "visible").replace(
        "@OPEN", "\n<think>"),
    "deepseek v2": DEEPSEEK2,
    "deepseek r1": R1.replace("@STRIP", "").replace("@THINK", ""),
    "deepseek r1, thinking": R1.replace("@STRIP", "").replace("@THINK", "<think>\\n"),
    "deepseek r1, stripping": R1.replace("@STRIP", R1_STRIP).replace("@THINK", ""),
    "deepseek r1 distilled": R1.replace("@STRIP", R1_STRIP).replace("@THINK", "<think>\\n"),
    "gemma3": GEMMA3,
    "phi3.5": PHI35,
    "phi3": "{{ bos_token }}" + PHI3,
    "phi3 medium": PHI3,
    "phi4 mini": PHI4_MINI,
    "olmo2": "{{ bos_token }}" + TULU,
    "tulu": TULU,
}
