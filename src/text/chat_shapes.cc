// The table. The templates are written without the white space that does not change their output.
#include "src/text/chat_shapes.h"

namespace blockgtq {
namespace {

#define BGTQ_CHATML_TURN \
  "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
#define BGTQ_CHATML_OPEN "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define BGTQ_LLAMA3_TURN                                                \
  "'<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + " \
  "message.content | trim + '<|eot_id|>'"
#define BGTQ_LLAMA3_OPEN "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
#define BGTQ_LLAMA3_LOOP                                                                                   \
  "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = " BGTQ_LLAMA3_TURN \
  " %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
#define BGTQ_QWEN3_START(condition)                                                                     \
  "{% if tools %}{% anything %}{% else %}{% if messages[0].role == 'system' %}"                         \
  "{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}{% endif %}"         \
  "{% set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}"                \
  "{% for message in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}"            \
  "{% if ns.multi_step_tool and message.role == 'user' and " condition                                  \
  "not(message.content.startswith("                                                                     \
  "'<tool_response>') and message.content.endswith('</tool_response>')) %}{% set ns.multi_step_tool = " \
  "false %}"                                                                                            \
  "{% set ns.last_query_index = index %}{% endif %}{% endfor %}"
#define BGTQ_QWEN3_END                                                                                      \
  "{% if loop.index0 > ns.last_query_index %}{% if loop.last or (not loop.last and reasoning_content) %}"   \
  "{{ '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + "                  \
  "'\\n</think>\\n\\n' + "                                                                                  \
  "content.lstrip('\\n') }}{% else %}{{ '<|im_start|>' + message.role + '\\n' + content }}{% endif %}{% "   \
  "else %}"                                                                                                 \
  "{{ '<|im_start|>' + message.role + '\\n' + content }}{% endif %}{% if message.tool_calls %}{% anything " \
  "%}"                                                                                                      \
  "{% endif %}{{ '<|im_end|>\\n' }}{% elif message.role == 'tool' %}{% anything %}{% endfor %}"
// The switch of thinking, of the models that have one; the others (2507) always think.
#define BGTQ_QWEN3_OPEN                                                                                    \
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"                                         \
  "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% " \
  "endif %}"                                                                                               \
  "{% endif %}"
#define BGTQ_QWEN3_THINK "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
#define BGTQ_QWEN3_LATER                                                                                \
  BGTQ_QWEN3_START("message.content is string and ")                                                    \
  "{% for message in messages %}{% if message.content is string %}{% set content = message.content %}"  \
  "{% else %}{% set content = '' %}{% endif %}"                                                         \
  "{% if (message.role == 'user') or (message.role == 'system' and not loop.first) %}"                  \
  "{{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}"                        \
  "{% elif message.role == 'assistant' %}{% set reasoning_content = '' %}"                              \
  "{% if message.reasoning_content is string %}{% set reasoning_content = message.reasoning_content %}" \
  "{% else %}{% if '</think>' in content %}{% set reasoning_content = "                                 \
  "content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"                    \
  "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}{% endif %}" BGTQ_QWEN3_END
// Qwen 3 Instruct (2507) does not think.
#define BGTQ_QWEN3_INSTRUCT                                                                            \
  "{% if tools %}{% anything %}{% else %}{% if messages[0].role == 'system' %}"                        \
  "{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}{% endif %}"        \
  "{% for message in messages %}{% if message.content is string %}{% set content = message.content %}" \
  "{% else %}{% set content = '' %}{% endif %}"                                                        \
  "{% if (message.role == 'user') or (message.role == 'system' and not loop.first) %}"                 \
  "{{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}"                       \
  "{% elif message.role == 'assistant' %}{{ '<|im_start|>' + message.role + '\\n' + content }}"        \
  "{% if message.tool_calls %}{% anything %}{% endif %}{{ '<|im_end|>\\n' }}"                          \
  "{% elif message.role == 'tool' %}{% anything %}{% endfor %}"                                        \
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define BGTQ_MISTRAL(inst, calls, answer)                                                                  \
  "{% if messages[0].role == 'system' %}{% set system_message = messages[0].content %}"                    \
  "{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}"          \
  "{% if not tools is defined %}{% set tools = none %}{% endif %}"                                         \
  "{% set user_messages = loop_messages | selectattr('role', 'equalto', 'user') | list %}"                 \
  "{% set ns = namespace() %}{% set ns.index = 0 %}{% for message in loop_messages %}"                     \
  "{% if not (message.role == 'tool' or message.role == 'tool_results' or "                                \
  "(message.tool_calls is defined and message.tool_calls is not none)) %}"                                 \
  "{% if (message.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('After the optional system " \
  "message, conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"           \
  "{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}{{ bos_token }}"                                \
  "{% for message in loop_messages %}"                                                                     \
  "{% if message.role == 'user' %}{% if tools is not none and (message == user_messages[-1]) %}"           \
  "{% anything %}{% endif %}{% if loop.last and system_message is defined %}"                              \
  "{{ '" inst                                                                                              \
  "' + system_message + '\\n\\n' + message.content + '[/INST]' }}{% else %}"                               \
  "{{ '" inst                                                                                              \
  "' + message.content + '[/INST]' }}{% endif %}"                                                          \
  "{% elif " calls " %}{% anything %}{% elif message.role == 'assistant' %}{{ " answer                     \
  " + eos_token }}"                                                                                        \
  "{% elif message.role == 'tool_results' or message.role == 'tool' %}{% anything %}"                      \
  "{% else %}{{ raise_exception('Only user and assistant roles are supported, with the exception of an "   \
  "initial optional system message!') }}{% endif %}{% endfor %}"
// GLM 0414: `visible` is what is written of a message.
#define BGTQ_GLM4_SORTED(set_visible, visible, open)                                                        \
  "[gMASK]<sop>{% if tools %}{% anything %}{% endif %}{% for msg in messages %}{% if msg.role == 'system' " \
  "%}"                                                                                                      \
  "<|system|>\n{{ msg.content }}{% endif %}{% endfor %}"                                                    \
  "{% for message in messages if message.role != 'system' %}{% set role = message.role %}"                  \
  "{% set content = message.content %}" set_visible                                                         \
  "{% set meta = message.get('metadata', '') %}"                                                            \
  "{% if role == 'user' %}<|user|>\n{{ " visible                                                            \
  " }}{% elif role == 'assistant' and not meta %}"                                                          \
  "<|assistant|>\n{{ " visible                                                                              \
  " }}{% elif role == 'assistant' and meta %}{% anything %}"                                                \
  "{% elif role == 'observation' %}<|observation|>\n{{ " visible                                            \
  " }}{% endif %}{% endfor %}"                                                                              \
  "{% if add_generation_prompt %}" open "{% endif %}"
#define BGTQ_GLM4                                                                                 \
  "[gMASK]<sop>{% for item in messages %}{% if item.tools is defined %}{% anything %}{% endif %}" \
  "{% if item.content %}<|{{ item.role }}|>{{ item.metadata }}\n{{ item.content }}{% endif %}{% endfor %}"
#define BGTQ_R1_STRIP \
  "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
#define BGTQ_R1(strip, think)                                                                                          \
  "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"                    \
  "{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}"                    \
  "{% for message in messages %}{% if message.role == 'system' %}{% set ns.system_prompt = message.content "           \
  "%}"                                                                                                                 \
  "{% endif %}{% endfor %}{{ bos_token }}{{ ns.system_prompt }}{% for message in messages %}"                          \
  "{% if message.role == 'user' %}{% set ns.is_tool = false %}{{ '<｜User｜>' + message.content }}{% endif "         \
  "%}"                                                                                                                 \
  "{% if message.role == 'assistant' and message.content is none %}{% anything %}"                                     \
  "{% if message.role == 'assistant' and message.content is not none %}{% if ns.is_tool %}"                            \
  "{{ '<｜tool▁outputs▁end｜>' + message.content + '<｜end▁of▁sentence｜>' }}{% set ns.is_tool = false %}" \
  "{% else %}{% set content = message.content %}" strip                                                                \
  "{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endif %}"                          \
  "{% if message.role == 'tool' %}{% anything %}{% endfor %}"                                                          \
  "{% if ns.is_tool %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}"                                                 \
  "{% if add_generation_prompt and not ns.is_tool %}{{ '<｜Assistant｜>" think "' }}{% endif %}"
#define BGTQ_PHI3_NO_SYSTEM                                                                  \
  "{% for message in messages %}{% if (message.role == 'user') %}"                           \
  "{{ '<|user|>' + '\\n' + message.content + '<|end|>' + '\\n' + '<|assistant|>' + '\\n' }}" \
  "{% elif (message.role == 'assistant') %}{{ message.content + '<|end|>' + '\\n' }}{% endif %}{% endfor %}"
#define BGTQ_TULU                                                                                         \
  "{% for message in messages %}{% if message.role == 'system' %}{{ '<|system|>\\n' + message.content + " \
  "'\\n' }}"                                                                                              \
  "{% elif message.role == 'user' %}{{ '<|user|>\\n' + message.content + '\\n' }}"                        \
  "{% elif message.role == 'assistant' %}{% if not loop.last %}"                                          \
  "{{ '<|assistant|>\\n' + message.content + eos_token + '\\n' }}{% else %}"                              \
  "{{ '<|assistant|>\\n' + message.content + eos_token }}{% endif %}{% endif %}"                          \
  "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"

// The parts of Qwen's templates that tools reach.
#define BGTQ_QWEN_TOOL_LIST                                                                                \
  "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided "  \
  "with "                                                                                                  \
  "function signatures within <tools></tools> XML tags:\\n<tools>' }}{% for tool in tools %}{{ '\\n' }}"   \
  "{{ tool | tojson }}{% endfor %}{{ '\\n</tools>\\n\\nFor each function call, return a json object with " \
  "function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\"name\": "       \
  "<function-name>, \"arguments\": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}"
#define BGTQ_QWEN_TOOL_RESPONSE(first, content)                                                         \
  "{% if " first                                                                                        \
  " or (messages[loop.index0 - 1].role != 'tool') %}{{ '<|im_start|>user' }}{% endif %}"                \
  "{{ '\\n<tool_response>\\n' }}{{ " content                                                            \
  " }}{{ '\\n</tool_response>' }}"                                                                      \
  "{% if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{ '<|im_end|>\\n' }}{% endif %}{% " \
  "endif %}"

constexpr std::string_view kQwen25Tools[] = {
    "{{ '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}"
    "{{ '@SYSTEM@' }}{% endif %}{{ '\\n\\n" BGTQ_QWEN_TOOL_LIST,
    "{{ '<|im_start|>' + message.role }}{% if message.content %}{{ '\\n' + message.content }}{% endif %}"
    "{% for tool_call in message.tool_calls %}{% if tool_call.function is defined %}"
    "{% set tool_call = tool_call.function %}{% endif %}{{ '\\n<tool_call>\\n{\"name\": \"' }}{{ "
    "tool_call.name }}"
    "{{ '\", \"arguments\": ' }}{{ tool_call.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% elif message.role == 'tool' %}" BGTQ_QWEN_TOOL_RESPONSE("(loop.index0 == 0)",
                                                                                     "message.content")};

#define BGTQ_QWEN3_TOOLS(content)                                                                            \
  "{{ '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}"   \
  "{% endif %}{{ '" BGTQ_QWEN_TOOL_LIST,                                                                     \
      "{% for tool_call in message.tool_calls %}{% if (loop.first and content) or (not loop.first) %}"       \
      "{{ '\\n' }}{% endif %}{% if tool_call.function %}{% set tool_call = tool_call.function %}{% endif %}" \
      "{{ '<tool_call>\\n{\"name\": \"' }}{{ tool_call.name }}{{ '\", \"arguments\": ' }}"                   \
      "{% if tool_call.arguments is string %}{{ tool_call.arguments }}{% else %}"                            \
      "{{ tool_call.arguments | tojson }}{% endif %}{{ '}\\n</tool_call>' }}{% endfor %}",                   \
      BGTQ_QWEN_TOOL_RESPONSE("loop.first", content)
constexpr std::string_view kQwen3Tools[] = {BGTQ_QWEN3_TOOLS("message.content")};
constexpr std::string_view kQwen3LaterTools[] = {BGTQ_QWEN3_TOOLS("content")};

constexpr ChatShape kShapes[] = {
    // ChatML without a default system message.
    {ChatTemplate::kChatMl, "{% for message in messages %}" BGTQ_CHATML_TURN "{% endfor %}" BGTQ_CHATML_OPEN,
     "", ""},
    {ChatTemplate::kChatMl,
     "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
     "{% for message in messages %}" BGTQ_CHATML_TURN "{% endfor %}" BGTQ_CHATML_OPEN,
     "", ""},
    // SmolLM2, Qwen2.
    {ChatTemplate::kChatMl,
     "{% for message in messages %}{% if loop.first and messages[0].role != 'system' %}"
     "{{ '<|im_start|>system\\n@SYSTEM@<|im_end|>\\n' }}{% endif %}" BGTQ_CHATML_TURN
     "{% endfor %}" BGTQ_CHATML_OPEN,
     "", ""},
    // Qwen2.5, Qwen2.5-Coder.
    {ChatTemplate::kChatMl,
     "{% if tools %}{% anything %}{% else %}"
     "{% if messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + "
     "'<|im_end|>\\n' }}"
     "{% else %}{{ '<|im_start|>system\\n@SYSTEM@<|im_end|>\\n' }}{% endif %}{% endif %}"
     "{% for message in messages %}"
     "{% if (message.role == 'user') or (message.role == 'system' and not loop.first) or "
     "(message.role == 'assistant' and not message.tool_calls) %}" BGTQ_CHATML_TURN
     "{% elif message.role == 'assistant' %}{% anything %}{% endfor %}" BGTQ_CHATML_OPEN,
     "", "", false, false, ToolForm::kQwen25, kQwen25Tools},
    // Llama 3.
    {ChatTemplate::kLlama3, BGTQ_LLAMA3_LOOP BGTQ_LLAMA3_OPEN, "", "", true},
    {ChatTemplate::kLlama3, BGTQ_LLAMA3_LOOP "{% if add_generation_prompt %}" BGTQ_LLAMA3_OPEN "{% endif %}",
     "", "", true},
    // Llama 3.1, 3.2. The date is the one that the template falls back to without a clock.
    {ChatTemplate::kLlama3,
     "{{ bos_token }}{% anything %}{% set date_string = '26 Jul 2024' %}{% anything %}"
     "{% if messages[0].role == 'system' %}{% set system_message = messages[0].content|trim %}"
     "{% set messages = messages[1:] %}{% else %}{% set system_message = '' %}{% endif %}"
     "{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{% anything %}"
     "{{ 'Cutting Knowledge Date: December 2023\\n' }}{{ 'Today Date: ' + date_string + '\\n\\n' }}{% "
     "anything %}"
     "{{ system_message }}{{ '<|eot_id|>' }}{% anything %}{% for message in messages %}"
     "{% if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}"
     "{{ " BGTQ_LLAMA3_TURN " }}{% elif 'tool_calls' in message %}{% anything %}{% endfor %}"
     "{% if add_generation_prompt %}" BGTQ_LLAMA3_OPEN "{% endif %}",
     "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", "", true},
    // Qwen 3, in its two spellings.
    {ChatTemplate::kQwen3,
     BGTQ_QWEN3_START(
         "") "{% for message in messages %}"
             "{% if (message.role == 'user') or (message.role == 'system' and not loop.first) "
             "%}" BGTQ_CHATML_TURN "{% elif message.role == 'assistant' %}{% set content = message.content "
             "%}{% set reasoning_content = '' %}"
             "{% if message.reasoning_content is defined and message.reasoning_content is not none %}"
             "{% set reasoning_content = message.reasoning_content %}{% else %}{% if '</think>' in "
             "message.content %}"
             "{% set content = message.content.split('</think>')[-1].lstrip('\\n') %}"
             "{% set reasoning_content = "
             "message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1]"
             ".lstrip('\\n') %}{% endif %}{% endif %}" BGTQ_QWEN3_END BGTQ_QWEN3_OPEN,
     "", "<|im_start|>assistant\n", false, true, ToolForm::kQwen3, kQwen3Tools},
    {ChatTemplate::kQwen3, BGTQ_QWEN3_LATER BGTQ_QWEN3_OPEN, "", "<|im_start|>assistant\n", false, true,
     ToolForm::kQwen3, kQwen3LaterTools},
    // Qwen 3 Thinking (2507).
    {ChatTemplate::kQwen3, BGTQ_QWEN3_LATER BGTQ_QWEN3_THINK, "", "<|im_start|>assistant\n<think>\n", false,
     true, ToolForm::kQwen3, kQwen3LaterTools},
    // Qwen 3 Instruct (2507).
    {ChatTemplate::kQwen3, BGTQ_QWEN3_INSTRUCT, "", "<|im_start|>assistant\n", false, false, ToolForm::kQwen3,
     kQwen3LaterTools},
    // Mistral Nemo, and 7B Instruct v0.3.
    {ChatTemplate::kMistral,
     BGTQ_MISTRAL("[INST]", "(message.tool_calls is defined and message.tool_calls is not none)",
                  "message.content"),
     "", "", true},
    {ChatTemplate::kMistralV3,
     BGTQ_MISTRAL("[INST] ", "message.tool_calls is defined and message.tool_calls is not none",
                  "' ' + message.content | trim"),
     "", "", true},
    // GLM-4.
    {ChatTemplate::kGlm4, BGTQ_GLM4 "{% if add_generation_prompt %}<|assistant|>\n{% endif %}", "",
     "<|assistant|>\n"},
    {ChatTemplate::kGlm4, BGTQ_GLM4 "{% if add_generation_prompt %}<|assistant|>{% endif %}", "",
     "<|assistant|>"},
    // GLM-4 and GLM-Z1 of 0414.
    {ChatTemplate::kGlm4Sorted, BGTQ_GLM4_SORTED("", "content", "<|assistant|>"), "", "<|assistant|>"},
    {ChatTemplate::kGlm4Sorted,
     BGTQ_GLM4_SORTED("{% set visible = content.split('</think>')[-1].strip() %}", "visible",
                      "<|assistant|>\n<think>"),
     "", "<|assistant|>\n<think>", false, true},
    // DeepSeek V2.
    {ChatTemplate::kDeepSeek2,
     "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ "
     "bos_token }}"
     "{% for message in messages %}{% if message.role == 'user' %}{{ 'User: ' + message.content + '\\n\\n' }}"
     "{% elif message.role == 'assistant' %}{{ 'Assistant: ' + message.content + eos_token }}"
     "{% elif message.role == 'system' %}{{ message.content + '\\n\\n' }}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
     "", "", true},
    // DeepSeek R1 and its distillations, earlier and later ones.
    {ChatTemplate::kDeepSeekR1, BGTQ_R1("", ""), "", "<｜Assistant｜>", true, false},
    {ChatTemplate::kDeepSeekR1, BGTQ_R1("", "<think>\\n"), "", "<｜Assistant｜><think>\n", true, false},
    {ChatTemplate::kDeepSeekR1, BGTQ_R1(BGTQ_R1_STRIP, ""), "", "<｜Assistant｜>", true, true},
    {ChatTemplate::kDeepSeekR1, BGTQ_R1(BGTQ_R1_STRIP, "<think>\\n"), "", "<｜Assistant｜><think>\n", true,
     true},
    // Gemma 3.
    {ChatTemplate::kGemma,
     "{{ bos_token }}{% if messages[0].role == 'system' %}{% if messages[0].content is string %}"
     "{% set first_user_prefix = messages[0].content + '\\n\\n' %}{% else %}"
     "{% set first_user_prefix = messages[0].content[0].text + '\\n\\n' %}{% endif %}"
     "{% set loop_messages = messages[1:] %}{% else %}{% set first_user_prefix = '' %}"
     "{% set loop_messages = messages %}{% endif %}{% for message in loop_messages %}"
     "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
     "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
     "{% if (message.role == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message.role "
     "%}{% endif %}"
     "{{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else '') }}"
     "{% if message.content is string %}{{ message.content | trim }}{% elif message.content is iterable %}{% "
     "anything %}"
     "{% else %}{{ raise_exception('Invalid content type') }}{% endif %}{{ '<end_of_turn>\\n' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
     "", "", true},
    // Phi-3.5, and Phi-3 mini and medium, which leave system messages out.
    {ChatTemplate::kPhi3,
     "{% for message in messages %}{% if message.role == 'system' and message.content %}"
     "{{ '<|system|>\\n' + message.content + '<|end|>\\n' }}{% elif message.role == 'user' %}"
     "{{ '<|user|>\\n' + message.content + '<|end|>\\n' }}{% elif message.role == 'assistant' %}"
     "{{ '<|assistant|>\\n' + message.content + '<|end|>\\n' }}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
     "", ""},
    {ChatTemplate::kPhi3NoSystem, "{{ bos_token }}" BGTQ_PHI3_NO_SYSTEM, "", "", true},
    {ChatTemplate::kPhi3NoSystem, BGTQ_PHI3_NO_SYSTEM, "", ""},
    // Phi-4 mini.
    {ChatTemplate::kPhi4Mini,
     "{% for message in messages %}"
     "{% if message.role == 'system' and 'tools' in message and message.tools is not none %}{% anything %}{% "
     "else %}"
     "{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
     "", ""},
    // OLMo 2 (Tulu).
    {ChatTemplate::kTulu, "{{ bos_token }}" BGTQ_TULU, "", "", true},
    {ChatTemplate::kTulu, BGTQ_TULU, "", ""},
};

}  // namespace

std::span<const ChatShape> ChatShapes() { return kShapes; }

}  // namespace blockgtq
