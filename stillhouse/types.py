"""The vocabulary that every stage shares: prompt, trajectory, turn, sample, artifact.

Messages, tool calls and tool schemas stay plain JSON objects in the OpenAI chat form. They are never parsed into
classes with defaults, which would add keys that the model did not write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Required, TypedDict

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import numpy as np

JsonObject = dict[str, Any]
"""A JSON object at a boundary whose keys are not ours to name (a tool's schema, a row's metadata)."""


class FunctionCall(TypedDict):
    name: str
    arguments: str
    """A JSON object as the model wrote it, which may be malformed."""


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict, total=False):
    """One message of a conversation in the OpenAI chat form; absent keys are absent, not None.

    An assistant's message is in the form of `stillhouse.chat.assistant_message` and keeps every other key that its
    endpoint wrote (Gemini signs its thoughts in `extra_content` of a tool call). Read it by `stillhouse.chat.content`:
    those of users and of older versions have other forms.
    """

    role: Required[Literal["system", "user", "assistant", "tool"]]
    content: str | None
    reasoning_content: str
    """The model's reasoning, apart from its answer."""
    sent_back: JsonObject
    """Keys of the message as the endpoint wrote them, to send back in place of ours; null takes a key away."""
    refusal: str
    """Why OpenAI's models decline, in place of `content`."""
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str


class ToolSchema(TypedDict):
    """A tool as the model is shown it: `{"type": "function", "function": {name, description, parameters}}`."""

    type: Literal["function"]
    function: JsonObject


Tools = Sequence[ToolSchema] | None
"""The tools offered in a conversation."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to sample from. Two prompts with equal messages and tools are one prompt."""

    id: str
    """`prompt_id(messages, tools)`; of a row that `prompts.same_prompt: keep` keeps apart, a `variant_id`."""
    messages: list[Message]
    tools: list[str] | None = None
    """Names of the tools offered; None offers every configured tool, an empty list none."""


@dataclass(frozen=True, slots=True)
class PromptMetadata:
    """Data about a prompt that is no part of its identity, so that editing it costs no new rollout."""

    prompt_id: str
    expected_answer: str | None
    """The answer that verification compares with; None leaves the prompt's trajectories unverified."""
    tag: str | None
    """A group to report by, such as a domain or a difficulty."""
    verifier: str
    """How an answer is compared with `expected_answer`; one of `PromptsConfig.verifier`'s choices."""
    metadata: JsonObject
    """Every other key of the row's metadata, unchanged."""


class TokenUsage(TypedDict):
    """Tokens of one completion as the endpoint reported them; an absent key was not reported, which is not zero."""

    prompt_tokens: NotRequired[int]
    """With those that were read from a cache or written to it."""
    completion_tokens: NotRequired[int]
    """With those of the reasoning."""
    reasoning_tokens: NotRequired[int]
    cached_tokens: NotRequired[int]
    """Of the prompt, read from the endpoint's cache."""
    cache_write_tokens: NotRequired[int]
    """Of the prompt, written to it; left out where nothing was."""
    cache_write_long_tokens: NotRequired[int]
    """Of those, the ones that it keeps for an hour or longer."""
    unpriced_units: NotRequired[int]
    """Tokens of audio and of drawn images, and calls of the endpoint's own tools, which no price here is for."""


class StopReason(StrEnum):
    """Why a trajectory ended."""

    ANSWERED = "answered"
    """The model answered without calling a tool."""
    MAX_TURNS = "max_turns"
    """The last allowed turn still called tools, and so did the closing answer, if there was one."""
    LENGTH = "length"
    """A completion reached `max_tokens`."""
    BUDGET = "budget"
    """The next completion could have passed the rollout's own cap on tokens or money, or the cap cut the last one."""
    INVALID = "invalid"
    """The answer missed `rollouts.response_schema` after all corrections; `Trajectory.error` says how."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation no longer fits the model's context."""
    CONTENT_FILTER = "content_filter"
    """The provider withheld a completion."""
    MALFORMED = "malformed"
    """The model wrote a call that its endpoint could not read, and so again when it was asked once more."""
    UNFINISHED = "unfinished"
    """A completion may be cut: its finish reason is not known as a regular end. `Trajectory.error` has the word."""
    TIMEOUT = "timeout"
    """The rollout ran out of its wall time."""
    ERROR = "error"
    """A request failed after all retries; `Trajectory.error` says how."""


