"""One rollout: the agent loop over the journal, the endpoint and the tools, and the trajectory it leaves."""

import asyncio
import logging
from dataclasses import replace
from typing import Final

import orjson

from stillhouse.agent.loop import Conversation, run_agent
from stillhouse.agent.turns import End, TurnState
from stillhouse.errors import StillhouseError
from stillhouse.inference.completion import Completion, Sampling, ToolChoice, decode_completion, encode_completion
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.keys import call_digest, request_seed
from stillhouse.inference.rate_limit import RequestSize
from stillhouse.rollouts.caps import RolloutCaps
from stillhouse.rollouts.context import RolloutContext
from stillhouse.store.records import trajectory_from_json
from stillhouse.tools import Toolbox, ToolContext, ToolResult
from stillhouse.types import ErrorRecord, Message, Prompt, StopReason, Trajectory

_LOG = logging.getLogger(__name__)

_OWED: Final = frozenset({StopReason.ERROR, StopReason.BUDGET})
"""Ends after which another collection goes on from the last completion: it tries again, or its cap is higher."""


class Rollout:
    """One sample of one prompt.

    Args:
        prompt: what is sampled from.
        sample_index: which of the prompt's samples, from 0.
        toolbox: the tools offered, no more.
        room: what it shares with the other rollouts.

    Raises:
        ConfigError: the config's `response_schema` is no JSON schema.
    """

    def __init__(self, prompt: Prompt, sample_index: int, toolbox: Toolbox, room: RolloutContext) -> None:
        self._prompt = prompt
        self._sample_index = sample_index
        self._toolbox = toolbox
        self._room = room
        self._offer = room.offer(toolbox)
        self._metadata = room.metadata.get(prompt.id, {}) if self._offer.takes_context else None
        self._caps = RolloutCaps.of(room.config, room.endpoint.price)
        self._deadline: asyncio.Timeout | None = None
        self.key = self._offer.key_form.key(prompt.id, sample_index, self._metadata)
        self._num_paying = 0
        self._has_ended = False
        self.halted = False
        """Set to end the rollout before it pays for anything more."""

    @property
    def holds_value(self) -> bool:
        """Whether to end it now would lose something: an answer that is being paid for, a trajectory to hand out."""
        return self._num_paying > 0 or self._has_ended

    def finished(self) -> Trajectory | None:
        """The trajectory an earlier collection finished, or None."""
        body = self._room.journal.trajectory(self.key)
        return None if body is None else trajectory_from_json(orjson.loads(body))

    async def run(self) -> Trajectory:
        """The trajectory, durable unless it failed or met its own cap: then the next collection goes on with it.

        Raises:
            StillhouseError: every rollout would fail: the endpoint or the journal cannot be used.
            Halted: `halted` was set.
        """
        self._conversation = Conversation(self._first_messages())
        ending = await self._converse()
        self._has_ended = True
        trajectory = self._trajectory(ending)
        if ending.stop_reason in _OWED:
            return trajectory
        body = orjson.dumps(trajectory)
        stored = await self._room.journal.put_trajectory(self.key, body)
        return trajectory if stored == body else trajectory_from_json(orjson.loads(stored))

    def failed(self, error: ErrorRecord) -> Trajectory:
        """The trajectory of a rollout that could not start."""
        self._conversation = Conversation(self._first_messages())
        return self._trajectory(End(StopReason.ERROR, error))

    async def _converse(self) -> End:
        """Runs the agent with tools of its own, and ends what they keep for it."""
        context = ToolContext(self.key, self._prompt.id, self._sample_index, self._metadata or {})
        ending: End | None = None
        try:
            async with self._toolbox.rollout(context) as self._tools:
                ending = await self._converse_in_time()
        except Exception:
            if ending is None:
                raise
            # What was said is whole, whatever becomes of the session of a tool.
            _LOG.exception("rollout %s: a tool could not be closed", self.key[:12])
        return ending

    async def _converse_in_time(self) -> End:
        try:
            if self._room.config.timeout_s is None:
                return await self._run_agent()
            async with asyncio.Timeout(None) as self._deadline:
                return await self._run_agent()
        except RequestFailed as failed:
            return End(_stop_reason(failed.failure), failed.failure.record())
        except (StillhouseError, Halted):
            raise
        except TimeoutError as error:
            if self._deadline is not None and self._deadline.expired():
                return End(StopReason.TIMEOUT)
            return End(StopReason.ERROR, _unexpected(error))
        # One rollout that meets something nobody foresaw is a row; the log has where it came from.
        except Exception as error:
            _LOG.exception("rollout %s of prompt %s met an unexpected error", self.key[:12], self._prompt.id[:12])
            return End(StopReason.ERROR, _unexpected(error))

    async def _run_agent(self) -> End:
        state = TurnState(self._room.config.max_turns, offers_tools=bool(self._offer.schemas))
        try:
            ending = await run_agent(
                self._conversation, self._offer.rules, state, complete=self._complete, call_tool=self._call_tool
            )
        except _CapReached:
            return End(StopReason.BUDGET)
        cut_by_cap = self._caps is not None and self._caps.has_cut and ending.stop_reason is StopReason.LENGTH
        return End(StopReason.BUDGET) if cut_by_cap else ending

    async def _complete(self, turn: int, tool_choice: ToolChoice) -> Completion:
        """The next completion: the journal's, or the endpoint's once it is in the journal."""
        room, conversation = self._room, self._conversation
        max_tokens = room.config.max_tokens
        digest = conversation.digest.of_request()
        completion = self._replay(turn, digest)
        if completion is None and self._caps is not None:
            allowed = self._caps.allowed_tokens(self._num_characters)
            if allowed is None:
                raise _CapReached
            if allowed < max_tokens:
                # It may be cut where the same request without a cap would not be, so it is another request.
                max_tokens, digest = allowed, conversation.digest.of_request(allowed)
                completion = self._replay(turn, digest)
        if completion is None:
            completion = await self._ask(turn, digest, self._sampling(turn, max_tokens, tool_choice))
        if self._caps is not None:
            self._caps.count(completion.turn, self._num_characters, max_tokens)
        return completion

    def _replay(self, turn: int, digest: str) -> Completion | None:
        stored = self._room.journal.completion(self.key, turn, digest)
        if stored is None:
            return None
        completion = decode_completion(stored)
        self._room.replayed(completion.turn)
        return completion

    async def _ask(self, turn: int, digest: str, sampling: Sampling) -> Completion:
        room, messages, schemas = self._room, self._conversation.messages, self._offer.schemas

        async def send() -> Completion:
            self._check_halted()
            self._start_clock()
            self._num_paying += 1
            try:
                completion = await room.client.complete(messages, schemas, sampling)
                # Durable before the slot is free: a crash then makes us pay again for no more than there are slots.
                body = encode_completion(completion)
                stored = await room.journal.put_completion(self.key, turn, digest, body)
            finally:
                self._num_paying -= 1
            return completion if stored == body else replace(decode_completion(stored), limits=completion.limits)

        size = RequestSize(self._num_characters, sampling.max_tokens)
        return await room.requester.ask(send, size=size, continuing=turn > 0, asleep=room.asleep)

    def _sampling(self, turn: int, max_tokens: int, tool_choice: ToolChoice) -> Sampling:
        config = self._room.config
        return Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=max_tokens,
            seed=request_seed(config.seed, self.key, turn),
            record_tokens=config.record_tokens,
            tool_choice=tool_choice,
            response_schema=config.response_schema or None,
            reasoning_effort=config.reasoning_effort,
            extra_body=config.extra_body,
        )

    @property
    def _num_characters(self) -> int:
        return self._conversation.num_characters + self._offer.num_characters

    async def _call_tool(self, turn: int, call_index: int, name: str, arguments: str) -> ToolResult:
        room, tools = self._room, self._tools
        digest = call_digest(name, arguments)
        stored = room.journal.tool_result(self.key, turn, call_index, digest)
        if stored is not None:
            return ToolResult(**orjson.loads(stored))
        self._check_halted()
        with room.asleep():
            result = await tools.call(name, arguments)
        room.stats.num_tool_calls += 1
        room.stats.num_tool_errors += result.error_kind is not None
        body = orjson.dumps(result)
        stored = await room.journal.put_tool_result(self.key, turn, call_index, digest, body)
        return result if stored == body else ToolResult(**orjson.loads(stored))

    def _check_halted(self) -> None:
        if self.halted:
            raise Halted

    def _start_clock(self) -> None:
        """The rollout's time counts from its first request: before, it waited for its turn."""
        timeout_s = self._room.config.timeout_s
        if timeout_s is not None and self._deadline is not None and self._deadline.when() is None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + timeout_s)

    def _first_messages(self) -> list[Message]:
        messages = list(self._prompt.messages)
        system_prompt = self._room.config.system_prompt
        if system_prompt is not None and not any(message["role"] == "system" for message in messages):
            messages.insert(0, {"role": "system", "content": system_prompt})
        return messages

    def _trajectory(self, ending: End) -> Trajectory:
        return Trajectory(
            rollout_key=self.key,
            prompt_id=self._prompt.id,
            sample_index=self._sample_index,
            messages=self._conversation.messages,
            tools=self._offer.schemas,
            turns=self._conversation.turns,
            stop_reason=ending.stop_reason,
            model=self._room.endpoint.model,
            error=ending.error,
        )


class Halted(Exception):
    """The collection has stopped; the rollout ends without a record and owes what it lacks."""


class _CapReached(Exception):
    """The next completion could pass the rollout's own cap."""


def _stop_reason(failure: Failure) -> StopReason:
    if failure.context_overflow:
        return StopReason.CONTEXT_OVERFLOW
    return StopReason.CONTENT_FILTER if failure.kind is FailureKind.CONTENT else StopReason.ERROR


def _unexpected(error: Exception) -> ErrorRecord:
    return {"kind": type(error).__name__, "message": str(error)}
