import os
import subprocess
from pathlib import Path

import stillhouse
from stillhouse.tracking.origin import origin_tags

_REPOSITORY = Path(stillhouse.__file__).parents[1]


def test_a_run_names_its_process_its_user_and_the_commit_of_its_code() -> None:
    origin_tags.cache_clear()  # another test may have asked before the last commit
    tags = origin_tags()
    assert tags["stillhouse.pid"] == str(os.getpid())
    assert tags["mlflow.user"]
    assert float(tags["stillhouse.process_started"]) > 1e9
    if not (_REPOSITORY / ".git").exists():
        assert "git.sha" not in tags
        return
    head = subprocess.run(
        ["git", "-C", str(_REPOSITORY), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert tags["git.sha"] == tags["mlflow.source.git.commit"] == head
    assert tags["git.dirty"] in {"true", "false"}
