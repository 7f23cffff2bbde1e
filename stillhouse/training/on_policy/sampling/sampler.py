"""Multi-turn trajectories from the student's current weights, token-in token-out.

What the student sampled is trained on as the ids that were sampled: text is decoded only to find tool calls and is
never tokenised again for training. Tool output stands in the sequence and is attended to, but its loss mask is False.

Everything advances in lockstep: completions that finish in one decoding step are handled in the order of their
submission, so that the same weights and seeds give the same trajectories bit for bit, unless a tool itself is random.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.parse import parse_completion
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import next_turn_ids, render, stop_token_ids
from stillhouse.chat.tokenizer import decode_all, encode_all
from stillhouse.errors import TrainingError
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.store import digest
from stillhouse.tools.calls import ToolErrorKind
from stillhouse.tools.context import ToolContext
from stillhouse.tools.toolbox import Toolbox, ToolResult
from stillhouse.training.on_policy.sampling.engine import Engine
from stillhouse.training.on_policy.sampling.settings import SamplingSettings, warn_of_another_distribution
from stillhouse.training.on_policy.sampling.tool_calls import OpenTools, TurnCalls, call_all
from stillhouse.training.on_policy.trajectories import SampledTrajectory
from stillhouse.types import Message, Prompt, PromptMetadata, StopReason, ToolCall

OnGroup = Callable[[list[SampledTrajectory]], None]

_INVALID: Final[frozenset[ToolErrorKind]] = frozenset({"unknown_tool", "malformed_arguments", "invalid_arguments"})


@dataclass(slots=True)
class _Rollout:
    """A trajectory under way."""

    trajectory: SampledTrajectory
    tools: OpenTools
    group: int
    """Place of its prompt in the batch."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples trajectories; warns once where what is sampled is not the student's own distribution.

    Args:
        tokenizer: the student's.
        toolbox: every tool configured; a prompt may offer fewer.
        config: trajectories per prompt and at once, temperature, nucleus, most tokens and turns, seed.
        max_context: most tokens the student's position encoding holds.
        system_prompt: put before each prompt that has no system message; None adds none.
        metadata: by prompt id, for tools that ask whose call they run; may lack any.
    """

    tokenizer: PreTrainedTokenizerBase
    toolbox: Toolbox
    config: SamplingSettings
    max_context: int
    system_prompt: str | None = None
    metadata: Mapping[str, PromptMetadata] = field(default_factory=dict)
    _stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stop_ids", stop_token_ids(self.tokenizer))
        warn_of_another_distribution(self.config)

    def sample(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        round_index: int,
        on_group: OnGroup | None = None,
        *,
        policy_version: int = 0,
    ) -> list[SampledTrajectory]:
        """A group of `config.group_size` trajectories for each prompt, in order, one group after the other.

        Args:
            engine: over the student's current weights, with nothing in flight.
            prompts: sampled from.
            round_index: with the config's seed, prompt id, sample index and turn it seeds each completion.
            on_group: called with the trajectories of a prompt as soon as all of them have ended.
            policy_version: updates that the weights have had.

        Raises:
            TrainingError: the chat template refuses a conversation, or renders its start another way once more follows.
        """
        rollouts = [
            self._begin(prompt, group, index, round_index, policy_version)
            for group, prompt in enumerate(prompts)
            for index in range(self.config.group_size)
        ]
        try:
            self._run(engine, rollouts, round_index, on_group)
        finally:
            for rollout in rollouts:
                rollout.tools.close()
        return [rollout.trajectory for rollout in rollouts]

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """What every trajectory of the prompt begins with.

        Raises:
            TrainingError: the chat template refuses it.
        """
        schemas = self.toolbox.select(prompt.tools).schemas()
        try:
            return render(self.tokenizer, self._messages(prompt), schemas, add_generation_prompt=True)
        except TemplateError as error:
            raise TrainingError(f"prompt {prompt.id}: {error}") from error

    def _run(self, engine: Engine, rollouts: Sequence[_Rollout], round_index: int, on_group: OnGroup | None) -> None:
        """Keeps `max_concurrent` trajectories under way, so that what began first ends first."""
        waiting = deque(rollouts)
        active: dict[int, _Rollout] = {}
        unfinished = [self.config.group_size] * (len(rollouts) // self.config.group_size)

        def proceed(rollout: _Rollout) -> None:
            """Asks for the next completion, or notes that there is none to come."""
            request = self._request(rollout.trajectory, round_index)
            if request is not None:
                active[engine.submit(request)] = rollout
                return
            rollout.tools.close()
            unfinished[rollout.group] -= 1
            if not unfinished[rollout.group] and on_group is not None:
                on_group([other.trajectory for other in rollouts if other.group == rollout.group])

        while active or waiting:
            while waiting and len(active) < self.config.max_concurrent:
                proceed(waiting.popleft())
            if not active:
                continue
            finished = [
                (active.pop(handle), done) for handle, done in sorted(engine.step(), key=lambda entry: entry[0])
            ]
            self._take(finished)
            for rollout, _ in finished:
                proceed(rollout)

    def _begin(self, prompt: Prompt, group: int, index: int, round_index: int, policy_version: int) -> _Rollout:
        token_ids = self.prompt_ids(prompt)
        trajectory = SampledTrajectory(
            prompt_id=prompt.id,
            sample_index=index,
            messages=self._messages(prompt),
            toolbox=self.toolbox.select(prompt.tools),
            token_ids=token_ids,
            loss_mask=[False] * len(token_ids),
            sampling_logprobs=[0.0] * len(token_ids),
            policy_version=policy_version,
        )
        about = self.metadata.get(prompt.id)
        key = digest([self.config.seed, round_index, prompt.id, index])
        context = ToolContext(key, prompt.id, index, about.metadata if about else {})
        return _Rollout(trajectory, OpenTools(trajectory.toolbox, context), group)

    def _messages(self, prompt: Prompt) -> list[Message]:
        if self.system_prompt is None or any(message["role"] == "system" for message in prompt.messages):
            return list(prompt.messages)
        return [{"role": "system", "content": self.system_prompt}, *prompt.messages]

    def _request(self, trajectory: SampledTrajectory, round_index: int) -> GenerationRequest | None:
        """The next completion; None where the trajectory has ended, as one does whose prompt fills the context."""
        room = self.max_context - len(trajectory.token_ids)
        if trajectory.stop_reason is None and room <= 0:
            trajectory.stop_reason = StopReason.CONTEXT_OVERFLOW
        if trajectory.stop_reason is not None:
            return None
        place = [self.config.seed, round_index, trajectory.prompt_id, trajectory.sample_index, trajectory.num_turns]
        return GenerationRequest(
            prompt_ids=list(trajectory.token_ids),
            max_tokens=min(self.config.max_tokens, room),
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            seed=int(digest(place)[:15], 16),
            stop_ids=self._stop_ids,
            processed_logprobs=True,
        )

    def _take(self, finished: Sequence[tuple[_Rollout, Generation]]) -> None:
        """Adds completions and, where they call tools and may go on, what the tools answer."""
        calling = []
        for (rollout, generation), is_drifted in zip(finished, self._are_drifted(finished), strict=True):
            rollout.trajectory.num_drifted_turns += is_drifted
            calls = self._add_completion(rollout.trajectory, generation)
            if calls:
                calling.append((rollout.trajectory, TurnCalls(rollout.tools, calls)))
        for (trajectory, turn), results in zip(calling, call_all([turn for _, turn in calling]), strict=True):
            self._add_results(trajectory, turn.calls, results)

    def _are_drifted(self, finished: Sequence[tuple[_Rollout, Generation]]) -> list[bool]:
        """Whether the tokenizer writes each completion in other tokens; at once, which takes all processors."""
        sampled = [list(generation.completion_ids) for _, generation in finished]
        encoded = encode_all(self.tokenizer, decode_all(self.tokenizer, sampled))
        return [ids != own for ids, own in zip(encoded, sampled, strict=True)]

    def _add_completion(self, trajectory: SampledTrajectory, generation: Generation) -> Sequence[ToolCall]:
        """The calls to run before the next turn; none where the trajectory has ended."""
        sampled = list(generation.completion_ids)
        trajectory.token_ids += sampled
        trajectory.loss_mask += [True] * len(sampled)
        trajectory.sampling_logprobs += generation.logprobs
        trajectory.num_turns += 1
        ended = generation.finish_reason == "stop"
        text = self.tokenizer.decode(sampled[:-1] if ended else sampled)
        message = parse_completion(text, first_call_index=trajectory.num_tool_calls)
        trajectory.messages.append(message)
        calls = message.get("tool_calls") or []
        if not ended:
            trajectory.stop_reason = StopReason.LENGTH
        elif not calls:
            trajectory.stop_reason = StopReason.ANSWERED
        elif trajectory.num_turns == self.config.max_turns:
            trajectory.stop_reason = StopReason.MAX_TURNS
        return calls if trajectory.stop_reason is None else []

    def _add_results(
        self, trajectory: SampledTrajectory, calls: Sequence[ToolCall], results: Sequence[ToolResult]
    ) -> None:
        """Adds tool results and the next turn's opening, which are read by the student and never trained on.

        Where they leave no room to sample, the trajectory ends with what was sampled.
        """
        trajectory.num_tool_calls += len(calls)
        trajectory.num_tool_errors += sum(result.error_kind is not None for result in results)
        trajectory.num_invalid_tool_calls += sum(result.error_kind in _INVALID for result in results)
        answers: list[Message] = [
            {"role": "tool", "tool_call_id": call["id"], "content": result.content}
            for call, result in zip(calls, results, strict=True)
        ]
        ids = self._opening_ids(trajectory, answers)
        if len(trajectory.token_ids) + len(ids) >= self.max_context:
            trajectory.stop_reason = StopReason.CONTEXT_OVERFLOW
            return
        trajectory.messages += answers
        trajectory.token_ids += ids
        trajectory.loss_mask += [False] * len(ids)
        trajectory.sampling_logprobs += [0.0] * len(ids)

    def _opening_ids(self, trajectory: SampledTrajectory, answers: Sequence[Message]) -> list[int]:
        try:
            return next_turn_ids(
                self.tokenizer, trajectory.token_ids[-1:], trajectory.messages, answers, trajectory.toolbox.schemas()
            )
        except TemplateError as error:
            raise TrainingError(
                f"prompt {trajectory.prompt_id}, turn {trajectory.num_turns + 1}, after {len(trajectory.token_ids)} "
                f"tokens: the prompt of this turn does not begin with the tokens so far: {error}"
            ) from error
