"""Multi-turn trajectories from the student's current weights, token-in token-out.

What the student sampled is trained on as the ids that were sampled: text is decoded only to apply the rule of a turn
(`stillhouse.agent.turns`) and is never tokenised again for training. Tool results and the user's further messages stand
in the sequence and are attended to, but their loss mask is False.

Everything advances in lockstep: completions that finish in one decoding step are handled in the order of their
submission, so that the same weights and seeds give the same trajectories bit for bit, unless a tool itself is random.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from typing import Self

from transformers import GenerationConfig, PreTrainedTokenizerBase

from stillhouse.agent.turns import Ask, CallTools, End, TurnRules, TurnState, first_messages, next_action
from stillhouse.chat.content import Call
from stillhouse.chat.next_turn import next_turn_ids, stop_token_ids
from stillhouse.chat.parse import parse_completion
from stillhouse.chat.rendering import Prefixes, TemplateError
from stillhouse.chat.round_trip import reads_calls
from stillhouse.chat.template import prefix_texts
from stillhouse.chat.tokenizer import decode_all, encode, encode_all
from stillhouse.config import OnPolicyConfig
from stillhouse.errors import TrainingError
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.store import digest
from stillhouse.tools.context import ToolContext
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.on_policy.sampling.engine import SamplingEngine
from stillhouse.training.on_policy.sampling.rollout import StudentRollout, call_all
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Message, Prompt, PromptMetadata, StopReason

logger = logging.getLogger(__name__)

OnGroup = Callable[[list[SampledTrajectory]], None]
OnNumberedGroup = Callable[[int, list[SampledTrajectory]], None]
NextGroup = Callable[[bool], list[StudentRollout] | None]
"""Told whether nothing is under way."""


def beginning(prompt: Prompt, toolbox: Toolbox, system_prompt: str | None) -> Prefixes:
    """Return what the trajectories of a prompt begin with, up to the generation prompt; see `Sampler`."""
    messages = first_messages(prompt, system_prompt)
    return Prefixes(messages, toolbox.select(prompt.tools).schemas(), [(len(messages), True)])


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How to sample; by default the most likely tokens, so that between two measurements only the student differs."""

    max_tokens: int
    max_turns: int
    group_size: int = 1
    max_concurrent: int = 256
    temperature: float = 0.0
    seed: int = 0
    num_best: int = 0
    """Most probable tokens recorded at each sampled one."""

    @classmethod
    def of(cls, config: OnPolicyConfig, num_best: int = 0) -> Self:
        """Return how a training samples."""
        return cls(
            config.max_tokens,
            config.max_turns,
            config.group_size,
            config.max_concurrent,
            config.temperature,
            config.trainer.seed,
            num_best,
        )


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples trajectories; warns of a distribution that is not the student's own, and of calls that are not read."""

    tokenizer: PreTrainedTokenizerBase
    toolbox: Toolbox
    """Every tool configured; a prompt may offer fewer."""
    config: SamplingSettings
    max_context: int
    """Most tokens the student's position encoding holds."""
    system_prompt: str | None = None
    """Put before each prompt that has no system message."""
    metadata: Mapping[str, PromptMetadata] = field(default_factory=dict)
    """By prompt id, for tools that ask whose call they run; may lack any."""
    rules: TurnRules = field(default_factory=TurnRules)
    generation: GenerationConfig | None = None
    """The student's, whose ends count too."""
    _stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stop_ids", stop_token_ids(self.tokenizer, self.generation))
        if self.toolbox.schemas() and not reads_calls(self.tokenizer):
            logger.warning(
                "the student's chat template does not write calls of tools in a form that is read here (Qwen, Hermes, "
                "Qwen3-Coder, GLM): a call that the student makes is taken for its answer, and no tool runs"
            )
        if self.config.temperature not in (0.0, 1.0):
            logger.warning(
                "samples are drawn with temperature %g: what is learnt from them is about that distribution and not "
                "the one that the student has when it is used with 1",
                self.config.temperature,
            )

    def sample(
        self,
        engine: SamplingEngine,
        prompts: Sequence[Prompt],
        round_index: int,
        on_group: OnGroup | None = None,
        *,
        policy_version: int = 0,
    ) -> list[SampledTrajectory]:
        """Return a group of `config.group_size` trajectories for each prompt, in order, one group after the other.

        Nothing is in flight in `engine`, whose weights have had `policy_version` updates. With the config's seed,
        prompt id, sample index and turn, `round_index` seeds each completion. `on_group` gets the trajectories of a
        prompt as soon as all of them have ended.

        Raises:
            TrainingError: the chat template refuses a conversation, or renders its start another way once more follows.
        """
        encoded = zip(prompts, self.prompt_ids(prompts), strict=True)
        groups = (
            self.begun(prompt, round_index, number, policy_version, token_ids)
            for number, (prompt, token_ids) in enumerate(encoded)
        )
        finished: dict[int, list[SampledTrajectory]] = {}

        def take(number: int, group: list[SampledTrajectory]) -> None:
            finished[number] = group
            if on_group is not None:
                on_group(group)

        self.run(engine, lambda is_idle: next(groups, None), take)
        return [trajectory for _, group in sorted(finished.items()) for trajectory in group]

    def begun(
        self, prompt: Prompt, round_index: int, number: int, policy_version: int, token_ids: Sequence[int]
    ) -> list[StudentRollout]:
        """Return the rollouts of group `number`, whose trajectories begin with `token_ids`."""
        toolbox = self.toolbox.select(prompt.tools)
        metadata = self.metadata.get(prompt.id)
        keys = [digest([self.config.seed, round_index, prompt.id, index]) for index in range(self.config.group_size)]
        return [
            StudentRollout(
                group=number,
                round_index=round_index,
                context=ToolContext(key, prompt.id, index, metadata.metadata if metadata else {}),
                toolbox=toolbox,
                record=SampledTrajectory(
                    rollout_key=key,
                    prompt_id=prompt.id,
                    sample_index=index,
                    messages=first_messages(prompt, self.system_prompt),
                    tools=toolbox.schemas(),
                    turns=[],
                    stop_reason=StopReason.ERROR,
                    model="student",
                    token_ids=list(token_ids),
                    loss_mask=[False] * len(token_ids),
                    sampling_logprobs=[0.0] * len(token_ids),
                    policy_version=policy_version,
                ),
                state=TurnState(self.config.max_turns, offers_tools=bool(toolbox.schemas())),
            )
            for index, key in enumerate(keys)
        ]

    def prompt_ids(self, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
        """Yield what every trajectory of each prompt begins with; raise TrainingError if the template refuses one."""
        conversations = [beginning(prompt, self.toolbox, self.system_prompt) for prompt in prompts]
        for prompt, texts in zip(prompts, prefix_texts(self.tokenizer, conversations), strict=True):
            try:
                yield encode(self.tokenizer, next(texts))
            except TemplateError as error:
                raise TrainingError(f"prompt {prompt.id}: {error}") from error

    def run(
        self,
        engine: SamplingEngine,
        next_group: NextGroup,
        on_group: OnNumberedGroup,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Sample groups, `max_concurrent` rollouts at once, so that what began first ends first; raises as `sample`.

        `next_group` gives what to begin once there is room; None for nothing at present, or at the end where nothing is
        under way. `on_group` gets number and trajectories of a group as soon as all of them have ended. What `check`
        raises before a step of the engine ends the sampling.
        """
        waiting: deque[StudentRollout] = deque()
        active: dict[int, StudentRollout] = {}
        groups: dict[int, list[StudentRollout]] = {}
        num_ended: Counter[int] = Counter()

        def proceed(rollout: StudentRollout) -> None:
            """Ask for the next completion, or hand on the group where this was the last of its rollouts."""
            request = self._request(rollout)
            if request is not None:
                active[engine.submit(request)] = rollout
                return
            rollout.close()
            num_ended[rollout.group] += 1
            if num_ended[rollout.group] == len(groups[rollout.group]):
                on_group(rollout.group, [other.trajectory() for other in groups.pop(rollout.group)])

        try:
            while True:
                while len(active) < self.config.max_concurrent:
                    if not waiting:
                        group = next_group(not active)
                        if group is None:
                            break
                        groups[group[0].group] = group
                        waiting += group
                    proceed(waiting.popleft())
                if not active:
                    return
                check()
                finished = [(active.pop(handle), done) for handle, done in sorted(engine.step(), key=itemgetter(0))]
                self._take(finished)
                for rollout, _ in finished:
                    proceed(rollout)
        finally:
            for rollout in chain.from_iterable(groups.values()):
                rollout.close()

    def _request(self, rollout: StudentRollout) -> GenerationRequest | None:
        """Return the next request; None where the rollout has ended, as one does whose prompt fills the context."""
        room = self.max_context - len(rollout.record.token_ids)
        if rollout.end is None and room <= 0:
            rollout.end = End(StopReason.CONTEXT_OVERFLOW)
        if rollout.end is not None:
            return None
        place = [rollout.round_index, rollout.record.prompt_id, rollout.record.sample_index, rollout.state.num_turns]
        return GenerationRequest(
            prompt_ids=list(rollout.record.token_ids),
            max_tokens=min(self.config.max_tokens, room),
            temperature=self.config.temperature,
            seed=int(digest([self.config.seed, *place])[:15], 16),
            stop_ids=self._stop_ids,
            processed_logprobs=True,
            num_best=self.config.num_best,
        )

    def _take(self, finished: Sequence[tuple[StudentRollout, Generation]]) -> None:
        """Add completions and what the student reads next, the results of all their tool calls at once."""
        calling: list[tuple[StudentRollout, list[Call]]] = []
        sampled = [list(generation.completion_ids) for _, generation in finished]
        # At once, which takes all processors.
        encoded = encode_all(self.tokenizer, decode_all(self.tokenizer, sampled))
        for (rollout, generation), ids, ids_of_text in zip(finished, sampled, encoded, strict=True):
            rollout.num_drifted_turns += ids_of_text != ids
            text = self.tokenizer.decode(ids[:-1] if generation.finish_reason == "stop" else ids)
            message = parse_completion(text, rollout.num_requested_calls, rollout.record.tools)
            rollout.add_completion(message, generation)
            rollout.state, action = next_action(self.rules, rollout.state, message, generation.finish_reason)
            match action:
                case CallTools(calls):
                    calling.append((rollout, calls))
                case Ask(messages, num_refused_calls):
                    rollout.record.turns[-1] = replace(rollout.record.turns[-1], num_refused_calls=num_refused_calls)
                    self._open_turn(rollout, messages)
                case End():
                    rollout.end = action
        for (rollout, calls), results in zip(calling, call_all(calling), strict=True):
            replies = [call.result(result.content) for call, result in zip(calls, results, strict=True)]
            self._open_turn(rollout, replies)

    def _open_turn(self, rollout: StudentRollout, replies: Sequence[Message]) -> None:
        """Add the messages that answer a completion and the next turn's opening.

        Where they leave no room to sample, the rollout ends with what was sampled.
        """
        record = rollout.record
        try:
            ids = next_turn_ids(self.tokenizer, record.token_ids[-1:], record.messages, replies, record.tools)
        except TemplateError as error:
            raise TrainingError(
                f"prompt {record.prompt_id}, turn {rollout.state.num_turns + 1}, after {len(record.token_ids)} tokens: "
                f"the prompt of this turn does not begin with the tokens so far: {error}"
            ) from error
        if len(record.token_ids) + len(ids) >= self.max_context:
            rollout.end = End(StopReason.CONTEXT_OVERFLOW)
        else:
            rollout.add_replies(replies, ids)
