"""Graded answers, half of them near-misses: what each verifier says of them, against the truth.

Claims
    safe     no wrong answer is called right.
    fair     below 1 % of the right answers are called wrong; what is not understood is unverified.

Measured
    `verdicts.jsonl` beside this file: verifier, expected answer, answer, whether it is right (null where nobody could
    tell), and its kind. The first 346 pairs were written before the verifiers were changed for them, the others after
    public reports of wrong verdicts, the last 100 as a check at the end. docs/reference/verdicts.md shows the table.

Learnt
    The verifiers before that change called right 67 of the 246 wrong answers of the first 525, and wrong 104 of the 268
    right ones. At the last 100, before anything was changed for them, none of 13 wrong answers was called right, and 8
    of 85 right ones wrong; 1 of those is left.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from stillhouse.types import PromptMetadata
from stillhouse.verification import verify

PAIRS: Final = Path(__file__).with_suffix(".jsonl")
_VERDICTS: Final = (True, False, None)


def graded() -> list[tuple[dict[str, Any], bool | None]]:
    """Return the pairs with their verdicts."""
    pairs = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    return [
        (
            pair,
            verify(pair["answer"], PromptMetadata("p", pair["expected"], None, pair["verifier"], pair.get("meta", {}))),
        )
        for pair in pairs
    ]


def table(results: list[tuple[dict[str, Any], bool | None]]) -> list[str]:
    """Return the rows of the confusion matrix: for each verifier the verdicts on right, wrong and undecided answers."""
    counts = Counter((pair["verifier"], pair["right"], verdict) for pair, verdict in results)
    verifiers = sorted({pair["verifier"] for pair, _ in results})
    rows = {
        verifier: [counts[verifier, right, verdict] for right in _VERDICTS for verdict in _VERDICTS]
        for verifier in verifiers
    }
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    return [f"| {name} | {' | '.join(map(str, row))} |" for name, row in rows.items()]


def main() -> None:
    """Print the table, and each pair whose verdict is not the truth."""
    results = graded()
    print(*table(results), sep="\n")
    for pair, verdict in results:
        if verdict != pair["right"]:
            print(verdict, json.dumps(pair, ensure_ascii=False))


if __name__ == "__main__":
    main()
