"""Messages are learnt behind generation prompts that the history leaves out."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import next_turn_ids, stop_token_ids
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.samples import render_samples
from stillhouse.chat.template import render

TURNS = "{% for m in messages %}<|{{ m.role }}|>"
CALLS = (
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>"
    "{% endfor %}"
)  # fmt: skip
THOUGHT = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
END = "<|end|>{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|assistant|>"
OPENED = PROMPT + "<think>\n{% endif %}"
CLOSED = PROMPT + "<think>\n\n</think>\n\n{% endif %}"

SHOWS_REASONING = TURNS + THOUGHT + "{{ m.content }}" + CALLS + END + OPENED
NEVER_SHOWS_IT = TURNS + "{{ m.content }}" + CALLS + END + OPENED
CLOSES_IT = TURNS + THOUGHT + "{{ m.content }}" + CALLS + END + CLOSED
ENDS_BY_THE_NEXT_ROLE = TURNS + "{{ m.content }}" + CALLS + "{% endfor %}" + PROMPT + "{% endif %}"
ENDS_TWICE = NEVER_SHOWS_IT.replace(OPENED, PROMPT + "{% else %}<|eos|>{% endif %}")
MOVES_THE_SYSTEM_PROMPT = (
    "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>"
    "{% if loop.last and m.role == 'user' and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}"
    "{{ m.content }}" + END + PROMPT + "{% endif %}"
)  # fmt: skip
ASSISTANTS = TURNS + "{% if m.role == 'assistant' %}BLOCK{% endif %}{{ m.content }}" + CALLS + END
WRITES_EMPTY_THOUGHTS = ASSISTANTS.replace("BLOCK", "<think></think>") + PROMPT + "{% endif %}"
OPENS_AND_CLOSES_IN_HISTORY = ASSISTANTS.replace("BLOCK", "<think></think>") + PROMPT + "<think>{% endif %}"
OPENS_IN_HISTORY = ASSISTANTS.replace("BLOCK", "<think>\n") + OPENED
OPENS_IN_THE_LAST_TURN = (
    ASSISTANTS.replace("{% if m.role == 'assistant' %}", "{% if m.role == 'assistant' and loop.last %}").replace(
        "BLOCK", "<think>\n\n</think>\n\n"
    )
    + OPENED
)
NEEDS_TOOLS = "{% for t in tools %}{% endfor %}" + NEVER_SHOWS_IT
SWITCHED_OFF = (
    TURNS
    + "{{ m.content }}"
    + CALLS
    + END
    + PROMPT
    + "{% if not enable_thinking %}<think>\n\n</think>\n{% endif %}{% endif %}"
)
SWITCHED_ON = "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}\n" + SWITCHED_OFF
WRITES_LITERAL_CALLS = (
    TURNS
    + "{% if m.content is none %}{% for c in m.tool_calls %}<call>{{ c.function.name + ' ' + c.function.arguments }}"
    "</call>{% endfor %}{% else %}{{ m.content }}{% endif %}" + END + PROMPT + "{% endif %}"
)
ENDS_TEXT_BEFORE_CALLS = (
    TURNS
    + "{{ m.content }}{% if m.tool_calls and m.content %}<|end|><|assistant|>{% endif %}"
    + CALLS
    + END
    + PROMPT
    + "{% endif %}"
)
INSTRUCTS_AT_THE_END = NEVER_SHOWS_IT.replace(
    OPENED, "{% if tools %}<|system|>Call a tool.<|end|>{% endif %}" + PROMPT + "{% endif %}"
)

USER = {"role": "user", "content": "Moss?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "A plant."}
THINKS = {**ANSWER, "reasoning_content": "Forests."}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "call00000", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "call00000", "content": "green"}
WRITTEN_CALL = '<call>look_up {"a": 1}</call>'


@pytest.fixture(scope="module")
def speaks(byte_level: Callable[..., PreTrainedTokenizerBase]) -> Callable[[str], PreTrainedTokenizerBase]:
    """A tokenizer of the template."""

    def with_template(template: str) -> PreTrainedTokenizerBase:
        special = ["<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|end|>", "<|eos|>"]
        eos = "<|end|>" if "<|end|>" in template and "<|eos|>" not in template else "<|eos|>"
        tokenizer = byte_level(special, eos)
        tokenizer.chat_template = template
        return tokenizer

    return with_template


def learnt(tokenizer: PreTrainedTokenizerBase, messages: list[Any], tools: Any = None) -> list[str]:
    """The supervised text of each sample."""
    return [
        tokenizer.decode([token for token, trained in zip(*sample[:2], strict=True) if trained])
        for sample in render_samples(tokenizer, messages, tools)
    ]


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (SHOWS_REASONING, [USER, THINKS], ["Forests.\n</think>\n\nA plant.<|end|>"]),
        (SHOWS_REASONING, [USER, ANSWER], ["\n</think>\n\nA plant.<|end|>"]),
        (SHOWS_REASONING, [USER, CALL], [f"\n</think>\n\n{WRITTEN_CALL}<|end|>"]),
        (NEVER_SHOWS_IT, [USER, THINKS], ["Forests.\n</think>\n\nA plant.<|end|>"]),
        (NEVER_SHOWS_IT, [USER, ANSWER], ["\n</think>\n\nA plant.<|end|>"]),
        (NEVER_SHOWS_IT, [USER, THINKS, USER, ANSWER],
         ["Forests.\n</think>\n\nA plant.<|end|>", "\n</think>\n\nA plant.<|end|>"]),
        (CLOSES_IT, [USER, ANSWER], ["A plant.<|end|>"]),
        (CLOSES_IT, [USER, CALL, RESULT, ANSWER], [f"{WRITTEN_CALL}<|end|>", "A plant.<|end|>"]),
        (ENDS_BY_THE_NEXT_ROLE, [USER, ANSWER], ["A plant.<|user|>"]),
        (ENDS_BY_THE_NEXT_ROLE, [USER, CALL, RESULT, ANSWER], [f"{WRITTEN_CALL}<|tool|>A plant.<|user|>"]),
        (ENDS_TWICE, [USER, ANSWER, USER, ANSWER], ["A plant.<|end|>A plant.<|end|>"]),
        (MOVES_THE_SYSTEM_PROMPT, [SYSTEM, USER, ANSWER], ["A plant.<|end|>"]),
        (WRITES_EMPTY_THOUGHTS, [USER, THINKS], ["<think>Forests.</think>A plant.<|end|>"]),
        (WRITES_EMPTY_THOUGHTS, [USER, ANSWER], ["<think></think>A plant.<|end|>"]),
        (OPENS_AND_CLOSES_IN_HISTORY, [USER, THINKS], ["Forests.</think>A plant.<|end|>"]),
        (OPENS_IN_HISTORY, [USER, THINKS], ["Forests.\n</think>\n\nA plant.<|end|>"]),
        (OPENS_IN_HISTORY, [USER, ANSWER], ["\n</think>\n\nA plant.<|end|>"]),
        (SWITCHED_ON, [USER, THINKS], ["<think>\nForests.\n</think>\nA plant.<|end|>"]),
        (SWITCHED_ON, [USER, ANSWER], ["A plant.<|end|>"]),
        (WRITES_LITERAL_CALLS, [USER, CALL], [f"{WRITTEN_CALL}<|end|>"]),
    ],
)  # fmt: skip
def test_what_the_model_writes_behind_its_prompt_is_learnt(
    speaks: Any, template: str, messages: list[Any], expected: list[str]
) -> None:
    assert learnt(speaks(template), messages) == expected


@pytest.mark.parametrize("template", [SHOWS_REASONING, NEVER_SHOWS_IT, CLOSES_IT, MOVES_THE_SYSTEM_PROMPT])
def test_the_tokens_before_a_message_are_those_it_is_prompted_with(speaks: Any, template: str) -> None:
    tokenizer = speaks(template)
    (sample,) = render_samples(tokenizer, [SYSTEM, USER, ANSWER], None)
    prompt = render(tokenizer, [SYSTEM, USER], None, add_generation_prompt=True)
    assert sample.token_ids[: sample.loss_mask.index(True)] == prompt


@pytest.mark.parametrize(
    ("template", "messages", "problem"),
    [
        (CLOSES_IT, [USER, THINKS], "thinking block before message 1"),
        (SWITCHED_OFF, [USER, THINKS], r"student\.chat_template_kwargs: {enable_thinking: true}"),
        (WRITES_LITERAL_CALLS, [USER, {**CALL, "content": "Wait."}], "look_up in message 1"),
        (ENDS_TEXT_BEFORE_CALLS, [USER, {**CALL, "content": "Wait."}], "message 1 with <.end.> "),
        (MOVES_THE_SYSTEM_PROMPT, [USER, {**CALL, "content": "I look_up this."}], "look_up in message 1"),
        (MOVES_THE_SYSTEM_PROMPT, [USER, CALL], "look_up in message 1"),
        ("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}", [USER, ANSWER],
         "message 1 with no special "),
    ],
)  # fmt: skip
def test_what_a_template_cannot_express_is_refused_by_its_reason(
    speaks: Any, template: str, messages: list[Any], problem: str
) -> None:
    with pytest.raises(TemplateError, match=problem):
        learnt(speaks(template), messages)


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (SHOWS_REASONING, {"<|end|>"}),
        (NEEDS_TOOLS, {"<|end|>"}),
        (ENDS_BY_THE_NEXT_ROLE, {"<|eos|>", "<|user|>", "<|tool|>"}),
    ],
)
def test_generation_stops_at_every_token_that_ends_a_turn(speaks: Any, template: str, ends: set[str]) -> None:
    tokenizer = speaks(template)
    assert stop_token_ids(tokenizer) == set(tokenizer.convert_tokens_to_ids(sorted(ends)))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SHOWS_REASONING, "<|tool|>green<|end|><|assistant|><think>\n"),
        (NEVER_SHOWS_IT, "<|tool|>green<|end|><|assistant|><think>\n"),
        (CLOSES_IT, "<|tool|>green<|end|><|assistant|><think>\n\n</think>\n\n"),
        (OPENS_IN_THE_LAST_TURN, "<|tool|>green<|end|><|assistant|><think>\n"),
        (ENDS_BY_THE_NEXT_ROLE, "green<|assistant|>"),
    ],
)
def test_the_next_turn_follows_sampled_tokens_that_the_history_renders_otherwise(
    speaks: Any, template: str, expected: str
) -> None:
    tokenizer = speaks(template)
    ends = tokenizer.convert_tokens_to_ids(["<|tool|>" if template is ENDS_BY_THE_NEXT_ROLE else "<|end|>"])
    ids = next_turn_ids(tokenizer, ends, [USER, CALL], [RESULT], None)  # type: ignore[list-item]
    assert tokenizer.decode(ids) == expected


def test_instructions_behind_the_last_turn_are_not_learnt(speaks: Any) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
    texts = learnt(speaks(INSTRUCTS_AT_THE_END), [USER, CALL, RESULT, ANSWER], [tool])
    assert texts == [f"{WRITTEN_CALL}<|end|>", "A plant.<|end|>"]
