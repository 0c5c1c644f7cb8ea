# ruff: noqa: E501
"""How the chat templates of today's models behave, written down: small templates of our own that do what the published
ones do in the things that matter here (roles, markers, switches, tools), with the reply forms of their models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CALL = [("get_weather", {"city": "Paris", "days": 2})]
"""What every form of a tool call below spells."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of some days.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Sample:
    """One template with what is known of it."""

    source: str
    markers: tuple[str, ...]
    """Control tokens of its vocabulary."""
    ends: str
    """How the prompt for "Hi" ends by default."""
    roles: tuple[str, ...] = ("system", "user")
    """A conversation it takes."""
    rewrites: bool = False
    """It writes content as JSON."""
    family: str = "plain"
    calls: str | None = None
    off: str | None = None
    """How the prompt ends with thinking off; None where there is nothing to switch."""
    on: str | None = None
    replies: tuple[tuple[str, str, str], ...] = ()
    """What a model writes, its thinking and its answer."""
    call_replies: tuple[str, ...] = field(default=())
    """Replies that are a call of `CALL`."""


_TURNS = (
    "{%- for m in messages %}{%- if m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + m.content"
    " + '\\n</tool_response><|im_end|>\\n' }}{%- else %}{{- '<|im_start|>' + m.role + '\\n' }}"
)
_END = "{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
_HERMES_TOOLS = (
    "{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n<tools>' }}{%- for tool in tools %}{{- '\\n' }}"
    '{{- tool | tojson }}{%- endfor %}{{- \'\\n</tools>\\nReturn <tool_call>{"name": ..., "arguments": ...}</tool_call>'
    "<|im_end|>\\n' }}{%- endif %}"
)
_HERMES_CALLS = (
    '{%- for call in m.tool_calls or [] %}{{- \'\\n<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \''
    " + call.function.arguments | tojson + '}\\n</tool_call>' }}{%- endfor %}"
)
_OPEN = "<|im_start|>assistant\n"

