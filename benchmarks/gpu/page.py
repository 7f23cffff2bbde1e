"""The page of the results, in Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from benchmarks.gpu.goals import GOALS, Goal
from benchmarks.gpu.plan import Job, Part
from benchmarks.gpu.results import Measurement

_TITLES: Final[dict[Part, str]] = {
    "truth": "Is it right?",
    "sft": "Supervised fine-tuning",
    "on_policy": "On-policy distillation",
    "head": "The output layer alone",
    "quantised": "4-bit weights, 8-bit optimiser states",
    "models": "Whole trainings",
}
_MACHINE: Final = ("device", "memory_gib", "cuda", "python", "torch", "triton", "transformers", "peft", "trl", "commit")
_SHARES: Final = ("matmul", "attention", "head", "optimizer", "other", "idle")
_INTRODUCTION: Final = """\
# On a GPU

Made by `make gpu` from the JSON files in `gpu/` next to this page: tables, what peers report, and what was not run.
Sizes are Qwen3's shapes with random weights. MFU is what the model asks for, nothing counted twice and the output layer
at learnt tokens alone, over the speed of large bfloat16 products measured on the same device."""
_NOTHING: Final = """\

**Nothing has been measured yet.** The plan was rehearsed on a CPU, where its figures mean nothing and are not shown."""


def page(jobs: Sequence[Job], results: Mapping[Part, Mapping[str, Measurement]]) -> str:
    """The page of the measurements that were taken on a GPU at full scale."""
    known = {part: {name: one for name, one in rows.items() if _counts(one)} for part, rows in results.items()}
    everything = [one for rows in known.values() for one in rows.values()]
    blocks = [_INTRODUCTION, *([] if everything else [_NOTHING]), *_machines(everything)]
    blocks += ["## Goals on one H200", _goals(known)]
    for part, of_part in groupby(sorted(jobs, key=lambda job: list(_TITLES).index(job.part)), lambda job: job.part):
        names = [row.name for job in of_part for row in job.rows]
        blocks += [f"## {_TITLES[part]}", *_part(names, known.get(part, {}))]
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def _counts(measurement: Measurement) -> bool:
    return measurement.machine.get("device_type") == "cuda" and not measurement.machine.get("tiny")


def _machines(measurements: Iterable[Measurement]) -> list[str]:
    """The distinct machines and versions that the figures come from."""
    lines: dict[str, None] = {}
    for one in measurements:
        facts = ", ".join(f"{name} {one.machine[name]}" for name in _MACHINE if one.machine.get(name) is not None)
        lines[f"- {facts}"] = None
    return ["\n".join(lines)] if lines else []


def _goals(known: Mapping[Part, Mapping[str, Measurement]]) -> str:
    rows = [[goal.what, goal.anchor, _bound(goal), *_reached(goal, known.get(goal.part, {}))] for goal in GOALS]
    return _table(["what", "anchor", "goal", "measured", "reached"], rows)


def _bound(goal: Goal) -> str:
    return f"{'at least' if goal.higher_is_better else 'at most'} {goal.text(goal.bound)}"


def _reached(goal: Goal, known: Mapping[str, Measurement]) -> list[str]:
    values = [
        known[row].figures[goal.figure] for row in goal.rows if row in known and goal.figure in known[row].figures
    ]
    if not values:
        return ["ended early" if any(row in known for row in goal.rows) else "not run", ""]
    best = max(values) if goal.higher_is_better else min(values)
    return [goal.text(best), "yes" if goal.holds(best) else "no"]


def _part(names: Sequence[str], known: Mapping[str, Measurement]) -> list[str]:
    measured = {name: known[name] for name in names if name in known and known[name].figures}
    blocks = [_figures(list(alike)) for _, alike in groupby(measured.items(), lambda row: _columns(row[1]))]
    blocks += _profiles(measured)
    failed = [f"- {name}: {one.status}: {one.reason}" for name, one in known.items() if one.status != "measured"]
    if failed:
        blocks.append("\n".join(failed))
    untried = [name for name in names if name not in known]
    if untried:
        blocks.append(f"Not run: {'; '.join(untried)}.")
    return blocks


def _columns(measurement: Measurement) -> list[str]:
    return [name for name, value in measurement.figures.items() if _plain(value)]


def _figures(rows: Sequence[tuple[str, Measurement]]) -> str:
    """Return one table of rows with the same figures."""
    columns = _columns(rows[0][1])
    return _table(["", *columns], [[name, *(_cell(one.figures[column]) for column in columns)] for name, one in rows])


def _profiles(measured: Mapping[str, Measurement]) -> list[str]:
    profiled = {name: one.figures for name, one in measured.items() if one.figures.get("shares")}
    if not profiled:
        return []
    rows = [[name, *(f"{one['shares'].get(kind, 0.0):.1%}" for kind in _SHARES)] for name, one in profiled.items()]
    tops = [
        f"- {name}: " + ", ".join(f"`{kernel}` {ms:g} ms" for kernel, ms in list(one["top_kernels_ms"].items())[:5])
        for name, one in profiled.items()
    ]
    return ["Shares of the time of one training step:", _table(["", *_SHARES], rows), "\n".join(tops)]


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
