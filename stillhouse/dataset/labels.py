"""Filters: each says why a trajectory should not be trained on, from labels and limits alone.

Labelling looks at trajectories (and, for the render check, at the student's tokenizer); deciding looks at labels only,
so that other limits can be tried without sampling, verifying or rendering anything again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from stillhouse.chat.template import TemplateError, render_sample
from stillhouse.config import DatasetConfig
from stillhouse.verification import final_answer, verify_trajectory
from stillhouse.types import PromptMetadata, StopReason, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class DropReason(StrEnum):
    """Why a trajectory is not kept. Closed: a new reason is a new member."""

    ERROR = "error"
    TIMEOUT = "timeout"
    CONTENT_FILTER = "content_filter"
    MAX_TURNS = "max_turns"
    LENGTH = "length"
    CONTEXT_OVERFLOW = "context_overflow"
    BUDGET = "budget"
    INVALID = "invalid"
    NO_ANSWER = "no_answer"
    WRONG = "wrong"
    UNVERIFIED = "unverified"
    TOOL_ERRORS = "tool_errors"
    TOO_MANY_TURNS = "too_many_turns"
    TEMPLATE_ERROR = "template_error"
    TOO_LONG = "too_long"
    NOTHING_SUPERVISED = "nothing_supervised"


MEANINGS: Final[dict[DropReason, str]] = {
    DropReason.ERROR: "a request failed for good",
    DropReason.TIMEOUT: "the rollout ran out of its wall time",
    DropReason.CONTENT_FILTER: "the provider withheld a completion",
    DropReason.MAX_TURNS: "the last allowed turn still called tools, and so did the closing answer if there was one",
    DropReason.LENGTH: "a completion was cut at its token limit",
    DropReason.CONTEXT_OVERFLOW: "the conversation outgrew the teacher's context",
    DropReason.BUDGET: "the rollout met its own cap on tokens or money",
    DropReason.INVALID: "the answer misses rollouts.response_schema",
    DropReason.NO_ANSWER: "the last message calls tools, is not the assistant's, or holds no text",
    DropReason.WRONG: "the answer is not the expected one, or was not reached",
    DropReason.UNVERIFIED: "there is nothing to verify the answer with",
    DropReason.TOOL_ERRORS: "more failed tool calls than dataset.filters.max_tool_errors",
    DropReason.TOO_MANY_TURNS: "more turns than dataset.filters.max_turns",
    DropReason.TEMPLATE_ERROR: "the student's chat template cannot render the messages",
    DropReason.TOO_LONG: "more student tokens than dataset.filters.max_tokens or student.max_length",
    DropReason.NOTHING_SUPERVISED: "no token of it would be trained on",
}


@dataclass(frozen=True, slots=True)
class Rendering:
    """What the student's chat template makes of a conversation."""

    num_tokens: int | None
    num_supervised_tokens: int | None
    problem: str | None = None
    """The template's error; the counts are then None."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Everything the filters know about a trajectory."""

    stop_reason: StopReason
    has_answer: bool
    verified: bool | None
    """Right, wrong, or None for unverified."""
    num_turns: int
    num_tool_errors: int
    rendering: Rendering | None = None
    """None until rendered, which only trajectories that pass every other filter are."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the filters compare labels with."""

    config: DatasetConfig
    max_tokens: int
    """Longest row in student tokens: the lower of `config.max_tokens` and the student's `max_length`."""


class Filter(NamedTuple):
    """One step of the funnel."""

    step: str
    """Names the trajectories that pass, for a table."""
    reason: Callable[[Labels, Limits], DropReason | None]


def label(trajectory: Trajectory, metadata: PromptMetadata | None) -> Labels:
    """Labels that cost next to nothing; `rendering` is left out."""
    return Labels(
        stop_reason=trajectory.stop_reason,
        has_answer=bool(trajectory.turns) and final_answer(trajectory.messages) is not None,
        verified=verify_trajectory(trajectory, metadata),
        num_turns=len(trajectory.turns),
        num_tool_errors=sum(turn.num_tool_errors for turn in trajectory.turns),
    )


def rendering_of(trajectory: Trajectory, tokenizer: "PreTrainedTokenizerBase") -> Rendering:
    """The conversation's length in student tokens and how many of them would be trained on."""
    try:
        token_ids, loss_mask = render_sample(tokenizer, trajectory.messages, trajectory.tools)
    except TemplateError as error:
        return Rendering(None, None, str(error))
    return Rendering(len(token_ids), sum(loss_mask))


def verdicts(labels: Labels, limits: Limits) -> list[DropReason | None]:
    """What each of `FILTERS` says, in their order; the trajectory is kept if all are None."""
    return [one.reason(labels, limits) for one in FILTERS]


def _unfinished(labels: Labels, limits: Limits) -> DropReason | None:
    return None if labels.stop_reason is StopReason.ANSWERED else DropReason(labels.stop_reason.value)


def _no_answer(labels: Labels, limits: Limits) -> DropReason | None:
    return None if labels.has_answer else DropReason.NO_ANSWER


def _wrong(labels: Labels, limits: Limits) -> DropReason | None:
    return DropReason.WRONG if limits.config.filters.drop_wrong and labels.verified is False else None


def _unverified(labels: Labels, limits: Limits) -> DropReason | None:
    return DropReason.UNVERIFIED if not limits.config.filters.keep_unverified and labels.verified is None else None


def _tool_errors(labels: Labels, limits: Limits) -> DropReason | None:
    most = limits.config.filters.max_tool_errors
    return DropReason.TOOL_ERRORS if most is not None and labels.num_tool_errors > most else None


def _too_many_turns(labels: Labels, limits: Limits) -> DropReason | None:
    most = limits.config.filters.max_turns
    return DropReason.TOO_MANY_TURNS if most is not None and labels.num_turns > most else None


def _template_error(labels: Labels, limits: Limits) -> DropReason | None:
    rendering = labels.rendering
    return DropReason.TEMPLATE_ERROR if rendering is not None and rendering.problem is not None else None


def _too_long(labels: Labels, limits: Limits) -> DropReason | None:
    num_tokens = labels.rendering.num_tokens if labels.rendering else None
    return DropReason.TOO_LONG if num_tokens is not None and num_tokens > limits.max_tokens else None


def _nothing_supervised(labels: Labels, limits: Limits) -> DropReason | None:
    supervised = labels.rendering.num_supervised_tokens if labels.rendering else None
    return DropReason.NOTHING_SUPERVISED if supervised == 0 else None


FILTERS: Final = (
    Filter("finished", _unfinished),
    Filter("with an answer", _no_answer),
    Filter("not wrong", _wrong),
    Filter("verified or allowed unverified", _unverified),
    Filter("few enough tool errors", _tool_errors),
    Filter("few enough turns", _too_many_turns),
    Filter("rendered by the student's template", _template_error),
    Filter("short enough", _too_long),
    Filter("with something to learn", _nothing_supervised),
)
