"""Whether teachers are better than the student: all answer the same prompts, as they do in an evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stillhouse.chat.content import reasoning_of
from stillhouse.chat.refs import model_identity
from stillhouse.config import OnPolicyTeacher, TeacherConfig
from stillhouse.errors import ConfigError, StillhouseError
from stillhouse.evaluation.comparison import Values, prompt_values
from stillhouse.evaluation.measure import reward_totals
from stillhouse.pair import PairFinding
from stillhouse.pair.better import better_finding
from stillhouse.pair.cost import rollouts_finding
from stillhouse.pair.reading import reasoning_finding
from stillhouse.tools.reward_set import RewardSet
from stillhouse.types import Model, Prompt, PromptMetadata, Trajectory
from tasks.models import teacher_model
from tasks.pair.case import PairCase
from tasks.run.context import RunContext
from tasks.run.interruption import run_until_done
from tasks.sampling import evaluation_rollouts, sample


@dataclass(frozen=True, slots=True)
class Answers:
    """What one model answered."""

    values: Values
    reasoning_share: float
    """Of trajectories with reasoning in a completion."""
    costs: list[float | None]
    """Of each trajectory in USD; None where the price is unknown."""


@dataclass(frozen=True, slots=True)
class Respondent:
    """A teacher to ask."""

    name: str
    model: Model
    settings: TeacherConfig | None = None
    """Of its endpoint; None for a model of this machine other than the rollouts' teacher."""
    api_key_env: str | None = None
    """Variable of its key; None takes that of the rollouts' teacher."""


@dataclass(frozen=True, slots=True)
class Answering:
    """Asks student and teachers.

    Args:
        start: the student.
        prompts: asked.
        metadata: by prompt id; may lack any.
        case: how.
        context: of the run; its journal has what was asked before.
    """

    start: Model
    prompts: Sequence[Prompt]
    metadata: Mapping[str, PromptMetadata]
    case: PairCase
    context: RunContext

    def findings(self) -> Iterator[PairFinding]:
        """Two for each teacher, and what its rollouts will cost; nothing where no teacher takes part."""
        scorers = self.case.scorers
        if not scorers and not self.case.num_rollouts:
            return
        try:
            student = self._ask(self.start, None, self.prompts, self.context)
        except StillhouseError as error:
            yield PairFinding("student: answers", "unknown", f"they could not be sampled: {error}")
            return
        if not scorers:
            yield from self._compared(student, self._rollouts_teacher("teacher"), self.prompts)
        for scorer in scorers:
            try:
                respondent = self._respondent(scorer)
            except ConfigError as error:
                respondent = PairFinding(f"{scorer.name}: better", "unknown", str(error))
            if isinstance(respondent, PairFinding):
                yield respondent
            else:
                yield from self._compared(student, respondent, self._prompts_of(scorer))

    def _rollouts_teacher(self, name: str) -> Respondent:
        # A batch takes hours; its completions and those of single requests have the same keys.
        settings = self.case.teacher.model_copy(update={"batch": False})
        return Respondent(name, teacher_model(settings), settings)

    def _respondent(self, scorer: OnPolicyTeacher) -> Respondent | PairFinding:
        """How to ask a teacher that scores, or why it is not asked."""
        name, teacher = scorer.name, self.case.teacher
        if scorer.model is None:
            return PairFinding(f"{name}: better", "unknown", "it is the student's base, better by its hint if at all")
        if scorer.kind == "echo":
            return PairFinding(f"{name}: better", "unknown", "its server scores, and is not asked for answers")
        if (scorer.model, scorer.base_url) == (teacher.model, teacher.base_url):
            return self._rollouts_teacher(name)
        if scorer.kind != "local":
            settings = TeacherConfig(model=scorer.model, base_url=scorer.base_url)
            return Respondent(name, teacher_model(settings), settings, scorer.api_key_env)
        return Respondent(name, Model(name=name, ref=scorer.model, fingerprint=model_identity(scorer.model)))

    def _compared(self, student: Answers, respondent: Respondent, prompts: Sequence[Prompt]) -> Iterator[PairFinding]:
        case, context, name = self.case, self.context, respondent.name
        if not prompts:
            yield PairFinding(f"{name}: better", "unknown", "none of the prompts measured on is routed to it")
            return
        if respondent.api_key_env is not None:
            runtime = context.runtime.model_copy(update={"api_key_env": respondent.api_key_env})
            context = context.model_copy(update={"runtime": runtime})
        try:
            teacher = self._ask(respondent.model, respondent.settings, prompts, context)
        except StillhouseError as error:
            yield PairFinding(f"{name}: better", "unknown", f"its answers could not be sampled: {error}")
            return
        yield better_finding(f"{name}: better", teacher.values, student.values)
        shares = (student.reasoning_share, teacher.reasoning_share)
        yield reasoning_finding(f"{name}: reasoning", *shares, comes_after_sft=case.comes_after_sft)
        if case.num_rollouts and case.teacher.base_url is not None and respondent.model.ref == case.teacher.model:
            yield rollouts_finding(teacher.costs, case.num_rollouts)

    def _prompts_of(self, scorer: OnPolicyTeacher) -> list[Prompt]:
        """The prompts that are routed to a teacher."""
        assert self.case.training is not None
        field = self.case.training.route_by
        taken = {value for other in self.case.scorers for value in other.routes}

        def is_routed(prompt: Prompt) -> bool:
            row = self.metadata.get(prompt.id)
            value = None if row is None else row.tag if field == "tag" else row.metadata.get(field)
            return str(value) in scorer.routes if scorer.routes else str(value) not in taken

        return [prompt for prompt in self.prompts if is_routed(prompt)]

    def _ask(
        self, model: Model, settings: TeacherConfig | None, prompts: Sequence[Prompt], context: RunContext
    ) -> Answers:
        case = self.case
        records = model is self.start and case.records_tokens
        rollouts = evaluation_rollouts(case.evaluation, case.system_prompt, record_tokens=records)
        stage = f"answers of {model.name}"
        sampled = run_until_done(
            sample(list(prompts), model, rollouts, case.tools, context, stage=stage, part=stage, teacher=settings)
        )
        rewards = {}
        if case.tools.rewards_file is not None:
            reward_set = RewardSet.from_config(case.tools)
            rewards = run_until_done(reward_totals(sampled.trajectories, self.metadata, reward_set))
        return Answers(
            prompt_values(sampled.trajectories, self.metadata, rewards),
            sum(map(_reasons, sampled.trajectories)) / max(1, len(sampled.trajectories)),
            list(map(_cost, sampled.trajectories)),
        )


def _cost(trajectory: Trajectory) -> float | None:
    costs = [turn.cost_usd for turn in trajectory.turns]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _reasons(trajectory: Trajectory) -> bool:
    said = [message for message in trajectory.messages if message["role"] == "assistant"]
    return any(map(reasoning_of, said))
