"""Other programs' own example files, where they lie beside the checkout."""

from pathlib import Path

import pytest

from stillhouse.config import ToolsConfig, load_config
from stillhouse.errors import ConfigError, InputError
from stillhouse.interop import convert
from stillhouse.tools import RewardSet, Toolbox

FOREIGN = Path(__file__).resolve().parents[4] / "shared" / "foreign"
FILES = sorted(path for path in FOREIGN.glob("*/*/*") if path.is_file() and path.suffix != ".py")
PROGRAMS = sorted([*FOREIGN.glob("rnow/*/tools.py"), *FOREIGN.glob("rnow/*/rewards.py")])
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


@pytest.mark.skipif(not PROGRAMS, reason="no foreign programs beside this checkout")
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(FOREIGN)))
def test_every_file_of_tools_and_rewards_loads_unchanged(path: Path) -> None:
    try:
        if path.name == "tools.py":
            assert Toolbox.from_config(ToolsConfig(file=str(path))).names
        else:
            assert RewardSet.from_config(ToolsConfig(rewards_file=str(path))).names
    except ConfigError as error:
        if isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name != "rnow":
            pytest.skip(f"needs {error.__cause__.name}")
        raise
