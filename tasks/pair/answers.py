"""Asks if teachers are better than the student: all answer the same prompts, as they do in an evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stillhouse.config import OnPolicyTeacher, TeacherConfig
from stillhouse.config.promotion import Metric
from stillhouse.errors import StillhouseError
from stillhouse.evaluation.comparison import Values, prompt_values
from stillhouse.evaluation.measure import reward_totals
from stillhouse.evaluation.paired import paired_difference
from stillhouse.evaluation.sampling import evaluation_rollouts
from stillhouse.tools.reward_set import RewardSet
from stillhouse.training.pair.finding import PairFinding
from stillhouse.types import Model, Prompt, PromptMetadata
from stillhouse.verification.intervals import CONFIDENCE
from tasks.models import teacher_model
from tasks.pair.case import PairCase
from tasks.run.context import RunContext
from tasks.run.interruption import run_until_done
from tasks.sampling import sample


@dataclass(frozen=True, slots=True)
class Answering:
    """Asks student and teachers."""

    start: Model
    """The student."""
    prompts: Sequence[Prompt]
    metadata: Mapping[str, PromptMetadata]
    """By prompt id; may lack any."""
    case: PairCase
    context: RunContext
    """Its journal has what was asked before."""

    def findings(self) -> Iterator[PairFinding]:
        """Compare each teacher with the student; nothing where no teacher takes part."""
        scorers = self.case.scorers
        if not scorers and not self.case.num_rollouts:
            return
        try:
            records = self.case.records_tokens
            student = self._values(self.start, None, self.prompts, self.context, record_tokens=records)
        except StillhouseError as error:
            yield PairFinding("student: answers", "unknown", f"they could not be sampled: {error}")
            return
        for scorer in scorers or (None,):
            teacher = "teacher" if scorer is None else scorer.name
            name = f"{teacher}: better"
            try:
                yield self._compared(teacher, scorer, student)
            except StillhouseError as error:
                yield PairFinding(name, "unknown", f"its answers could not be sampled: {error}")

    def _compared(self, called: str, scorer: OnPolicyTeacher | None, student: Values) -> PairFinding:
        """Compare with a teacher that scores, or for None with the writer of the rollouts."""
        name = f"{called}: better"
        # A batch takes hours; its completions and those of single requests have the same keys.
        teacher = self.case.teacher.model_copy(update={"batch": False})
        prompts, context, is_served = self.prompts, self.context, True
        if scorer is not None:
            prompts = self._prompts_of(scorer)
            if scorer.model is None or scorer.kind == "echo":
                return PairFinding(name, "unknown", f"a teacher of the kind {scorer.kind!r} is not asked for answers")
            if not prompts:
                return PairFinding(name, "unknown", "none of the prompts measured on is routed to it")
            if (scorer.model, scorer.base_url) != (teacher.model, teacher.base_url):
                is_served = not scorer.is_here
                teacher = TeacherConfig(model=scorer.model, base_url=scorer.base_url)
                if scorer.api_key_env is not None:
                    runtime = self.context.runtime.model_copy(update={"api_key_env": scorer.api_key_env})
                    context = self.context.model_copy(update={"runtime": runtime})
        model = teacher_model(teacher).model_copy(update={"name": called})
        values = self._values(model, teacher if is_served else None, prompts, context)
        return better_finding(name, values, student)

    def _prompts_of(self, scorer: OnPolicyTeacher) -> list[Prompt]:
        assert self.case.training is not None
        field = self.case.training.route_by
        taken = {value for other in self.case.scorers for value in other.routes}

        def is_routed(prompt: Prompt) -> bool:
            row = self.metadata.get(prompt.id)
            value = None if row is None else row.tag if field == "tag" else row.metadata.get(field)
            return str(value) in scorer.routes if scorer.routes else str(value) not in taken

        return [prompt for prompt in self.prompts if is_routed(prompt)]

    def _values(
        self,
        model: Model,
        settings: TeacherConfig | None,
        prompts: Sequence[Prompt],
        context: RunContext,
        *,
        record_tokens: bool = False,
    ) -> Values:
        case, stage = self.case, f"answers of {model.name}"
        rollouts = evaluation_rollouts(case.evaluation, case.system_prompt, record_tokens=record_tokens)
        asked = sample(list(prompts), model, rollouts, case.tools, context, stage=stage, part=stage, teacher=settings)
        trajectories = run_until_done(asked).trajectories
        rewards = {}
        if case.tools.rewards_file is not None:
            reward_set = RewardSet.from_config(case.tools)
            rewards = run_until_done(reward_totals(trajectories, self.metadata, reward_set))
        return prompt_values(trajectories, self.metadata, rewards)


def better_finding(name: str, teacher: Values, student: Values) -> PairFinding:
    """Compare by accuracy, or by reward where no answer is verified."""
    units: dict[Metric, tuple[float, str]] = {"accuracy": (100.0, "%"), "reward": (1.0, "")}
    for metric, (scale, unit) in units.items():
        found = paired_difference(teacher.get(metric, {}), student.get(metric, {}))
        if found is None:
            continue
        ours, theirs, low, high = (scale * value for value in (found.mean, found.reference, found.low, found.high))
        seen = (
            f"{metric} {ours:.3g}{unit} against the student's {theirs:.3g}{unit} on {found.num_prompts} prompts: "
            f"{ours - theirs:+.3g} ({CONFIDENCE:.0%} interval {low:+.3g} to {high:+.3g})"
        )
        if found.high < 0.0:
            remedy = "Take another teacher, or a chat template, tools and max_tokens with which it answers as it should"
            return PairFinding(name, "no", f"{seen}: it is worse, and a student seldom passes its teacher. {remedy}")
        if found.low > 0.0:
            return PairFinding(name, "fine", seen)
        remedy = "--prompts with a higher number tells more"
        return PairFinding(name, "unknown", f"{seen}: not shown to be better; {remedy}")
    remedy = "give prompts an expected_answer, or set tools.rewards_file"
    return PairFinding(name, "unknown", f"no prompt has an expected answer or a reward: nobody can say; {remedy}")