SAMPLES: dict[str, Sample] = {
    "chatml": Sample(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ("<|im_start|>", "<|im_end|>"),
        _OPEN,
        replies=(("Hello <b>there</b>", "", "Hello <b>there</b>"), ("<think>no</think>x", "", "<think>no</think>x")),
    ),
    "qwen2.5": Sample(
        _HERMES_TOOLS + _TURNS + "{{- m.content }}" + _HERMES_CALLS + _END
        + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
        ("<|im_start|>", "<|im_end|>"),
        _OPEN,
        roles=("system", "user", "tool", "user"),
        rewrites=True,
        calls="hermes",
        replies=(("1 < 2\n", "", "1 < 2\n"), ("<tool_cal", "", "<tool_cal"), ("a <tool_call>", "", "a <tool_call>")),
        call_replies=(
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>',
            '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Paris\\",\\"days\\":2}"}</tool_call>',
        ),
    ),
    "qwen3": Sample(
        _HERMES_TOOLS + _TURNS
        + "{%- set c = m.content %}{%- if m.role == 'assistant' and '</think>' in c %}"
        "{%- set c = c.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
        "{%- if m.role == 'assistant' and loop.last and m.reasoning_content %}"
        "{{- '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}{{- c }}"
        + _HERMES_CALLS + _END
        + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
        "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
        "{%- endif %}{%- endif %}",
        ("<|im_start|>", "<|im_end|>"),
        _OPEN,
        roles=("system", "user", "tool", "user"),
        rewrites=True,
        family="think",
        calls="hermes",
        off=_OPEN + "<think>\n\n</think>\n\n",
        on=_OPEN,
        replies=(
            ("<think>\nHm, 1 < 2.\n</think>\n\nYes.", "Hm, 1 < 2.", "Yes."),
            ("Yes. <think>", "", "Yes. <think>"),
            ("\n<think>cut", "cut", ""),
            ("<think></think>x", "", "x"),
            ("<thinking>x", "", "<thinking>x"),
            ("<think>a</thin b</think>\nc </think>", "a</thin b", "c </think>"),
        ),
        call_replies=(
            '<think>\nx\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n'
            "</tool_call>",
        ),
    ),
    "qwen3-coder": Sample(
        _TURNS + "{{- m.content }}{%- for call in m.tool_calls or [] %}{{- '\\n<tool_call>\\n<function=' + call.function.name"
        " + '>\\n' }}{%- for k, v in call.function.arguments | items %}{{- '<parameter=' + k + '>\\n' + (v if v is string"
        " else v | tojson) + '\\n</parameter>\\n' }}{%- endfor %}{{- '</function>\\n</tool_call>' }}{%- endfor %}" + _END
        + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
        "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
        "{%- else %}{{- '<think>\\n' }}{%- endif %}{%- endif %}",
        ("<|im_start|>", "<|im_end|>"),
        _OPEN + "<think>\n",
        roles=("system", "user", "tool", "user"),
        family="think",
        calls="qwen-xml",
        off=_OPEN + "<think>\n\n</think>\n\n",
        on=_OPEN + "<think>\n",
        replies=(("Hm.\n</think>\n\nYes.", "Hm.", "Yes."), ("cut", "cut", "")),
        call_replies=(
            "x\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n"
            "</parameter>\n</function>\n</tool_call>",
        ),
    ),
    "deepseek-r1": Sample(
        "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'system' %}{{- m.content }}{%- elif m.role == 'user' %}"
        "{{- '<｜User｜>' + m.content }}{%- elif m.role == 'tool' %}{{- '<｜tool▁outputs▁begin｜>' + m.content"
        " + '<｜tool▁outputs▁end｜>' }}{%- elif m.tool_calls %}{{- '<｜Assistant｜><｜tool▁calls▁begin｜>' }}"
        "{%- for call in m.tool_calls %}{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\\n```json\\n'"
        " + call.function.arguments + '\\n```<｜tool▁call▁end｜>' }}{%- endfor %}{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}"
        "{%- else %}{{- '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\\n' }}{%- endif %}",
        ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
         "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
        "<｜User｜>Hi<｜Assistant｜><think>\n",
        roles=("system", "user", "tool", "user"),
        rewrites=True,
        family="think",
        calls="deepseek",
        off="<｜Assistant｜><think>\n\n</think>\n\n",
        on="<｜Assistant｜><think>\n",
        replies=(("Hm.\n</think>\n\nYes.", "Hm.", "Yes."),),
        call_replies=(
            "x</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            '{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            'x</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris", "days": 2}'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ),
    "glm": Sample(
        "[gMASK]<sop>{%- for m in messages %}{%- if m.role == 'tool' %}{{- '<|observation|>\\n<tool_response>\\n' + m.content"
        " + '\\n</tool_response>' }}{%- else %}{{- '<|' + m.role + '|>\\n' }}{%- if m.role == 'assistant' %}"
        "{{- '<think></think>\\n' }}{%- endif %}{{- m.content }}{%- for call in m.tool_calls or [] %}{{- '\\n<tool_call>'"
        " + call.function.name + '\\n' }}{%- for k, v in call.function.arguments.items() %}{{- '<arg_key>' + k +"
        " '</arg_key>\\n<arg_value>' + (v if v is string else v | tojson) + '</arg_value>\\n' }}{%- endfor %}"
        "{{- '</tool_call>' }}{%- endfor %}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- if enable_thinking is defined and not enable_thinking %}"
        "{{- '\\n<think></think>' }}{%- endif %}{%- endif %}",
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        "<|user|>\nHi<|assistant|>",
        roles=("system", "user", "tool", "user"),
        family="think",
        calls="glm",
        off="<|assistant|>\n<think></think>",
        on="<|assistant|>",
        replies=(("\n<think>Hm.</think>\nYes.", "Hm.", "Yes."),),
        call_replies=(
            "\n<think>x</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        ),
    ),
    "gemma-3": Sample(
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
        "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        ("<start_of_turn>", "<end_of_turn>"),
        "<start_of_turn>model\n",
    ),
    "gemma-4": Sample(
        "{{- bos_token }}{%- if enable_thinking is defined and enable_thinking or messages[0].role == 'system' or tools %}"
        "{{- '<|turn>system\\n' }}{%- if enable_thinking is defined and enable_thinking %}{{- '<|think|>' }}{%- endif %}"
        "{%- if messages[0].role == 'system' %}{{- messages[0].content | trim }}{%- endif %}{%- for tool in tools or [] %}"
        "{{- '<|tool>declaration:' + tool.function.name + '<tool|>' }}{%- endfor %}{{- '<turn|>\\n' }}{%- endif %}"
        "{%- for m in messages %}{%- if m.role == 'tool' %}{{- '<|tool_response>response:{value:<|\"|>' + m.content"
        " + '<|\"|>}<tool_response|>' }}{%- elif m.role != 'system' %}{{- '<|turn>' + ('model' if m.role == 'assistant' else"
        " m.role) + '\\n' }}{%- for call in m.tool_calls or [] %}{{- '<|tool_call>call:' + call.function.name + '{' }}"
        "{%- for k, v in call.function.arguments | dictsort %}{{- k + ':' + ('<|\"|>' + v + '<|\"|>' if v is string else v |"
        " tojson) }}{{- ',' if not loop.last }}{%- endfor %}{{- '}<tool_call|>' }}{%- endfor %}{{- m.content | trim }}"
        "{{- '<turn|>\\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|turn>model\\n' }}"
        "{%- if not enable_thinking | default(false) %}{{- '<|channel>thought\\n<channel|>' }}{%- endif %}{%- endif %}",
        ("<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
         "<|tool_response>", "<tool_response|>", '<|"|>'),
        "<|turn>model\n<|channel>thought\n<channel|>",
        roles=("system", "user", "tool", "user"),
        family="gemma-4",
        calls="gemma-4",
        off="<|turn>model\n<|channel>thought\n<channel|>",
        on="<|turn>model\n",
        replies=(
            ("<|channel>thought\nHm, 1 < 2.\n<channel|>Yes.", "Hm, 1 < 2.", "Yes."),
            ("<|channel>thought\n<channel|>Yes.", "", "Yes."),
            ("Yes <channel> no", "", "Yes <channel> no"),
        ),
        call_replies=('<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>',),
    ),
    "llama-3": Sample(
        "{{- bos_token }}{%- for m in messages %}{%- if m.tool_calls %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n"
        "{\"name\": \"' + m.tool_calls[0].function.name + '\", \"parameters\": ' + m.tool_calls[0].function.arguments | tojson"
        " + '}<|eot_id|>' }}{%- else %}{{- '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) +"
        " '<|end_header_id|>\\n\\n' }}{{- m.content | tojson if m.role == 'tool' else m.content | trim }}{{- '<|eot_id|>' }}"
        "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}"
        "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", "<|eom_id|>"),
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        roles=("system", "user", "tool", "user"),
        rewrites=True,
        calls="llama-3",
        replies=(("{not a call}", "", "{not a call}"), ('{"a": 1}', "", '{"a": 1}')),
        call_replies=(
            '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}',
            '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris", "days": 2}}',
            '<|python_tag|>get_weather.call(city="Paris", days=2)',
        ),
    ),
    "mistral": Sample(
        "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'system' %}{{- '[SYSTEM_PROMPT]' + m.content +"
        " '[/SYSTEM_PROMPT]' }}{%- elif m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}{%- elif m.role == 'tool' %}"
        "{%- if m.tool_call_id | length != 9 %}{{- raise_exception('Tool call IDs should be 9 characters long') }}{%- endif %}"
        "{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{%- elif m.tool_calls %}{{- '[TOOL_CALLS][' }}"
        "{%- for call in m.tool_calls %}{{- call.function | tojson }}{{- ', ' if not loop.last }}{%- endfor %}"
        "{{- ']' + eos_token }}{%- else %}{{- m.content + eos_token }}{%- endif %}{%- endfor %}",
        ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        "[INST]Hi[/INST]",
        roles=("system", "user", "tool", "user"),
        rewrites=True,
        calls="mistral",
        replies=(("[1, 2]", "", "[1, 2]"),),
        call_replies=(
            '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]',
            '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}',
            '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris", "days": 2}',
        ),
    ),
    "magistral": Sample(
        "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'system' %}{{- '[SYSTEM_PROMPT]' + m.content +"
        " '[/SYSTEM_PROMPT]' }}{%- elif m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}{%- else %}{{- '[THINK]' +"
        " (m.reasoning_content or '') + '[/THINK]' + m.content + eos_token }}{%- endif %}{%- endfor %}",
        ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]", "[THINK]", "[/THINK]"),
        "[INST]Hi[/INST]",
        family="magistral",
        off="[INST]Hi[/INST][THINK][/THINK]",
        on="[INST]Hi[/INST][THINK]",
        replies=(("[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),),
    ),
    "gpt-oss": Sample(
        "{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
        "{%- for m in messages %}{%- if m.role in ['system', 'developer'] %}{{- '<|start|>developer<|message|># Instructions\\n'"
        " + m.content + '<|end|>' }}{%- elif m.role == 'user' %}{{- '<|start|>user<|message|>' + m.content + '<|end|>' }}"
        "{%- elif m.role == 'tool' %}{{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' + m.content | tojson"
        " + '<|end|>' }}{%- elif m.tool_calls %}{%- for call in m.tool_calls %}{{- '<|start|>assistant to=functions.' +"
        " call.function.name + '<|channel|>commentary json<|message|>' + call.function.arguments | tojson + '<|call|>' }}"
        "{%- endfor %}{%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{%- endif %}"
        "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}",
        ("<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"),
        "<|start|>assistant",
        roles=("developer", "user", "tool", "user"),
        rewrites=True,
        family="gpt-oss",
        calls="gpt-oss",
        off="<|start|>assistant<|channel|>final<|message|>",
        on="<|start|>assistant",
        replies=(
            ("<|channel|>analysis<|message|>Hm, 1 < 2.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
             "Hm, 1 < 2.", "Yes."),
            ("<|channel|>analysis<|message|>cut", "cut", ""),
            ("<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "",
             "First.\n\nYes."),
        ),
        call_replies=(
            "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
            '<|constrain|>json<|message|>{"city": "Paris", "days": 2}',
            ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris", "days": 2}<|call|>',
        ),
    ),
    "phi-4-mini": Sample(
        "{%- for m in messages %}{{- '<|' + ('tool_response' if m.role == 'tool' else m.role) + '|>' + m.content }}"
        "{%- if m.role == 'system' and tools %}{{- '<|tool|>' + tools | tojson + '<|/tool|>' }}{%- endif %}"
        "{%- for call in m.tool_calls or [] %}{{- '<|tool_call|>' + call.function | tojson + '<|/tool_call|>' }}{%- endfor %}"
        "{{- '<|end|>' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|tool_response|>", "<|tool|>", "<|/tool|>", "<|tool_call|>",
         "<|/tool_call|>", "<|end|>"),
        "<|user|>Hi<|end|><|assistant|>",
        roles=("system", "user", "tool", "user"),
        rewrites=True,
        calls="phi-4",
        call_replies=(
            '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]<|/tool_call|>',
            '<|tool_call|>{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}<|/tool_call|>',
        ),
    ),
    "smollm3": Sample(
        "{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{%- endif %}"
        "{{- '<|im_start|>system\\nReasoning Mode: ' + ('/think' if enable_thinking else '/no_think') + '\\n' }}"
        "{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}{{- '<|im_end|>\\n' }}"
        "{%- for m in messages %}{%- if m.role == 'user' %}{{- '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}"
        "{%- elif m.role == 'assistant' %}{% generation %}{%- set tail = '<|im_end|>\\n' %}{{- '<|im_start|>assistant\\n' +"
        " m.content.lstrip('\\n') + tail }}{% endgeneration %}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' if enable_thinking else"
        " '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' }}{%- endif %}",
        ("<|im_start|>", "<|im_end|>"),
        _OPEN,
        family="think",
        off=_OPEN + "<think>\n\n</think>\n",
        on=_OPEN,
        replies=(("<think>\nHm.\n</think>\nYes.", "Hm.", "Yes."),),
    ),
}  # fmt: skip
