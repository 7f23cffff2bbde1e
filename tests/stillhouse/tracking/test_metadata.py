import socket
import subprocess
from pathlib import Path

import stillhouse
from stillhouse.tracking.metadata import MAX_PARAM_CHARS, flatten, origin_tags, shorten

_REPOSITORY = Path(stillhouse.__file__).parents[1]


def test_a_run_names_its_host_its_user_and_the_commit_of_its_code() -> None:
    origin_tags.cache_clear()  # another test may have asked before the last commit
    tags = origin_tags()
    assert tags["stillhouse.host"] == socket.gethostname()
    assert tags["mlflow.user"]
    if not (_REPOSITORY / ".git").exists():
        assert "mlflow.source.git.commit" not in tags
        return
    head = subprocess.run(
        ["git", "-C", str(_REPOSITORY), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert tags["mlflow.source.git.commit"] == head


def test_leaves_are_named_by_their_path() -> None:
    config = {"sft": {"epochs": 2, "on": True, "none": None, "lora": {"rank": 8}}, "list": [1, "a"], "empty": {}}
    assert flatten(config) == {
        "sft.epochs": "2",
        "sft.on": "true",
        "sft.none": "null",
        "sft.lora.rank": "8",
        "list": '[1, "a"]',
        "empty": "{}",
    }


def test_a_value_at_the_limit_is_whole_and_a_longer_one_is_cut_to_it() -> None:
    assert shorten("x" * MAX_PARAM_CHARS, MAX_PARAM_CHARS) == "x" * MAX_PARAM_CHARS
    cut = shorten("x" * (MAX_PARAM_CHARS + 1), MAX_PARAM_CHARS)
    assert len(cut) == MAX_PARAM_CHARS
    assert "6001 characters" in cut
