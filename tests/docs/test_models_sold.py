"""Models of sellers stand in one list, so that a retired one is renewed everywhere at once."""

import re
from pathlib import Path

from stillhouse.project.example_models import EXAMPLE_MODELS, SUGGESTED
from stillhouse.sellers import cannot_score

ROOT = Path(__file__).resolve().parents[2]
_SOLD = re.compile(
    r"\b(?:(?:chat)?gpt-(?!oss|2\b|j\b|neo)\d[\w.-]*\w|o[134](?:-(?:mini|pro))\b|claude-[a-z]+-[\w.-]*\w|gemini-[\d.]+[\w.-]*\w"
    r"|deepseek-(?:chat|reasoner|flash|v\d[\w.-]*))",
)
# It lists chat templates by the names of their files, and it tells what was decided when.
_OTHER = {ROOT / "docs/reference/models.md", ROOT / "docs/decisions.md"}


def test_no_other_model_is_named() -> None:
    folders = [ROOT / name for name in ("docs", "configs", "examples", "stillhouse/project", "deployments", "flows")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in {".md", ".yaml", ".py"}]
    named = [
        (str(path.relative_to(ROOT)), name)
        for path in [ROOT / "README.md", *files]
        if path not in _OTHER
        for name in _SOLD.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 10
    assert not [one for one in named if one[1] not in EXAMPLE_MODELS]
    assert set(EXAMPLE_MODELS) == {name for _, name in named}


def test_each_is_known_for_a_seller_s() -> None:
    assert all(_SOLD.fullmatch(model) for model in EXAMPLE_MODELS)
    assert all(_SOLD.search(name) for name in ("gpt-4o-mini", "gpt-4.1", "gpt-5-mini", "claude-sonnet-4-5", "o4-mini"))
    assert cannot_score(SUGGESTED) is not None
