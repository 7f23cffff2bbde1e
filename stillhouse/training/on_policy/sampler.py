"""Multi-turn trajectories from the student's current weights, token-in token-out.

What the student sampled is trained on as the ids that were sampled: text is decoded only to find tool calls and is
never tokenised again. Tool output stands in the sequence and is attended to, but its loss mask is False.

Everything advances in lockstep: completions that finish in one decoding step are handled in the order of their
submission, so that the same weights and seeds give the same trajectories bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.parse import parse_completion
from stillhouse.chat.template import next_turn_ids, render, stop_token_ids
from stillhouse.serving.generator import Generation, GenerationRequest, Generator
from stillhouse.store import digest
from stillhouse.tools.toolbox import Toolbox
from stillhouse.types import Message, Prompt, StopReason


class SamplingSettings(Protocol):
    """What a sampler is told of how to sample: `OnPolicyConfig` says it, among other things."""

    @property
    def group_size(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_turns(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(slots=True)
class SampledTrajectory:
    """One trajectory; `token_ids`, `loss_mask` and `sampling_logprobs` are aligned and grow together."""

    prompt_id: str
    sample_index: int
    messages: list[Message]
    toolbox: Toolbox
    """Holds the tools this prompt offers and no other."""
    token_ids: list[int]
    loss_mask: list[bool]
    """True exactly where the student sampled."""
    sampling_logprobs: list[float]
    """0.0 where the mask is False."""
    num_turns: int = 0
    num_tool_calls: int = 0
    num_tool_errors: int = 0
    stop_reason: StopReason | None = None
    """None while it is being sampled."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples trajectories.

    Args:
        tokenizer: the student's.
        toolbox: every tool configured; a prompt may offer fewer.
        config: trajectories per prompt, temperature, most tokens and turns, seed.
        max_context: most tokens the student's position encoding holds.
        system_prompt: put before each prompt that has no system message; None adds none.
    """

    tokenizer: PreTrainedTokenizerBase
    toolbox: Toolbox
    config: SamplingSettings
    max_context: int
    system_prompt: str | None = None
    _stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stop_ids", stop_token_ids(self.tokenizer))

    def sample(self, generator: Generator, prompts: Sequence[Prompt], step: int) -> list[SampledTrajectory]:
        """A group of `config.group_size` trajectories for each prompt, in order, one group after the other.

        Args:
            generator: over the student's current weights, with nothing in flight.
            prompts: sampled from.
            step: optimiser step; with the config's seed, prompt id, sample index and turn it seeds each completion.
        """
        trajectories = [self._begin(prompt, index) for prompt in prompts for index in range(self.config.group_size)]
        active: dict[int, SampledTrajectory] = {}
        for trajectory in trajectories:
            self._submit(generator, trajectory, step, active)
        while active:
            finished = sorted(generator.step(), key=lambda entry: entry[0])
            for handle, generation in finished:
                trajectory = active.pop(handle)
                self._take(trajectory, generation)
                if trajectory.stop_reason is None:
                    self._submit(generator, trajectory, step, active)
        return trajectories

    def _begin(self, prompt: Prompt, sample_index: int) -> SampledTrajectory:
        messages = list(prompt.messages)
        if self.system_prompt is not None and all(message["role"] != "system" for message in messages):
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        toolbox = self.toolbox.select(prompt.tools)
        token_ids = render(self.tokenizer, messages, toolbox.schemas(), add_generation_prompt=True)
        return SampledTrajectory(
            prompt_id=prompt.id,
            sample_index=sample_index,
            messages=messages,
            toolbox=toolbox,
            token_ids=token_ids,
            loss_mask=[False] * len(token_ids),
            sampling_logprobs=[0.0] * len(token_ids),
        )

    def _submit(
        self, generator: Generator, trajectory: SampledTrajectory, step: int, active: dict[int, SampledTrajectory]
    ) -> None:
        """Asks for the next completion; a prompt that fills the context ends its trajectory with nothing sampled."""
        room = self.max_context - len(trajectory.token_ids)
        if room <= 0:
            trajectory.stop_reason = StopReason.CONTEXT_OVERFLOW
            return
        request = GenerationRequest(
            prompt_ids=list(trajectory.token_ids),
            max_tokens=min(self.config.max_tokens, room),
            temperature=self.config.temperature,
            seed=self._seed(trajectory, step),
            stop_ids=self._stop_ids,
        )
        active[generator.submit(request)] = trajectory

    def _seed(self, trajectory: SampledTrajectory, step: int) -> int:
        parts = [self.config.seed, step, trajectory.prompt_id, trajectory.sample_index, trajectory.num_turns]
        return int(digest(parts)[:15], 16)

    def _take(self, trajectory: SampledTrajectory, generation: Generation) -> None:
        """Adds a completion and, where it calls tools and may go on, their results."""
        sampled = list(generation.completion_ids)
        trajectory.token_ids += sampled
        trajectory.loss_mask += [True] * len(sampled)
        trajectory.sampling_logprobs += generation.logprobs
        trajectory.num_turns += 1
        ended = generation.finish_reason == "stop"
        text = self.tokenizer.decode(sampled[:-1] if ended else sampled)
        message = parse_completion(text, first_call_index=trajectory.num_tool_calls)
        trajectory.messages.append(message)
        if not ended:
            trajectory.stop_reason = StopReason.LENGTH
        elif not message.get("tool_calls"):
            trajectory.stop_reason = StopReason.ANSWERED
        else:
            results = self._call_tools(trajectory, message)
            if trajectory.num_turns == self.config.max_turns:
                trajectory.stop_reason = StopReason.MAX_TURNS
            else:
                self._append_unsampled(trajectory, sampled, results)

    def _call_tools(self, trajectory: SampledTrajectory, message: Message) -> list[Message]:
        results: list[Message] = []
        for call in message["tool_calls"]:
            result = trajectory.toolbox.call_sync(call["function"]["name"], call["function"]["arguments"])
            trajectory.num_tool_calls += 1
            trajectory.num_tool_errors += result.error_kind is not None
            results.append({"role": "tool", "tool_call_id": call["id"], "content": result.content})
        return results

    def _append_unsampled(self, trajectory: SampledTrajectory, sampled: list[int], results: list[Message]) -> None:
        """Adds tool results and the next turn's opening, which are read by the student and never trained on.

        Where they leave no room to sample, the trajectory ends with what was sampled.
        """
        ids = next_turn_ids(self.tokenizer, sampled, trajectory.messages, results, trajectory.toolbox.schemas())
        if len(trajectory.token_ids) + len(ids) >= self.max_context:
            trajectory.stop_reason = StopReason.CONTEXT_OVERFLOW
            return
        trajectory.messages += results
        trajectory.token_ids += ids
        trajectory.loss_mask += [False] * len(ids)
        trajectory.sampling_logprobs += [0.0] * len(ids)
