"""The same script of answers for a rollout and for the lockstep sampler: both hold the same conversation."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.agent.turns import REFUSAL, TurnRules
from stillhouse.chat.parse import parse_completion
from stillhouse.chat.tokenizer import encode
from stillhouse.config import OnPolicyConfig, RolloutsConfig
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.store import prompt_id
from stillhouse.tools.calculator import calculator
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.training.trajectories import SampledTrajectory, sampled_runs
from stillhouse.types import Message, Prompt, StopReason, Trajectory
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2+3"}}\n</tool_call>'
UNKNOWN = CALL.replace("calculator", "oracle")
BROKEN = "<tool_call>\n2+3\n</tool_call>"
RIGHT, WRONG = '{"sum": 5}', '{"sum": "five"}'
CUT = "..."
"""The end of an answer that reached its bound."""


class ScriptedEngine:
    """An `SamplingEngine` that samples the script's answers as the tokenizer writes them."""

    def __init__(self, script: list[str], tokenizer: PreTrainedTokenizerBase) -> None:
        self._answers: Iterator[str] = iter(script)
        self._tokenizer = tokenizer
        self._num_submitted = 0

    def submit(self, request: GenerationRequest) -> int:
        self._num_submitted += 1
        return self._num_submitted

    def step(self) -> list[tuple[int, Generation]]:
        answer = next(self._answers)
        reason: Literal["stop", "length"] = "length" if answer.endswith(CUT) else "stop"
        ids = encode(self._tokenizer, answer)
        ids += [self._tokenizer.eos_token_id] if reason == "stop" else []
        return [(self._num_submitted, Generation(ids, [-1.0] * len(ids), reason))]


def sampled(
    script: list[str], prompt: Prompt, config: RolloutsConfig, tokenizer: PreTrainedTokenizerBase
) -> SampledTrajectory:
    settings, rules = SamplingSettings.of(OnPolicyConfig(max_turns=config.max_turns)), TurnRules.of(config)
    sampler = Sampler(tokenizer, Toolbox([calculator]), settings, 4096, rules=rules)
    [trajectory] = sampler.sample(ScriptedEngine(script, tokenizer), [prompt], round_index=0)
    return trajectory


def rolled_out(script: list[str], prompt: Prompt, config: RolloutsConfig, collect: Callable[..., Any]) -> Trajectory:
    def answer(request: ReceivedRequest) -> Reply:
        messages = request.body["messages"]
        num_calls = sum(len(message.get("tool_calls") or ()) for message in messages)
        text = script[request.num_turns]
        message = dict(parse_completion(text, num_calls))
        if text.endswith(CUT):
            return Reply(completion(message=message, finish_reason="length", completion_tokens=config.max_tokens))
        return Reply(completion(message=message))

    with SimulatedProvider(answer) as provider:
        collected = collect(provider.url, [prompt], config=config)
    assert collected.error is None
    [trajectory] = collected.trajectories
    return trajectory


STRUCTURED = {"response_schema": SCHEMA}


@pytest.mark.parametrize(
    ("script", "config", "expected", "replies"),
    [
        ([CALL, "5"], {}, StopReason.ANSWERED, ["5"]),
        ([UNKNOWN, BROKEN, "I give up"], {}, StopReason.ANSWERED, None),
        ([CALL + CUT], {}, StopReason.LENGTH, []),
        ([CALL, CALL], {"max_turns": 2, "closing_answer": False}, StopReason.MAX_TURNS, ["5"]),
        ([CALL, CALL + CALL, "5"], {"max_turns": 2}, StopReason.ANSWERED, ["5", REFUSAL, REFUSAL]),
        ([CALL, CALL], {"max_turns": 1}, StopReason.MAX_TURNS, [REFUSAL]),
        ([WRONG, RIGHT], STRUCTURED, StopReason.ANSWERED, None),
        ([WRONG, WRONG], STRUCTURED, StopReason.INVALID, None),
        (["five", WRONG, RIGHT], {"max_corrections": 2, **STRUCTURED}, StopReason.ANSWERED, None),
        ([CALL, WRONG], {"max_turns": 1, **STRUCTURED}, StopReason.INVALID, [REFUSAL]),
    ],
)
@pytest.mark.parametrize("tools", [["calculator"], []])
def test_a_sampled_student_reads_what_a_rollout_reads(
    tokenizer: PreTrainedTokenizerBase,
    collect: Callable[..., Any],
    tools: list[str],
    script: list[str],
    config: dict[str, Any],
    expected: StopReason,
    replies: list[str] | None,
) -> None:
    messages: list[Message] = [{"role": "user", "content": "What is 2 + 3?"}]
    prompt = Prompt(prompt_id(messages, tools), messages, tools)
    rollouts = RolloutsConfig.model_validate(config)
    student = sampled(script, prompt, rollouts, tokenizer)
    teacher = rolled_out(script, prompt, rollouts, collect)
    assert student.messages == teacher.messages
    assert (student.stop_reason, student.error) == (teacher.stop_reason, teacher.error)
    facts = [(turn.finish_reason, turn.num_tool_errors, turn.num_refused_calls) for turn in teacher.turns]
    assert [(turn.finish_reason, turn.num_tool_errors, turn.num_refused_calls) for turn in student.turns] == facts
    runs = [tokenizer.decode(run) for run in sampled_runs(student)]
    assert [run.removesuffix("<|im_end|>") for run in runs] == script[: student.num_turns]
    contents = [str(message["content"]) for message in student.messages[1:] if message["role"] != "assistant"]
    pairs = zip(student.token_ids, student.loss_mask, strict=True)
    read = tokenizer.decode([token for token, is_sampled in pairs if not is_sampled])
    assert all(text in read for text in contents)
    if tools:
        assert student.stop_reason is expected
        assert replies is None or contents == replies
