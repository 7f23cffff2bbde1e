from pathlib import Path

import pytest

from stillhouse.interop.conversion_report import ConversionReport, summary_lines
from stillhouse.interop.source_record import Unmapped


@pytest.fixture
def report() -> ConversionReport:
    report = ConversionReport(
        "rnow-rollouts", "rollouts", files=9, rows=1200, rows_left_out=4, prompts=1, trajectories=1196
    )
    for number in range(4):
        place = f"rollouts/rollout_1/sample_{number}.json"
        report.add_unmapped(place, Unmapped("the row is malformed", None, "x " * 300), leaves_out=True)
    for number in range(30):
        reason = f"reason {number}{', which is long' * 6 * (number == 0)}"
        for unmapped in (Unmapped(reason, "key", {"a": number}), Unmapped("rewards", "key", number)):
            report.add_unmapped("rollouts/a.json", unmapped, leaves_out=False)
    return report


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit_the_terminal_and_what_costs_rows_comes_first(report: ConversionReport, width: int) -> None:
    lines = list(summary_lines(report, Path("out"), width))
    assert all(len(line) <= width for line in lines), max(lines, key=len)
    assert lines[0] == "read     rollouts as rnow-rollouts: 1,200 rows in 9 files, 4 left out"
    assert lines[1:3] == ["wrote    out/prompts.jsonl: 1 prompt", "wrote    out/trajectories.jsonl: 1,196 trajectories"]
    reasons = [line.split(maxsplit=1) for line in lines if line[2:4].strip().isdigit()]
    assert reasons[:2] == [["4", "the row is malformed"], ["30", "rewards"]]
    assert sum("sample_" in line for line in lines) == 3
    assert "  and 20 reasons more, in out/unmapped.jsonl" in lines
    assert "  rollouts.trajectories_file: out/trajectories.jsonl" in lines
    assert lines[-1] == "    --set rollouts.trajectories_file=out/trajectories.jsonl"
