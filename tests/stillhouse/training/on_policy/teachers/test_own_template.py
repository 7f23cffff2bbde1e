"""Views of a chat teacher whose student is asked in another form, `User: ... Assistant:`."""

from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import TurnEnds, next_turn
from stillhouse.chat.rendering import Prefixes, TemplateError
from stillhouse.chat.template import render, render_text
from stillhouse.chat.tokenizer import encode, load_tokenizer
from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.teachers.own_template import OwnTemplate
from stillhouse.training.on_policy.teachers.shared_ids import EndExchange
from stillhouse.training.on_policy.teachers.views import Opening, SameVocabulary
from stillhouse.training.trajectories import SampledTrajectory, sampled_runs
from stillhouse.types import Message, PromptMetadata, Sample

NewTrajectory = Callable[..., SampledTrajectory]

METADATA = PromptMetadata("p", "17", "shop", "numeric", {"solution": "12 + 5 = 17"})
HINT = Hint("Solution: {{ solution }}.", "t")
TOOLS = Toolbox.from_config(ToolsConfig(builtin=("calculator",))).schemas()
CALL: Any = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "calculator", "arguments": '{"expression": "12 + 5"}'},
}
CONVERSATION: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Ben has 12 eggs. Ben finds 5 more. How many now?"},
    {"role": "assistant", "content": None, "reasoning_content": "Add them.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_0", "content": "17"},
    {"role": "assistant", "content": "Ben has 17 eggs.", "reasoning_content": "So it is."},
    {"role": "user", "content": "Continue."},
    {"role": "assistant", "content": "That is all."},
]
END_OF_TEXT, END_OF_TURN = 0, 2


@pytest.fixture(scope="module")
def colon(colon_student: str) -> PreTrainedTokenizerBase:
    return load_tokenizer(colon_student)


@pytest.fixture(scope="module")
def chat() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:teacher")


def own(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, hint: Hint | None = None, max_turns: int = 3
) -> OwnTemplate:
    return OwnTemplate("near", student, teacher, EndExchange.between(student, teacher), max_turns, hint)


def prompted(tokenizer: PreTrainedTokenizerBase, tail: str) -> PreTrainedTokenizerBase:
    """The tokenizer with a template whose generation prompt ends with `tail`."""
    changed = copy(tokenizer)
    changed.chat_template = f"{tokenizer.chat_template}{{% if add_generation_prompt %}}{{{{ {tail!r} }}}}{{% endif %}}"
    return changed


def without_reasoning(message: Message) -> Message:
    return {**message, "reasoning_content": None} if message["role"] == "assistant" else message


def opening(*, with_tools: bool) -> Opening:
    messages = CONVERSATION[:2]
    return Opening("p", Prefixes(messages, TOOLS if with_tools else [], [(len(messages), True)]), METADATA)


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_with_the_students_template_the_teacher_reads_the_students_tokens(
    chat: PreTrainedTokenizerBase, sampled: NewTrajectory, is_cut_off: bool
) -> None:
    trajectory = sampled(chat, CONVERSATION, TOOLS, num_turns=3, is_cut_off=is_cut_off)
    views = own(chat, chat)
    assert views.view(trajectory, METADATA) is None
    assert views.added_tokens([opening(with_tools=True)]) == 0
    hinted = own(chat, chat, HINT).view(trajectory, METADATA)
    assert hinted == SameVocabulary(chat, HINT).view(trajectory, METADATA)


def test_the_teacher_reads_what_its_template_makes_of_the_whole_conversation(
    colon: PreTrainedTokenizerBase, chat: PreTrainedTokenizerBase, sampled: NewTrajectory
) -> None:
    trajectory = sampled(colon, CONVERSATION, TOOLS, num_turns=3)
    view = own(colon, chat).view(trajectory, METADATA)
    assert view is not None
    text = render_text(chat, CONVERSATION, TOOLS, add_generation_prompt=False)
    assert view.token_ids == encode(chat, text.removesuffix("\n"))
    student, teacher = sampled_runs(trajectory), sampled_runs(view)
    assert [run[:-1] for run in teacher] == [run[:-1] for run in student]
    assert {run[-1] for run in student} == {END_OF_TEXT}
    assert {run[-1] for run in teacher} == {END_OF_TURN}


