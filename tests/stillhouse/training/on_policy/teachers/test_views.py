import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import next_turn_ids, stop_token_ids
from stillhouse.chat.rendering import Prefixes
from stillhouse.chat.template import render
from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError, InputError
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.on_policy.teachers.alignment import ByteAlignment
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.teachers.views import Opening, OtherVocabulary, SameVocabulary
from stillhouse.training.trajectories import SampledTrajectory, sampled_runs
from stillhouse.types import Message, PromptMetadata, Sample, StopReason, Turn

QUESTION: Message = {"role": "user", "content": "Ben has 12 eggs. Ben finds 5 more. How many now?"}
METADATA = PromptMetadata("p", "17", "shop", "numeric", {"solution": "12 + 5 = 17", "empty": None})
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 + 5"}}\n</tool_call>'


@pytest.fixture(scope="module")
def toolbox() -> Toolbox:
    return Toolbox.from_config(ToolsConfig(builtin=("calculator",)))


@pytest.fixture
def trajectory(tokenizer: PreTrainedTokenizerBase, toolbox: Toolbox) -> SampledTrajectory:
    """A tool call, its result, an answer."""
    system: Message = {"role": "system", "content": "Be brief."}
    schemas = toolbox.schemas()
    end = tokenizer.eos_token_id
    arguments = {"name": "calculator", "arguments": '{"expression": "12 + 5"}'}
    called: Message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": arguments}],  # type: ignore[typeddict-item]
    }
    result: Message = {"role": "tool", "tool_call_id": "call_0", "content": "17"}
    answer: Message = {"role": "assistant", "content": "Ben has 17 eggs."}
    prompt = render(tokenizer, [system, QUESTION], schemas, add_generation_prompt=True)
    first = [*tokenizer(CALL, add_special_tokens=False)["input_ids"], end]
    between = next_turn_ids(tokenizer, first, [system, QUESTION, called], [result], schemas)
    second = [*tokenizer("Ben has 17 eggs.", add_special_tokens=False)["input_ids"], end]
    mask = [False] * len(prompt) + [True] * len(first) + [False] * len(between) + [True] * len(second)
    return SampledTrajectory(
        "key", "p", 0, [system, QUESTION, called, result, answer], schemas, [Turn("stop", {}, None, "student")] * 2,
        StopReason.ANSWERED, "student", token_ids=prompt + first + between + second, loss_mask=mask,
        sampling_logprobs=[],
    )  # fmt: skip


def test_without_a_hint_the_teacher_reads_the_students_tokens(
    tokenizer: PreTrainedTokenizerBase, trajectory: SampledTrajectory
) -> None:
    assert SameVocabulary(tokenizer).view(trajectory, METADATA) is None


def test_a_hint_stands_before_the_question_and_all_else_is_what_the_student_sampled(
    tokenizer: PreTrainedTokenizerBase, trajectory: SampledTrajectory
) -> None:
    views = SameVocabulary(tokenizer, Hint("Solution ({{ tag }}): {{ solution }}, so {{ expected_answer }}.", "t"))
    view = views.view(trajectory, METADATA)
    assert view is not None
    text = "Solution (shop): 12 + 5 = 17, so 17.\n\n"
    hinted: Message = {"role": "user", "content": text + (QUESTION["content"] or "")}
    prompt = render(tokenizer, [trajectory.messages[0], hinted], trajectory.tools, add_generation_prompt=True)
    first = trajectory.loss_mask.index(True)
    assert view.token_ids == prompt + trajectory.token_ids[first:]
    assert view.loss_mask == [False] * len(prompt) + trajectory.loss_mask[first:]
    added = len(view.token_ids) - len(trajectory.token_ids)
    opening = Opening("p", Prefixes([QUESTION], None, [(1, True)]), METADATA)
    assert abs(added - views.added_tokens([opening])) <= 1


def test_a_hint_of_which_nothing_is_left_leaves_the_prompt_as_it_is() -> None:
    messages: list[Message] = [{"role": "user", "content": "How many?"}]
    assert Hint("{% if proof is defined %}{{ proof }}{% endif %}\n", "t").insert(messages, "p", METADATA) == messages


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ proof }}", "'solution'"),
        ("{{ empty }}", "'solution'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ tag + 1 }}", "TypeError"),
    ],
)
def test_a_hint_that_cannot_be_written_names_teacher_prompt_and_reason(template: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"teacher 't': prompt p .*{reason}"):
        Hint(template, "t").text("p", METADATA)


def test_a_hint_is_a_template_and_needs_a_question() -> None:
    with pytest.raises(ConfigError, match=r"teacher 't' .*Jinja"):
        Hint("{{ solution", "t")
    with pytest.raises(InputError, match=r"prompt p .*user"):
        Hint("x", "t").insert([{"role": "system", "content": "s"}], "p", None)


def test_a_teacher_with_other_tokens_reads_the_conversation_in_its_own_template(
    tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, trajectory: SampledTrajectory
) -> None:
    ends = stop_token_ids(tokenizer)
    view = OtherVocabulary(tokenizer, other, ends, Hint("{{ solution }}", "t")).view(trajectory, METADATA)
    text = other.decode(view.token_ids)
    opening = "<|begin|>system: Be brief.<|stop|><|begin|>user: 12 + 5 = 17\n\nBen has 12 eggs."
    assert text.startswith(opening)
    assert text.endswith("<|stop|><|begin|>tool: 17<|stop|><|begin|>assistant: Ben has 17 eggs.<|stop|>")
    turns = [other.decode(run) for run in sampled_runs(view)]
    assert turns == [f"{CALL}<|stop|>", "Ben has 17 eggs.<|stop|>"]
    logprobs = [-0.25] * sum(view.loss_mask)
    own = Sample(trajectory.token_ids, trajectory.loss_mask, "p")
    aligned = ByteAlignment.between(tokenizer, other, ends).align(own, view, logprobs)
    assert len(aligned) == sum(trajectory.loss_mask)
    assert sum(aligned) == pytest.approx(sum(logprobs))


def test_a_turn_that_was_cut_off_has_no_end_for_the_teacher_either(
    tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, trajectory: SampledTrajectory
) -> None:
    trajectory.token_ids.pop()
    trajectory.loss_mask.pop()
    view = OtherVocabulary(tokenizer, other, stop_token_ids(tokenizer)).view(trajectory, None)
    assert other.decode(sampled_runs(view)[-1]) == "Ben has 17 eggs."
