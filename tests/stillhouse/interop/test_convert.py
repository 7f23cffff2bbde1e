from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from stillhouse.errors import ConfigError, InputError
from stillhouse.interop import convert
from stillhouse.types import JsonObject


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sft: {num_epochs: 1}\n", "sft; .*dataset_type"),
        ("a: [1\nb", "YAML"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_no_known_config_is_refused(
    tmp_path: Path, write: Callable[..., Path], text: str | None, told: str
) -> None:
    source = tmp_path / "config.yaml"
    if text is not None:
        write(source, text)
    with pytest.raises(InputError, match=told):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_config_of_another_kind_than_the_one_named_is_refused(
    tmp_path: Path, write: Callable[..., Path], rnow_body: JsonObject
) -> None:
    source = write(tmp_path / "config.yml", yaml.safe_dump(rnow_body))
    with pytest.raises(ConfigError, match=r"--from roll-config: .*rnow-config"):
        convert(source, tmp_path / "out", "roll-config")
    assert not (tmp_path / "out").exists()