def test_a_turn_that_was_cut_off_has_no_end_and_earlier_answers_are_read_as_the_prompt(
    colon: PreTrainedTokenizerBase, chat: PreTrainedTokenizerBase, sampled: NewTrajectory
) -> None:
    view = own(colon, chat).view(sampled(colon, CONVERSATION, TOOLS, num_turns=1, is_cut_off=True), METADATA)
    assert view is not None
    assert chat.decode(sampled_runs(view)[0]) == "That is all."
    prompt = render(chat, CONVERSATION[:-1], TOOLS, add_generation_prompt=True)
    assert view == Sample(
        prompt + encode(chat, "That is all."), [False] * len(prompt) + [True] * sum(view.loss_mask), "p"
    )


def test_a_hint_stands_in_the_messages_that_the_teachers_template_renders(
    colon: PreTrainedTokenizerBase, chat: PreTrainedTokenizerBase, sampled: NewTrajectory
) -> None:
    view = own(colon, chat, HINT).view(sampled(colon, CONVERSATION, TOOLS, num_turns=3), METADATA)
    assert view is not None
    assert "<|im_start|>user\nSolution: 12 + 5 = 17.\n\nBen has 12 eggs." in chat.decode(view.token_ids)


def test_tokens_between_the_ends_of_turns_that_mean_nothing_to_the_student_are_exchanged_too(
    colon: PreTrainedTokenizerBase, chat: PreTrainedTokenizerBase, sampled: NewTrajectory
) -> None:
    trajectory = sampled(colon, CONVERSATION[:2] + CONVERSATION[-1:], num_turns=1, write=lambda _: "a<|im_end|>b")
    view = own(colon, chat).view(trajectory, None)
    assert view is not None
    assert chat.decode(sampled_runs(view)[0]) == "a<|endoftext|>b<|im_end|>"


OPEN, CLOSED = "<think>\n", "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("student", "teacher", "read"),
    [
        ("", "", ""),
        ("", OPEN, ""),
        ("", CLOSED, CLOSED),
        (OPEN, "", OPEN),
        (OPEN, OPEN, OPEN),
        (OPEN, "<think>", OPEN),
        ("<think>", OPEN, "<think>"),
        (CLOSED, "", ""),
        (CLOSED, CLOSED, CLOSED),
    ],
)
def test_reasoning_follows_the_same_opening_for_both(
    colon: PreTrainedTokenizerBase,
    chat: PreTrainedTokenizerBase,
    sampled: NewTrajectory,
    student: str,
    teacher: str,
    read: str,
) -> None:
    ours, theirs = prompted(colon, student), prompted(chat, teacher)
    text = "Add them.\n</think>\n\nBen has 17 eggs." if student in (OPEN, "<think>") else "Ben has 17 eggs."
    messages = CONVERSATION if student != CLOSED else [without_reasoning(message) for message in CONVERSATION]
    trajectory = sampled(ours, messages, TOOLS, num_turns=3, write=lambda _: text)
    view = own(ours, theirs).view(trajectory, METADATA)
    assert view is not None
    turn = f"<|im_start|>assistant\n{read}{text}<|im_end|>\n"
    plain = render_text(chat, CONVERSATION, TOOLS, add_generation_prompt=False)
    replies = [part.partition("<|im_end|>\n")[2] for part in plain.split("<|im_start|>assistant\n")[1:]]
    start = plain.partition("<|im_start|>assistant\n")[0]
    assert view.token_ids == encode(chat, start + turn + turn.join(replies).removesuffix("\n"))