class ErrorRecord(TypedDict):
    """The failure of one item, kept as data."""

    kind: str
    """The class of the failure: a kind of failed request, `invalid` for an answer, or an exception's name."""
    message: str
    """The failure in words."""
    status: NotRequired[int]
    """HTTP status, if there was one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The facts of one completion, apart from its message.

    Token fields are None unless the endpoint reports them. `sampling_logprobs[i]` belongs to `completion_ids[i]`, where
    there are ids; the completion was sampled after exactly `prompt_ids`, tool output and all.
    """

    finish_reason: str
    """Why the completion ended, in the endpoint's word: `stop`, `length`, `tool_calls`; `unknown` if it gave none."""
    usage: TokenUsage
    """Tokens as the endpoint reported them; a key that is absent was not reported."""
    latency_s: float | None
    """Seconds from the request to the complete response; None when unknown, never 0."""
    model: str
    """The model's name in the response, which may be more precise than the one in the request."""
    provider: str | None = None
    """The provider that a router chose, if it said so."""
    request_id: str | None = None
    """The endpoint's id of the request, if it gave one."""
    cost_usd: float | None = None
    """Price in USD; None when it is unknown, never 0."""
    is_cost_told: bool = False
    """Whether the endpoint said what it charged; else the cost is by a price."""
    service_tier: str | None = None
    """The tier that the answer was served in, if it says so, as OpenAI calls them: `default`, `flex`, `priority`."""
    num_tool_errors: int = 0
    """Tool calls of this turn that failed: unknown tool, malformed arguments, exception, timeout."""
    num_refused_calls: int = 0
    """Tool calls of this turn that were not run, since no turn was left; a message told the model to answer."""
    prompt_ids: list[int] | None = None
    """Tokens after which the completion was sampled."""
    completion_ids: list[int] | None = None
    """Sampled tokens."""
    sampling_logprobs: list[float] | None = None
    """Log-probability of each token when it was sampled."""
    top_logprobs: str | None = None
    """The most probable tokens at each sampled one, packed by `stillhouse.inference.top_tokens`."""
    not_taken: JsonObject | None = None
    """Parameters that the endpoint refused, with what was sent instead, null for nothing; None if it took all."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one rollout, finished or failed."""

    rollout_key: str
    """Digest of `(prompt id, sample index, fingerprint of model + sampling + system prompt + tools)`."""
    prompt_id: str
    """Digest of the prompt's messages and tools."""
    sample_index: int
    """Index among the prompt's trajectories, from 0."""
    messages: list[Message]
    """The complete conversation, with the prompt's messages and the system prompt."""
    tools: list[ToolSchema]
    """Full schemas of the tools offered."""
    turns: list[Turn]
    """One entry for each assistant message that was sampled, in order."""
    stop_reason: StopReason
    """Why it ended."""
    model: str
    """The model's name in the request."""
    error: ErrorRecord | None = None
    """The failure; None if there was none."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row; both lists are aligned.

    `loss_mask[i]` is True where token `i` is a *target* (the model learns to predict it from the tokens before it), so
    `loss_mask[0]` is never True.
    """

    token_ids: list[int]
    loss_mask: list[bool]
    prompt_id: str
    tag: str | None = None
    teacher_view: "Sample | None" = None
    """What its teacher reads in its place, such as a prompt with a hint or another vocabulary, with targets of the same
    text; None where it reads the same."""
    best_ids_NK: "np.ndarray | None" = None
    """The K most probable tokens of the model that sampled at each of N targets, where its teacher scores them."""

    @property
    def read(self) -> "Sample":
        """Return what a teacher reads."""
        return self.teacher_view or self


class FrozenModel(BaseModel):
    """An immutable value that is JSON in results, keys and requests, with no other keys than its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Artifact(FrozenModel):
    """A stage's output: a folder in the store whose manifest was written last."""

    uri: str
    """Folder that holds the files: a local path or any fsspec URL."""
    fingerprint: str
    """SHA-256 over the names and bytes of the files, equal for equal content in any folder."""
    num_rows: int
    """Rows held; 0 for a model."""
    facts: JsonObject = {}
    """Numbers of the stage for reports and metrics (counts, accuracies, seconds); no part of the fingerprint."""


class Model(FrozenModel):
    """A model as the input of a stage."""

    name: str
    """Its part in the run, such as `base`, `sft`, `on_policy` or `teacher`."""
    ref: str
    """`embedded:NAME`, a folder, a Hugging Face id, or the model's name at an endpoint."""
    fingerprint: str
    """Enters cache keys; equal for equal weights in any folder."""
    chat_template_kwargs: Mapping[str, bool | int | float | str] = {}
    """Values for variables of its chat template; part of the fingerprint."""
