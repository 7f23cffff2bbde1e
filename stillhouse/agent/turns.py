"""The rule of a turn: what follows a completion.

Pure, so that every engine that samples obeys the same rule: rollouts of the teacher and of the student under
evaluation (`stillhouse.agent.loop`), and the student's sampling on-policy
(`stillhouse.training.on_policy.sampling.sampler`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from pydantic import field_validator

from stillhouse.agent.answer_schema import AnswerSchema
from stillhouse.chat.content import Call, calls_of
from stillhouse.config import RolloutsConfig
from stillhouse.config.section import Section, later_field
from stillhouse.inference.finish_reasons import stop_of
from stillhouse.inference.sampling import ToolChoice
from stillhouse.types import ErrorRecord, JsonObject, Message, Prompt, StopReason

REFUSAL: Final = "No tool calls are left, so this one was not run. Answer now with what you have."
"""The answer to each call of the last turn where a closing answer is wanted."""
_PAUSED: Final = "pause_turn"
"""Of Anthropic, where a turn with tools of its own takes long: it goes on once it is sent back as it is."""
_DOUBT: Final = (
    "the endpoint ended the completion with finish_reason {!r}, which is not known as a regular end. If its whole "
    "answers end so, name it in rollouts.finish_reasons and run again: nothing is paid for twice"
)


class TurnRules(Section):
    """When a conversation goes on and when it ends: the fields of `RolloutsConfig` that say so, under the same names.

    Small and JSON, to be part of a job and of a cache key. The defaults are the plainest rule: the first answer ends
    the conversation, whatever it says.
    """

    closing_answer: bool = False
    """Where tools are offered: refuse the calls of the last turn and ask once more, with tools it may not call."""
    response_schema: JsonObject = {}
    """JSON schema of the final answer; empty takes any text."""
    max_corrections: int = 0
    """Times the model is told how its answer misses the schema; each takes a turn."""
    finish_reasons: tuple[str, ...] = later_field(())
    """Further finish reasons of whole completions."""

    @classmethod
    def of(cls, config: RolloutsConfig) -> "TurnRules":
        """Return the rules of a config; raise ConfigError if `response_schema` is no JSON schema."""
        return cls(**config.model_dump(include=set(cls.model_fields)))

    @field_validator("response_schema")
    @classmethod
    def _is_a_schema(cls, schema: JsonObject) -> JsonObject:
        if schema:
            AnswerSchema(schema)
        return schema

    @cached_property
    def answer_schema(self) -> AnswerSchema | None:
        return AnswerSchema(self.response_schema) if self.response_schema else None


def first_messages(prompt: Prompt, system_prompt: str | None) -> list[Message]:
    """Return what a conversation begins with; `system_prompt` stands before a prompt that has no system message."""
    if system_prompt is None or any(message["role"] == "system" for message in prompt.messages):
        return list(prompt.messages)
    return [{"role": "system", "content": system_prompt}, *prompt.messages]


@dataclass(frozen=True, slots=True)
class TurnState:
    """Where a conversation stands before its next completion."""

    max_turns: int
    """Most completions, a closing answer apart."""
    offers_tools: bool
    num_turns: int = 0
    """Completions so far."""
    num_corrections: int = 0
    is_closing: bool = False

    @property
    def tool_choice(self) -> ToolChoice:
        return "none" if self.is_closing else "auto"


class Ask(NamedTuple):
    """Add the messages, then ask for the next completion."""

    messages: list[Message]
    num_refused_calls: int = 0


class CallTools(NamedTuple):
    """Run the calls, add their results in the same order, then ask for the next completion."""

    calls: list[Call]


class End(NamedTuple):
    """Ask no more."""

    stop_reason: StopReason
    error: ErrorRecord | None = None


Action = Ask | CallTools | End


def next_action(rules: TurnRules, state: TurnState, message: Message, finish_reason: str) -> tuple[TurnState, Action]:
    """Return what follows a completion, and the state before the next one.

    Calls of the last turn are never run: they are refused where a closing answer is wanted, and end the conversation
    otherwise. Nothing follows a completion that did not end regularly.
    """
    taken = replace(state, num_turns=state.num_turns + 1)
    is_last = taken.num_turns >= state.max_turns
    if finish_reason == _PAUSED:
        return taken, End(StopReason.MAX_TURNS) if is_last else Ask([])
    stop = StopReason.ANSWERED if finish_reason in rules.finish_reasons else stop_of(finish_reason)
    # Clients ask again after a completion that broke off; one may be in a journal of before.
    if stop in (StopReason.UNFINISHED, StopReason.ERROR):
        return taken, End(StopReason.UNFINISHED, {"kind": "unfinished", "message": _DOUBT.format(finish_reason)})
    if stop is not StopReason.ANSWERED:
        return taken, End(stop)
    calls = calls_of(message)
    if calls and not is_last:
        return taken, CallTools(calls)
    if calls and rules.closing_answer and state.offers_tools and not state.is_closing:
        return replace(taken, is_closing=True), Ask([call.result(REFUSAL) for call in calls], len(calls))
    if calls:
        return taken, End(StopReason.MAX_TURNS)
    schema = rules.answer_schema
    problem = schema.problem(message) if schema is not None else None
    if schema is not None and problem and state.num_corrections < rules.max_corrections and not is_last:
        return replace(taken, num_corrections=state.num_corrections + 1), Ask([schema.correction(problem)])
    if problem is not None:
        return taken, End(StopReason.INVALID, {"kind": StopReason.INVALID.value, "message": problem})
    return taken, End(StopReason.ANSWERED)
