"""The closing table of a run: the result of each stage, and its cost in tokens and seconds."""

from collections.abc import Mapping, Sequence

from stillhouse.report.format import spend
from stillhouse.types import JsonObject
from tasks.run.context import StageOutcome
from tasks.run.stage import EVALUATION_OF

SUMMARY_COLUMNS = ("stage", "accuracy", "tokens", "seconds", "cached", "result")
_MAX_REASON = 40


def summary_rows(stages: Sequence[StageOutcome], evaluations: Mapping[str, JsonObject]) -> list[list[str]]:
    """Return a row for each stage, with the accuracy of the model that it trained or sampled.

    The base student and models that no stage of this run made have rows of their own; all evaluations share one.
    """
    rows = []
    models = [{"rollouts": "teacher"}.get(stage.name, stage.name) for stage in stages]
    if "base" in evaluations:
        rows.append(["base student", _accuracy(evaluations["base"]), "", "", "", ""])
    for stage, model in zip(stages, models, strict=True):
        if not stage.name.startswith(EVALUATION_OF):
            rows.append([stage.name, _accuracy(evaluations.get(model)), *_cost([stage]), result_of(stage)])
    others = {name: _accuracy(facts) for name, facts in evaluations.items() if name not in ("base", *models)}
    rows += [[name, accuracy, "", "", "", ""] for name, accuracy in others.items() if accuracy]
    measured = [stage for stage in stages if stage.name.startswith(EVALUATION_OF)]
    if measured:
        num_errors = sum(facts.get("num_reward_errors") or 0 for facts in evaluations.values())
        result = f"{len(measured)} models" + (f", {num_errors} reward errors" if num_errors else "")
        rows.append(["evaluation", "", *_cost(measured), result])
    return rows


def _accuracy(facts: JsonObject | None) -> str:
    if facts is None or facts.get("accuracy") is None:
        return ""
    return f"{facts['accuracy']:.1%} ({facts['accuracy_low']:.0%}-{facts['accuracy_high']:.0%})"


def headline(stages: Sequence[StageOutcome], evaluations: Mapping[str, JsonObject]) -> str:
    """Return the result of a run in a line: `kept 399 of 400, sft 86.1% against base 45.5%`, or its last stage's."""
    results = {stage.name: stage.result.facts for stage in stages}
    rates = {name: facts["accuracy"] for name, facts in evaluations.items() if facts.get("accuracy") is not None}
    parts = []
    if "dataset" in results:
        kept, dropped = (results["dataset"][name] for name in ("kept", "dropped"))
        parts.append(f"kept {kept:,} of {kept + dropped:,}")
    reference = results.get("comparison", {}).get("reference")
    if students := [f"{name} {rates[name]:.1%}" for name in rates if name not in ("base", "teacher", reference)]:
        against = f" against {reference} {rates[reference]:.1%}" if reference in rates else ""
        parts.append(", ".join(students) + against)
    elif stages[-1].name != "dataset":
        parts.append(f"{stages[-1].name}: {result_of(stages[-1])}")
    return ", ".join(parts)


def result_of(outcome: StageOutcome) -> str:
    """Return what a stage has made, in words."""
    stage, facts = outcome.stage, outcome.result.facts
    text = "1 step" if facts.get("steps") == 1 else stage.result.format_map(facts)
    rest = [f", {facts[name]} {word}" for name, word in stage.left_out.items() if facts.get(name)]
    if facts.get("accuracy") is not None:
        rest.append(f", {facts['accuracy']:.1%} right")
    if facts.get("cost_usd") or facts.get("possible_usd"):
        rest.append(f", {spend(facts.get('cost_usd'), facts.get('estimated_usd'), facts.get('possible_usd'))}")
    if facts.get("why_lost"):
        rest.append(f": {next(iter(facts['why_lost']))[:_MAX_REASON]}")
    return text + "".join(rest)


def _cost(stages: Sequence[StageOutcome]) -> list[str]:
    """Return tokens, seconds of this run, and whether an earlier run paid for them."""
    names = ("prompt_tokens", "completion_tokens", "trained_tokens", "sampled_tokens", "scored_tokens")
    tokens = sum(stage.result.facts.get(name) or 0 for stage in stages for name in names)
    seconds = sum(stage.seconds for stage in stages)
    num_cached = sum(stage.cached for stage in stages)
    cached = "" if num_cached == 0 else "yes" if num_cached == len(stages) else f"{num_cached} of {len(stages)}"
    return [f"{tokens:,}" if tokens else "", f"{seconds:.1f}", cached]
