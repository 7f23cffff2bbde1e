import re
from typing import Any

import pytest

from stillhouse.config import load_config, parse_config
from stillhouse.config.removed import REMOVED
from stillhouse.errors import ConfigError


@pytest.mark.parametrize("key", REMOVED)
def test_a_config_with_a_removed_key_is_told_what_to_use_instead(tmp_path, key: str) -> None:
    path, _, value = key.partition("=")
    file = tmp_path / "config.yaml"
    file.write_text("prompts: {source: a.jsonl}\n")
    expected = re.escape(f"{key} was removed in this version: {REMOVED[key]}")
    with pytest.raises(ConfigError, match=expected):
        load_config(file, [f"{path}={value or '{}'}"])
    body: Any = [value] if value else {}
    for part in reversed(path.split(".")):
        body = {part: body}
    with pytest.raises(ConfigError, match=expected):
        parse_config(body, origin="test")
