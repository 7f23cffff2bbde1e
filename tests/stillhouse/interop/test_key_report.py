from pathlib import Path

import yaml

from stillhouse.interop import convert
from stillhouse.interop.conversion_report import summary_lines
from stillhouse.types import JsonObject


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
