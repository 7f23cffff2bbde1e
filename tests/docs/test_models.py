"""The page of models tells what the tests of families and templates have found."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "tests" / "stillhouse"


def found(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (FOUND / name).read_text(encoding="utf-8").splitlines()]


def test_every_family_and_every_template_stands_in_its_row(pages: dict[str, str]) -> None:
    rows = [line for line in pages["docs/reference/models.md"].splitlines() if line.startswith("| ")]
    for entry in found("training/model/families.jsonl"):
        outcome = ": ".join(entry[key] for key in ("rows", "reason") if key in entry)
        assert [row.split(" | ")[0] for row in rows if f"`{entry['family']}`" in row] == [f"| {outcome}"]
    names = [entry["template"].replace("_", "\\_") for entry in found("chat/published_templates.jsonl")]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows if row.split(" | ")[0][2:] in names] == names
