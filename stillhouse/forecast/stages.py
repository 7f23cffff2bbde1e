"""The lines of a config: rollouts, judgements, the teacher's evaluation, tokens that served teachers score."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from stillhouse.config import DistillConfig, RolloutsConfig
from stillhouse.evaluation.sampling import evaluation_rollouts
from stillhouse.forecast.line import FEWEST_PER_CHARACTER, Line, Work, line_of
from stillhouse.forecast.ranges import Range, exactly
from stillhouse.forecast.survey import Survey
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.journal import Journal
from stillhouse.tools import Toolbox
from stillhouse.types import Prompt, PromptMetadata

_MAX_RESULT: Final = 50_000
_PER_TOKEN: Final = 4  # characters
_JUDGE_TASK: Final = 2_000  # characters around the conversation, about


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known of a run beforehand. Its methods raise ConfigError and StoreError where tools or journal cannot be
    read.
    """

    config: DistillConfig
    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    metadata: Mapping[str, PromptMetadata]
    """By prompt id."""
    teacher: Endpoint
    judge: Endpoint
    journal: Journal | None

    def rollouts(self) -> Survey:
        """Return the survey of the teacher's rollouts."""
        return self._survey(self.train[: self.config.rollouts.max_prompts], self.config.rollouts)

    def lines(self, stages: Set[str], found: Survey) -> list[Line]:
        """Return the lines of `stages` (of rollouts, judge, sft, on_policy, evaluation) by the survey of `rollouts`."""
        config, work, lines = self.config, self._work(found), list[Line]()
        if (target := config.dataset.selection.target_rows) is not None:
            # How many are needed depends on how many pass the filters.
            most = (config.dataset.selection.max_candidates or math.inf) - found.num_paid
            count = min(found.num_to_come, max(most, 0))
            work = replace(work, count=Range(min(count, max(target - found.num_paid, 0)), None, count))
        if "rollouts" in stages:
            lines.append(line_of("rollouts", "prompts", found, work, found.seen, config.rollouts.num_samples))
        if "judge" in stages:
            lines.append(self._judgements(found, work))
        for stage in ("sft", "on_policy"):
            lines += self._scored(stage, found) if stage in stages else []
        if "evaluation" in stages:
            rules = evaluation_rollouts(config.evaluation, config.rollouts.system_prompt, record_tokens=False)
            held = self._survey(self.held_out[: config.evaluation.max_prompts], rules)
            # Its answers to the training prompts are of the same kind.
            lines.append(line_of("evaluation", "answers", held, self._work(held), held.seen or found.seen))
        return [line for line in lines if line.count + line.num_paid > 0]

    def _survey(self, prompts: Sequence[Prompt], config: RolloutsConfig) -> Survey:
        toolbox = Toolbox.from_config(self.config.tools)
        return Survey(self.teacher, prompts, config, toolbox, self.metadata, self.journal)

    def _work(self, found: Survey) -> Work:
        max_result = self.config.tools.max_result_characters or _MAX_RESULT
        characters = found.characters_to_come / max(found.num_to_come, 1)
        return Work(exactly(found.num_to_come), exactly(characters), found.num_paid, max_result)

    def _judgements(self, found: Survey, work: Work) -> Line:
        # Imports pyarrow, for which forecasts without a judge need not wait.
        from stillhouse.dataset.judge import MAX_CONVERSATION, MAX_PART, judge_rollouts, question_of

        config, metadata = self.config.dataset.judge, self.metadata
        judged = [bool(config.rubric) or metadata[prompt].verifier == "judge" for prompt in found.lengths]
        most = config.num_samples * sum(judged) / max(len(judged), 1)
        questions = [question_of(row, metadata.get(row.prompt_id), config) for row in found.finished]
        asked = [question.prompt for question in questions if question is not None]
        rules = judge_rollouts(config, verdict=any(row.verifier == "judge" for row in metadata.values()))
        done = Survey(self.judge, asked, rules, Toolbox([]), {}, self.journal)
        # Those in the journal are judged as often as those of them that were read.
        each = config.num_samples * len(asked) / len(questions) if questions else most
        num_paid = found.num_paid * each * done.num_paid / max(done.num_paid + done.num_to_come, 1)
        count = work.count * Range(each if questions else 0.0, each, most) + exactly(found.num_paid * each - num_paid)
        answer = min(self.config.rollouts.max_tokens * _PER_TOKEN, MAX_CONVERSATION)
        characters = Range(_JUDGE_TASK, None, _JUDGE_TASK + answer + MAX_PART) + work.characters
        if lengths := list(done.lengths.values()):
            characters = Range(min(lengths), sum(lengths) / len(lengths), max(lengths))
        return line_of("judge", "judgements", done, Work(count, characters, num_paid), done.seen)

    def _scored(self, stage: str, found: Survey) -> list[Line]:
        """Return the line of the sequences that served teachers score, each once, whatever its turns."""
        if stage == "on_policy":
            config = self.config.on_policy
            teachers = config.teachers if config.needs_teacher else ()
            turns, longest = config.max_turns, config.max_tokens
            count = config.num_batches * config.prompts_per_step * config.group_size
        else:
            teachers, rollouts = self.config.sft.teachers, self.config.rollouts
            turns, longest = rollouts.max_turns + 1, rollouts.max_tokens
            count = found.num_to_come + found.num_paid
        served = [teacher for teacher in teachers if not (teacher.is_local or teacher.is_here)]
        if not served:
            return []
        prompt = sum(found.lengths.values()) / max(len(found.lengths), 1)
        turns = turns if found.offers_tools else 1
        most = prompt + turns * longest + (turns - 1) * self._work(found).max_result
        # Teachers with routes share the prompts.
        least = count * max(sum(not teacher.routes for teacher in served), 1)
        count *= len(served)
        tokens = Range(least * prompt * FEWEST_PER_CHARACTER, None, count * most)
        requests = Range(tokens.low / max(teacher.batch_tokens for teacher in served), None, count)
        model = ", ".join(teacher.model or teacher.name for teacher in served)
        counts = (f"{stage} scoring".replace("_", "-"), model, "sequences", count, 0.0)
        return [Line(*counts, requests, tokens, exactly(0.0), usd=None, worst_usd=None)]
