"""The table a run closes with: what each stage gave, and what it cost in tokens and seconds."""

from collections.abc import Mapping, Sequence

from stillhouse.types import JsonObject
from tasks.run import StageOutcome

EVALUATION_OF = "evaluation of "
"""Start of the name under which a run lists the evaluation of a model."""

SUMMARY_COLUMNS = ("stage", "accuracy", "result", "tokens", "seconds")


def summary_rows(stages: Sequence[StageOutcome], evaluations: Mapping[str, JsonObject]) -> list[list[str]]:
    """One row a stage; the accuracy beside it is that of the model it made or asked.

    The base student stands in a row of its own, and all evaluations share one, since their figures are already shown.
    """
    rows = []
    if "base" in evaluations:
        rows.append(["base student", _accuracy(evaluations["base"]), "", "", ""])
    for stage in stages:
        if not stage.name.startswith(EVALUATION_OF):
            facts = evaluations.get({"rollouts": "teacher"}.get(stage.name, stage.name))
            rows.append([stage.name, _accuracy(facts), _result(stage), _tokens([stage]), _seconds([stage])])
    measured = [stage for stage in stages if stage.name.startswith(EVALUATION_OF)]
    if measured:
        rows.append(["evaluation", "", f"{len(measured)} models", _tokens(measured), _seconds(measured)])
    return rows


def _accuracy(facts: JsonObject | None) -> str:
    if facts is None or facts.get("accuracy") is None:
        return ""
    return f"{facts['accuracy']:.1%} ({facts['accuracy_low']:.1%} - {facts['accuracy_high']:.1%})"


def _result(stage: StageOutcome) -> str:
    facts = stage.result.facts
    match stage.name:
        case "prompts":
            return f"{facts['train']} to train on, {facts['held_out']} held out"
        case "rollouts":
            return f"{facts['trajectories'] - facts['failed']} trajectories of the teacher, {facts['failed']} failed"
        case "dataset":
            return f"{facts['kept']} rows kept, {facts['dropped']} dropped"
        case _:
            return f"{facts['steps']} steps"


def _tokens(stages: Sequence[StageOutcome]) -> str:
    total = 0
    for stage in stages:
        facts = stage.result.facts
        total += facts.get("prompt_tokens", 0) + facts.get("completion_tokens", 0)
        total += facts.get("trained_tokens", 0) + facts.get("sampled_tokens", 0)
    return f"{total:,}" if total else ""


def _seconds(stages: Sequence[StageOutcome]) -> str:
    seconds = f"{sum(stage.seconds for stage in stages):.1f}"
    return f"{seconds} (cached)" if all(stage.cached for stage in stages) else seconds
