"""One thing found about a pair, and the verdict of all of them. Free of torch."""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

FINDINGS_FILE: Final = "findings.jsonl"
TOP_K: Final = 20
"""Most probable tokens compared at each place: as many as a vLLM server gives unless it is told otherwise."""

Level = Literal["fine", "unknown", "change", "no"]
"""`unknown`: not measured, or not decided by so few prompts. `change`: what to change is in the detail."""
Verdict = Literal["go", "go with this changed", "no"]


class PairFinding(NamedTuple):
    """One finding with the figure that it rests on."""

    name: str
    level: Level
    detail: str


def verdict_of(findings: Iterable[PairFinding]) -> Verdict:
    """Return what to do by the gravest finding."""
    levels = {finding.level for finding in findings}
    if "no" in levels:
        return "no"
    return "go with this changed" if "change" in levels else "go"
