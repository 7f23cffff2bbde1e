"""One rollout: the agent loop over the journal, the endpoint and the tools, and the trajectory it leaves."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from stillhouse.agent.loop import Conversation, run_agent
from stillhouse.agent.turns import End, TurnState, first_messages
from stillhouse.chat.content import text_of
from stillhouse.errors import StillhouseError
from stillhouse.inference.apis.caching import is_read_again
from stillhouse.inference.completion import Completion
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.journalled_client import Place
from stillhouse.inference.keys import request_seed
from stillhouse.inference.rate_limit import RequestSize
from stillhouse.inference.sampling import ChatRequest, Sampling, ToolChoice, sampling_of
from stillhouse.rollouts.caps import RolloutCaps
from stillhouse.rollouts.context import RolloutContext
from stillhouse.store import digest, exact_json
from stillhouse.store.records import trajectory_from_json
from stillhouse.tools import Toolbox, ToolContext, ToolResult
from stillhouse.types import ErrorRecord, Prompt, StopReason, Trajectory

_LOG = logging.getLogger(__name__)

_RESUMED: Final = frozenset({StopReason.ERROR, StopReason.BUDGET, StopReason.UNFINISHED})
"""Endings whose rollout the next collection resumes after its last completion, as a retry, with a higher cap, or with
its finish reason known."""


class Rollout:
    """One sample of one prompt, with the tools that it is offered."""

    def __init__(self, prompt: Prompt, sample_index: int, toolbox: Toolbox, context: RolloutContext) -> None:
        self.prompt_id = prompt.id
        self.sample_index = sample_index
        self._prompt = prompt
        self._toolbox = toolbox
        self._context = context
        self._prepared = context.tool_sets.prepare(toolbox)
        self._metadata = context.metadata.get(prompt.id, {}) if self._prepared.takes_context else None
        self._caps = RolloutCaps(context.config)
        self._conversation = Conversation(first_messages(prompt, context.config.system_prompt))
        self._deadline = asyncio.Timeout(None)
        self.key = self._prepared.key_form.key(prompt.id, sample_index, self._metadata)
        own = sum(len(text_of(message)) for message in prompt.messages)
        self.reads_cache = context.samples_together and is_read_again(context.endpoint, own)
        """Whether other samples of the prompt read it from the seller's cache."""
        self._num_paying = 0
        self._has_ended = False
        self.halted = False
        """Set to end the rollout before it pays for anything more."""

    @property
    def holds_value(self) -> bool:
        """Return whether cancelling it now would lose a request being paid for or a finished trajectory."""
        return self._num_paying > 0 or self._has_ended

    def finished(self) -> Trajectory | None:
        """Return the trajectory that an earlier collection finished, or None."""
        body = self._context.journal.trajectory(self.key)
        return None if body is None else trajectory_from_json(exact_json.loads(body))

    async def run(self) -> Trajectory:
        """Return the trajectory; durable, unless it failed or met its own cap: then the next collection resumes it.

        Raise StillhouseError if endpoint or journal cannot be used, so that every rollout would fail, or Halted.
        """
        ending = await self._converse()
        self._has_ended = True
        trajectory = self._trajectory(ending)
        if ending.stop_reason in _RESUMED:
            return trajectory
        body = exact_json.dumps(trajectory)
        stored = await self._context.journal.put_trajectory(self.key, body)
        return trajectory if stored == body else trajectory_from_json(exact_json.loads(stored))

    def failed(self, error: ErrorRecord) -> Trajectory:
        """Return the trajectory of a rollout that could not start."""
        return self._trajectory(End(StopReason.ERROR, error))

    async def _converse(self) -> End:
        """Run the agent with tools of its own, close what they opened, and return how it ended or why it failed."""
        tool_context = ToolContext(self.key, self._prompt.id, self.sample_index, self._metadata or {})
        state = TurnState(self._context.config.max_turns, offers_tools=bool(self._prepared.schemas))
        ending: End | None = None
        try:
            async with self._toolbox.rollout(tool_context) as self._tools:
                try:
                    async with self._deadline:
                        ending = await run_agent(
                            *(self._conversation, self._context.rules, state),
                            complete=self._complete,
                            call_tool=self._call_tool,
                        )
                except (StillhouseError, Halted):
                    raise
                # What is not expected costs one rollout, not the collection.
                except Exception as error:
                    ending = self._failed_ending(error)
        except Exception:
            if ending is None:
                raise
            # The conversation is complete, whatever becomes of the session of a tool.
            _LOG.exception("rollout %s: a tool could not be closed", self.key[:12])
        if ending.stop_reason is not StopReason.LENGTH:
            return ending
        return End(StopReason.BUDGET) if self._caps.has_cut else self._explained_cut(ending)

    def _failed_ending(self, error: Exception) -> End:
        if isinstance(error, _CapReached):
            return End(StopReason.BUDGET)
        if isinstance(error, RequestFailed):
            return End(_stop_reason(error.failure), error.failure.record())
        if isinstance(error, TimeoutError) and self._deadline.expired():
            return End(StopReason.TIMEOUT)
        _LOG.error(
            "rollout %s of prompt %s met an unexpected error", self.key[:12], self._prompt.id[:12], exc_info=error
        )
        return End(StopReason.ERROR, {"kind": type(error).__name__, "message": str(error)})

    def _explained_cut(self, ending: End) -> End:
        """Return the ending, with a note where the completion was cut below max_tokens, as vLLM does at its context."""
        usage, max_tokens = self._conversation.turns[-1].usage, self._context.config.max_tokens
        num_tokens = usage.get("completion_tokens", max_tokens)
        if num_tokens >= max_tokens:
            return ending
        read = f" behind a prompt of {usage['prompt_tokens']}" if "prompt_tokens" in usage else ""
        message = (
            f"the endpoint cut the completion after {num_tokens} tokens{read}, though max_tokens was {max_tokens}: its "
            "context is full (vLLM: --max-model-len), or it allows no longer completions"
        )
        return End(StopReason.LENGTH, {"kind": "max_tokens_lowered", "message": message})

    async def _complete(self, turn: int, tool_choice: ToolChoice) -> Completion:
        """Return the next completion, read: the journal's, or the endpoint's once it is in the journal."""
        context, digest = self._context, self._conversation.digest
        max_tokens = context.config.max_tokens
        place = Place(self.key, turn, digest.of_request())
        completion = context.client.stored(place)
        if completion is None:
            allowed = self._caps.allowed_tokens(self._num_characters)
            if allowed is None:
                raise _CapReached
            if allowed < max_tokens:
                # The completion may be cut where it would not be without a cap, so this is another request.
                max_tokens, place = allowed, Place(self.key, turn, digest.of_request(allowed))
                completion = context.client.stored(place)
        if completion is None:
            sampling = self._sampling(turn, max_tokens, tool_choice)
            request = ChatRequest(self._conversation.messages, self._prepared.schemas, sampling)
            completion = await context.requester.ask(
                partial(context.client.complete, place, request, attempt=self._paying),
                size=RequestSize(self._num_characters, max_tokens),
                continuing=turn > 0,
                asleep=context.asleep,
                about=self._prompt.id,
            )
        else:
            context.requester.count_replayed(completion.turn, context.config.max_tokens)
        context.answered(self.prompt_id)
        self._caps.count(completion.turn, self._num_characters, max_tokens)
        return replace(completion, message=context.read(completion.message))

    @contextmanager
    def _paying(self) -> Iterator[None]:
        """Count an attempt that may be paid for, of a rollout that is not halted."""
        self._check_halted()
        timeout_s = self._context.config.timeout_s
        if timeout_s is not None and self._deadline.when() is None:
            # Time spent waiting for a slot does not count.
            self._deadline.reschedule(asyncio.get_running_loop().time() + timeout_s)
        self._num_paying += 1
        try:
            yield
        finally:
            self._num_paying -= 1

    def _sampling(self, turn: int, max_tokens: int, tool_choice: ToolChoice) -> Sampling:
        config = self._context.config
        return sampling_of(
            config,
            seed=request_seed(config.seed, self.key, turn),
            max_tokens=max_tokens,
            tool_choice=tool_choice,
            is_shared=self.reads_cache,
            is_sent_once=config.num_samples == 1 and not self._prepared.schemas and not config.response_schema,
        )

    @property
    def _num_characters(self) -> int:
        return self._conversation.digest.num_characters + self._prepared.num_characters

    async def _call_tool(self, turn: int, call_index: int, name: str, arguments: str) -> ToolResult:
        context = self._context
        asked = digest([name, arguments])
        stored = context.journal.tool_result(self.key, turn, call_index, asked)
        if stored is not None:
            return ToolResult(**exact_json.loads(stored))
        self._check_halted()
        with context.asleep():
            result = await self._tools.call(name, arguments)
        context.stats.num_tool_calls += 1
        context.stats.num_tool_errors += result.error_kind is not None
        context.stats.num_cut_tool_results += result.is_cut
        body = exact_json.dumps(result)
        stored = await context.journal.put_tool_result(self.key, turn, call_index, asked, body)
        return result if stored == body else ToolResult(**exact_json.loads(stored))

    def _check_halted(self) -> None:
        if self.halted:
            raise Halted

    def _trajectory(self, ending: End) -> Trajectory:
        return Trajectory(
            rollout_key=self.key,
            prompt_id=self._prompt.id,
            sample_index=self.sample_index,
            messages=self._conversation.messages,
            tools=self._prepared.schemas,
            turns=self._conversation.turns,
            stop_reason=ending.stop_reason,
            model=self._context.endpoint.model,
            error=ending.error,
        )


class Halted(Exception):
    """The collection has stopped; the rollout ends without a record, to be resumed by the next collection."""


class _CapReached(Exception):
    """The next completion could pass the rollout's own cap."""


def _stop_reason(failure: Failure) -> StopReason:
    if failure.context_overflow:
        return StopReason.CONTEXT_OVERFLOW
    stops = {
        FailureKind.CONTENT: StopReason.CONTENT_FILTER,
        FailureKind.LENGTH: StopReason.LENGTH,
        FailureKind.MALFORMED: StopReason.MALFORMED,
    }
    return stops.get(failure.kind, StopReason.ERROR)
