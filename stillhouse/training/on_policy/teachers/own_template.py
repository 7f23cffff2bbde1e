"""The view of a teacher of the student's vocabulary that reads by its own chat template.

A chat teacher is off where the student's prompt is a form that it has never seen, such as `User: ... Assistant:`: by
0.287 nats a token, and the training failed (tinker-cookbook#796). Here its template renders the prompt and what stands
between turns: tool results, and the user's further messages. Turns are the tokens that the student sampled, reasoning
and calls in its own form included, with the end-of-turn tokens exchanged (`shared_ids`).

Reasoning stands behind the same opening for both. Where the student's generation prompt opens a thinking block, so does
the teacher's, in the student's spelling. Where it opens none, nor does the teacher's, and whether the student writes
`<think>` itself is part of what is scored. A prompt that closes the block (thinking turned off) stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.message_form import CALL_PROBE, CALL_PROBE_TOOLS
from stillhouse.chat.next_turn import next_turn
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import prefix_texts, render_text
from stillhouse.chat.thinking import is_closed, opening_of
from stillhouse.chat.tokenizer import decode_all, encode
from stillhouse.errors import ConfigError
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.teachers.shared_ids import EndExchange
from stillhouse.training.on_policy.teachers.views import Opening, prompt_messages, rendering, sampled_turns
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Message, PromptMetadata, Sample, ToolSchema

_BLOCK_TOKENS: Final = 24
"""Tokens at the end of a prompt that hold an empty thinking block."""
_CALLS_OF_A_TURN: Final = 4
"""Calls for whose results the teacher's context leaves room in each turn."""
_REASONING: Final = frozenset({"reasoning_content", "reasoning"})
_REMEDY: Final = "Set `template: student` for this teacher, or use another one"


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """For a teacher of the student's vocabulary with `template: own`; `name` is its own."""

    name: str
    student: PreTrainedTokenizerBase
    teacher: PreTrainedTokenizerBase
    ends: EndExchange
    max_turns: int
    """Most completions of a trajectory."""
    hint: Hint | None = None

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> Sample | None:
        """See `ViewBuilder`; it also raises TrainingError where one template opens a block that the other closes."""
        with rendering(trajectory.prompt_id, _REMEDY):
            view = self._view(trajectory, metadata)
        return None if view == Sample(trajectory.token_ids, trajectory.loss_mask, trajectory.prompt_id) else view

    def added_tokens(self, openings: Sequence[Opening]) -> int:
        """See `ViewBuilder`: of the longest prompt, and of as many turns with four calls each as there may be.

        Raises as `view`, and ConfigError where tools are offered and the exchanged tokens do not end the teacher's
        turns with calls.
        """
        with_tools = [opening.prompt_id for opening in openings if opening.conversation.tools]
        if with_tools:
            if not self.ends.fits_calls:
                raise ConfigError(self._calls_end_differently())
            with rendering(with_tools[0], _REMEDY):
                next_turn(self.teacher, *_exchange(1))
        added = max(self._added_to_prompts(openings), default=0)
        # The answer to refused calls may be one turn more.
        num_replies = self.max_turns if with_tools else self.max_turns - 1
        kinds = (0, 1, _CALLS_OF_A_TURN) if with_tools else (0,)
        return max(0, added) + num_replies * max(0, *map(self._added_to_replies, kinds))

    def _view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> Sample:
        prompt, tools = prompt_messages(trajectory, self.hint, metadata), trajectory.tools
        turns = sampled_turns(trajectory)
        text = render_text(self.teacher, prompt, tools, add_generation_prompt=True)
        ids = encode(self.teacher, self._opened(text, turns[0].prompt_ids))
        mask = [False] * len(ids)
        for number, turn in enumerate(turns, start=1):
            written = self.ends.ids(turn.ids)
            read: list[int] = []
            if turn.replies:
                # The tokens hold the reasoning, whatever the template makes of it in a history.
                messages = [*prompt, *map(_without_reasoning, turn.messages)]
                end, text = next_turn(self.teacher, messages, turn.replies, tools)
                read = encode(self.teacher, self._opened(text, turns[number].prompt_ids))
                if written[-1] not in {end, self.teacher.eos_token_id}:
                    read = [end, *read]
            ids += written + read
            mask += [True] * len(written) + [False] * len(read)
        return Sample(ids, mask, trajectory.prompt_id)

    def _opened(self, text: str, student_ids: Sequence[int]) -> str:
        """Return a text that ends with the teacher's generation prompt, with the thinking block of the student's."""
        (read,) = decode_all(self.student, [list(student_ids[-_BLOCK_TOKENS:])])
        ours, theirs = opening_of(read), opening_of(text)
        if (ours and is_closed(text)) or (theirs and is_closed(read)):
            whose = ("student", f"teacher {self.name!r}")
            opens, closes = whose if ours else whose[::-1]
            raise TemplateError(
                f"the generation prompt of the {opens} opens a thinking block, and the one of the {closes} closes it: "
                "turn thinking on for both or off for both, by chat_template_kwargs of the student and of the teacher"
            )
        return text.removesuffix(theirs) + ours

    def _added_to_prompts(self, openings: Sequence[Opening]) -> list[int]:
        conversations = [opening.conversation for opening in openings]
        read = conversations
        if self.hint is not None:
            read = [
                one._replace(messages=self.hint.insert(cast(list[Message], one.messages), prompt_id, metadata))
                for prompt_id, one, metadata in openings
            ]
        rendered = zip(prefix_texts(self.student, conversations), prefix_texts(self.teacher, read), strict=True)
        lengths = []
        for opening, (ours, theirs) in zip(openings, rendered, strict=True):
            with rendering(opening.prompt_id, _REMEDY):
                ids = encode(self.student, next(ours))
                lengths.append(len(encode(self.teacher, self._opened(next(theirs), ids))) - len(ids))
        return lengths

    def _added_to_replies(self, num_calls: int) -> int:
        """Return how many more tokens the teacher reads between two turns; 0 where a template refuses them."""
        try:
            ours, theirs = (
                next_turn(tokenizer, *_exchange(num_calls))[1] for tokenizer in (self.student, self.teacher)
            )
            ids = encode(self.student, ours)
            return len(encode(self.teacher, self._opened(theirs, ids))) - len(ids)
        except TemplateError:
            return 0

    def _calls_end_differently(self) -> str:
        ours, theirs = self.ends.student, self.ends.teacher
        names = self.student.convert_ids_to_tokens([ours.text, ours.calls, theirs.text, theirs.calls])
        return (
            f"teacher {self.name!r} with `template: own`: the student's chat template ends turns of text with "
            f"{names[0]} and turns with calls of tools with {names[1]}, the teacher's with {names[2]} and {names[3]}; "
            "only one pair of tokens can be exchanged. Leave tools out, or take a student or a teacher whose template "
            "ends both in the same way"
        )


def _without_reasoning(message: Message) -> Message:
    return cast(Message, {key: value for key, value in message.items() if key not in _REASONING})


def _exchange(num_calls: int) -> tuple[list[Message], list[Message], list[ToolSchema] | None]:
    """Return a conversation up to a turn with so many calls, or with an answer; the replies to it; and the tools."""
    question, message = CALL_PROBE
    if not num_calls:
        return [question, {"role": "assistant", "content": "b"}], [question], None
    calls = [{**message["tool_calls"][0], "id": f"call0000{number}"} for number in range(num_calls)]
    results: list[Message] = [{"role": "tool", "tool_call_id": str(call["id"]), "content": "a"} for call in calls]
    return [question, cast(Message, {**message, "tool_calls": calls})], results, CALL_PROBE_TOOLS
