from pathlib import Path

import pytest
import yaml

from stillhouse.interop import convert
from stillhouse.interop.conversion_report import ConversionReport, summary_lines
from stillhouse.interop.source_record import Unmapped
from stillhouse.types import JsonObject


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


def test_every_key_is_in_one_of_four_lists(tmp_path: Path, roll_body: JsonObject) -> None:
    source = tmp_path / "opd.yaml"
    source.write_text(yaml.safe_dump(roll_body))
    report = convert(source, tmp_path / "out")
    page = (tmp_path / "out/conversion.md").read_text()
    lists = {title: entries for title, _, entries in (part.partition("\n") for part in page.split("## ")[1:])}
    assert list(lists) == ["Same", "Same by an added key", "Approximated", "No counterpart"]
    assert "- `seed`: `on_policy.trainer.seed` = `42`" in lists["Same"]
    assert (
        "- `training_args.lr_scheduler_type`: `on_policy.trainer.schedule` = `'linear'`"
        in lists["Same by an added key"]
    )
    assert "- `prompt_length` = `2048`: bounded together with the answer" in lists["Approximated"]
    assert "- `output_dir` = `'./output/'`: artifacts lie in runtime.store" in lists["No counterpart"]
    assert "very-private" not in page
    (line,) = [line for line in summary_lines(report, tmp_path / "out", 80) if "conversion.md" in line]
    assert "same by an added key" in line
