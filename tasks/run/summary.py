"""The table a run closes with: what each stage gave, and what it cost in tokens and seconds."""

from collections.abc import Mapping, Sequence

from stillhouse.types import JsonObject
from tasks.run.context import StageOutcome

EVALUATION_OF = "evaluation of "
"""Start of the name under which a run lists the evaluation of a model."""

SUMMARY_COLUMNS = ("stage", "accuracy", "tokens", "seconds", "cached", "result")

_ROWS = {"truncated_rows": "rows cut", "dropped_rows": "too long", "unlearnt_rows": "with nothing to learn"}
"""What became of training rows."""


def summary_rows(stages: Sequence[StageOutcome], evaluations: Mapping[str, JsonObject]) -> list[list[str]]:
    """One row a stage; the accuracy beside it is that of the model it made or asked.

    The base student stands in a row of its own, and all evaluations share one, since their figures are already shown.
    """
    rows = []
    if "base" in evaluations:
        rows.append(["base student", _accuracy(evaluations["base"]), "", "", "", ""])
    for stage in stages:
        if not stage.name.startswith(EVALUATION_OF):
            facts = evaluations.get({"rollouts": "teacher"}.get(stage.name, stage.name))
            rows.append([stage.name, _accuracy(facts), *_cost([stage]), _result(stage)])
    measured = [stage for stage in stages if stage.name.startswith(EVALUATION_OF)]
    if measured:
        rows.append(["evaluation", "", *_cost(measured), f"{len(measured)} models"])
    return rows


def _accuracy(facts: JsonObject | None) -> str:
    if facts is None or facts.get("accuracy") is None:
        return ""
    return f"{facts['accuracy']:.1%} ({facts['accuracy_low']:.0%}-{facts['accuracy_high']:.0%})"


def _result(stage: StageOutcome) -> str:
    facts = stage.result.facts
    match stage.name:
        case "prompts":
            told = f"{facts['train']} + {facts['held_out']} held out"
            return told + _left_out(facts, {"malformed": "malformed", "duplicates": "repeated"})
        case "rollouts":
            told = f"{facts['trajectories']} done, {facts['failed']} failed"
            return told + _left_out(facts, {"malformed": "malformed", "of_other_prompts": "of other prompts"})
        case "dataset":
            told = f"{facts['kept']} kept, {facts['dropped']} dropped"
            return told + _left_out(facts, {"duplicates": "repeated"})
        case "approval":
            return facts["reason"]
        case "comparison":
            return f"against {facts['reference']}"
        case "labels":
            return f"{facts['rows']} labelled"
        case "duplicates":
            return f"{facts['exact']} exact, {facts['near']} near"
        case "judge":
            return f"{facts['judged']} judged"
        case "difficulty" | "embeddings":
            return f"{facts['rows']} measured"
        case _:
            told = f"{facts['steps']} {'step' if facts['steps'] == 1 else 'steps'}"
            return told + _left_out(facts, _ROWS)


def _left_out(facts: JsonObject, kinds: Mapping[str, str]) -> str:
    """What became of no row, where there is some; `kinds` gives the words for facts."""
    return "".join(f", {facts[name]} {kind}" for name, kind in kinds.items() if facts.get(name))


def _cost(stages: Sequence[StageOutcome]) -> list[str]:
    """Tokens, seconds of this run, and whether an earlier run paid for them."""
    names = ("prompt_tokens", "completion_tokens", "trained_tokens", "sampled_tokens")
    tokens = sum(stage.result.facts.get(name) or 0 for stage in stages for name in names)
    seconds = sum(stage.seconds for stage in stages)
    num_cached = sum(stage.cached for stage in stages)
    cached = "" if num_cached == 0 else "yes" if num_cached == len(stages) else f"{num_cached} of {len(stages)}"
    return [f"{tokens:,}" if tokens else "", f"{seconds:.1f}", cached]