@pytest.mark.parametrize(("student", "teacher"), [(OPEN, CLOSED), (CLOSED, OPEN)])
def test_a_block_that_one_opens_and_the_other_closes_is_refused_before_sampling(
    colon: PreTrainedTokenizerBase,
    chat: PreTrainedTokenizerBase,
    sampled: NewTrajectory,
    student: str,
    teacher: str,
) -> None:
    ours, theirs = prompted(colon, student), prompted(chat, teacher)
    names = ("student", "teacher 'near'") if student == OPEN else ("teacher 'near'", "student")
    message = f"prompt p: .*{names[0]} opens .*{names[1]} closes"
    with pytest.raises(TrainingError, match=message):
        own(ours, theirs).added_tokens([opening(with_tools=False)])
    with pytest.raises(TrainingError, match=message):
        own(ours, theirs).view(sampled(ours, CONVERSATION[:2] + CONVERSATION[-1:], num_turns=1), None)


def test_reasoning_that_the_teachers_template_drops_from_a_history_stays_as_it_was_sampled(
    colon: PreTrainedTokenizerBase, chat: PreTrainedTokenizerBase, sampled: NewTrajectory
) -> None:
    qwen3 = copy(chat)
    qwen3.chat_template = (Path(__file__).parents[3] / "chat" / "templates" / "qwen3.jinja").read_text()
    with pytest.raises(TemplateError, match="prefix preserving"):
        next_turn(qwen3, CONVERSATION[:5], CONVERSATION[5:6], TOOLS)
    view = own(colon, qwen3).view(sampled(colon, CONVERSATION, TOOLS, num_turns=3), METADATA)
    assert view is not None
    assert chat.decode(view.token_ids).endswith(
        "17 eggs.<|im_end|>\n<|im_start|>user\nContinue.<|im_end|>\n<|im_start|>assistant\nThat is all.<|im_end|>"
    )
    assert "<think>\nSo it is.\n</think>\n\nBen has 17 eggs." in chat.decode(view.token_ids)


def test_a_template_that_knows_no_results_of_tools_is_refused_before_sampling(
    colon: PreTrainedTokenizerBase, chat: PreTrainedTokenizerBase
) -> None:
    plain = copy(chat)
    refusal = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
    plain.chat_template = f"{refusal}{chat.chat_template}"
    views = own(colon, plain)
    views.added_tokens([opening(with_tools=False)])
    with pytest.raises(TrainingError, match=r"prompt p: .*no tools"):
        views.added_tokens([opening(with_tools=True)])


def test_what_the_teacher_reads_beyond_the_student_is_known_before(
    colon: PreTrainedTokenizerBase, chat: PreTrainedTokenizerBase, sampled: NewTrajectory
) -> None:
    for hint in (None, HINT):
        views = own(colon, chat, hint)
        for tools, turns in ((TOOLS, 3), (TOOLS, 2), ([], 1)):
            messages = [*CONVERSATION[:2], *CONVERSATION[-2 * turns + 1 :]] if turns == 1 else CONVERSATION
            trajectory = sampled(colon, messages, tools, num_turns=turns)
            view = views.view(trajectory, METADATA)
            assert view is not None
            longer = len(view.token_ids) - len(trajectory.token_ids)
            added = views.added_tokens([opening(with_tools=bool(tools))])
            assert longer <= added <= longer + 60


def test_a_template_that_ends_calls_in_a_way_of_its_own_is_refused_where_tools_are_offered(
    colon: PreTrainedTokenizerBase, chat: PreTrainedTokenizerBase
) -> None:
    ends = EndExchange(TurnEnds(END_OF_TEXT, END_OF_TEXT), TurnEnds(END_OF_TURN, 1))
    views = OwnTemplate("near", colon, chat, ends, 3)
    views.added_tokens([opening(with_tools=False)])
    named = r"<\|endoftext\|>.*<\|endoftext\|>.*<\|im_end\|>.*<\|im_start\|>"
    with pytest.raises(ConfigError, match=f"'near' with `template: own`.*{named}"):
        views.added_tokens([opening(with_tools=True)])
