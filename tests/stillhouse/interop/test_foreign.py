"""Other programs' own example files, where they lie beside the checkout."""

from pathlib import Path

import pytest

from stillhouse.config import load_config
from stillhouse.errors import InputError
from stillhouse.interop import convert

FOREIGN = Path(__file__).resolve().parents[4] / "shared" / "foreign"
FILES = sorted(path for path in FOREIGN.glob("*/*/*") if path.is_file())
REFUSED = {
    "rnow/posttrain/train.jsonl": "text for continued pretraining",
    "roll/configs/qwen2.5-0.5B-agentic-agentic_val_webshop.yaml": "holds no key",
}


@pytest.mark.skipif(not FILES, reason="no foreign files beside this checkout")
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOREIGN)))
def test_every_file_converts_or_is_refused_by_what_is_in_it(path: Path, tmp_path: Path) -> None:
    reason = REFUSED.get(str(path.relative_to(FOREIGN)))
    if reason is not None:
        with pytest.raises(InputError, match=reason):
            convert(path, tmp_path / "out")
        return
    report = convert(path, tmp_path / "out")
    assert report.has_config or report.prompts
    assert not any("malformed" in reason for reason in report.unmapped)
    if report.has_config:
        load_config(tmp_path / "out" / "config.yaml")
