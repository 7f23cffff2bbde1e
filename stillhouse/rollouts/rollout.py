"""One rollout: the agent loop over the journal, the endpoint and the tools, and the trajectory it leaves."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import orjson

from stillhouse.config import RolloutsConfig
from stillhouse.errors import StillhouseError
from stillhouse.rollouts.agent import Conversation, run_agent
from stillhouse.rollouts.client import ChatClient
from stillhouse.rollouts.completion import Completion, Sampling, decode_completion, encode_completion
from stillhouse.rollouts.endpoint import Endpoint
from stillhouse.rollouts.failures import Failure, FailureKind, RequestFailed
from stillhouse.rollouts.journal import Journal
from stillhouse.rollouts.keys import call_digest, request_digest, request_seed, rollout_key
from stillhouse.rollouts.retry import Requester
from stillhouse.rollouts.stats import RolloutStats
from stillhouse.store.records import trajectory_from_json
from stillhouse.tools import Toolbox, ToolResult
from stillhouse.types import ErrorRecord, Message, Prompt, StopReason, Trajectory

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutRoom:
    """What all rollouts of one collection share."""

    endpoint: Endpoint
    config: RolloutsConfig
    journal: Journal
    client: ChatClient
    requester: Requester
    stats: RolloutStats
    record_tokens: bool
    asleep: Callable[[], AbstractContextManager[None]]
    """Entered while a rollout wants no slot: it runs a tool, or waits to try again."""


class Rollout:
    """One sample of one prompt.

    Args:
        prompt: what is sampled from.
        sample_index: which of the prompt's samples, from 0.
        toolbox: the tools offered, no more.
        room: what it shares with the other rollouts.
    """

    def __init__(self, prompt: Prompt, sample_index: int, toolbox: Toolbox, room: RolloutRoom) -> None:
        self._prompt = prompt
        self._sample_index = sample_index
        self._toolbox = toolbox
        self._room = room
        self._schemas = toolbox.schemas()
        self._deadline = asyncio.Timeout(None)
        self.key = rollout_key(
            prompt.id,
            sample_index,
            room.endpoint.identity,
            room.config,
            self._schemas,
            record_tokens=room.record_tokens,
        )
        self.holds_value = False
        """Whether to end it now would lose something: an answer that is being paid for, a trajectory to hand out."""
        self.halted = False
        """Set to end the rollout before it pays for anything more."""

    def finished(self) -> Trajectory | None:
        """The trajectory an earlier collection finished, or None."""
        body = self._room.journal.trajectory(self.key)
        return None if body is None else trajectory_from_json(orjson.loads(body))

    async def run(self) -> Trajectory:
        """The trajectory, durable unless it failed: a failed one is tried again by the next collection.

        Raises:
            StillhouseError: every rollout would fail: the endpoint or the journal cannot be used.
            Halted: `halted` was set.
        """
        conversation = Conversation(self._first_messages())
        stop_reason, error = await self._run_agent(conversation)
        self.holds_value = True
        trajectory = self._trajectory(conversation, stop_reason, error)
        if stop_reason is StopReason.ERROR:
            return trajectory
        stored = await self._room.journal.put_trajectory(self.key, orjson.dumps(trajectory))
        return trajectory_from_json(orjson.loads(stored))

    def failed(self, error: ErrorRecord) -> Trajectory:
        """The trajectory of a rollout that could not start."""
        return self._trajectory(Conversation(self._first_messages()), StopReason.ERROR, error)

    async def _run_agent(self, conversation: Conversation) -> tuple[StopReason, ErrorRecord | None]:
        try:
            async with self._deadline:
                stop_reason = await run_agent(
                    conversation,
                    complete=self._complete,
                    call_tool=self._call_tool,
                    max_turns=self._room.config.max_turns,
                )
            return stop_reason, None
        except RequestFailed as failed:
            return _stop_reason(failed.failure), failed.failure.record()
        except (StillhouseError, Halted):
            raise
        except TimeoutError as error:
            if self._deadline.expired():
                return StopReason.TIMEOUT, None
            return StopReason.ERROR, _unexpected(error)
        # One rollout that meets something nobody foresaw is a row; the log has where it came from.
        except Exception as error:
            _LOG.exception("rollout %s of prompt %s met an unexpected error", self.key[:12], self._prompt.id[:12])
            return StopReason.ERROR, _unexpected(error)

    async def _complete(self, turn: int, messages: list[Message]) -> Completion:
        room = self._room
        digest = request_digest(messages)
        stored = room.journal.completion(self.key, turn, digest)
        if stored is not None:
            room.stats.num_replayed += 1
            return decode_completion(stored)
        sampling = Sampling(
            temperature=room.config.temperature,
            top_p=room.config.top_p,
            max_tokens=room.config.max_tokens,
            seed=request_seed(room.config.seed, self.key, turn),
            record_tokens=room.record_tokens,
        )

        async def send() -> Completion:
            self._check_halted()
            self._start_clock()
            self.holds_value = True
            try:
                return await room.client.complete(messages, self._schemas, sampling)
            except BaseException:
                self.holds_value = False
                raise

        try:
            completion = await room.requester.ask(send, continuing=turn > 0, asleep=room.asleep)
            body = await room.journal.put_completion(self.key, turn, digest, encode_completion(completion))
        finally:
            self.holds_value = False
        return decode_completion(body)

    async def _call_tool(self, turn: int, call_index: int, name: str, arguments: str) -> ToolResult:
        room = self._room
        digest = call_digest(name, arguments)
        stored = room.journal.tool_result(self.key, turn, call_index, digest)
        if stored is None:
            self._check_halted()
            with room.asleep():
                result = await self._toolbox.call(name, arguments)
            room.stats.num_tool_calls += 1
            room.stats.num_tool_errors += result.error_kind is not None
            stored = await room.journal.put_tool_result(self.key, turn, call_index, digest, orjson.dumps(result))
        return ToolResult(**orjson.loads(stored))

    def _check_halted(self) -> None:
        if self.halted:
            raise Halted

    def _start_clock(self) -> None:
        """The rollout's time counts from its first request: before, it waited for its turn."""
        timeout_s = self._room.config.timeout_s
        if timeout_s is not None and self._deadline.when() is None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + timeout_s)

    def _first_messages(self) -> list[Message]:
        messages = list(self._prompt.messages)
        system_prompt = self._room.config.system_prompt
        if system_prompt is not None and not any(message["role"] == "system" for message in messages):
            messages.insert(0, {"role": "system", "content": system_prompt})
        return messages

    def _trajectory(self, conversation: Conversation, stop_reason: StopReason, error: ErrorRecord | None) -> Trajectory:
        return Trajectory(
            rollout_key=self.key,
            prompt_id=self._prompt.id,
            sample_index=self._sample_index,
            messages=conversation.messages,
            tools=self._schemas,
            turns=conversation.turns,
            stop_reason=stop_reason,
            model=self._room.endpoint.model,
            error=error,
        )


class Halted(Exception):
    """The collection has stopped; the rollout ends without a record and owes what it lacks."""


def _stop_reason(failure: Failure) -> StopReason:
    if failure.context_overflow:
        return StopReason.CONTEXT_OVERFLOW
    return StopReason.CONTENT_FILTER if failure.kind is FailureKind.CONTENT else StopReason.ERROR


def _unexpected(error: Exception) -> ErrorRecord:
    return {"kind": type(error).__name__, "message": str(error)}
