import json
from pathlib import Path

import pytest

from benchmarks.rollout_client import main


def test_engine_loses_and_bills_nothing_twice_where_the_script_gives_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    # Sixteen at once against one slot, all told to come back at the same moment.
    load = ["--prompts", "24", "--latency-s", "0.05", "--slots", "1", "--excess", "16", "--retry-after-s", "0.1"]
    main([*load, "--cases", "capped", "--rounds", "1", "--json", str(out)])
    capped = json.loads(out.read_text())["capped"]
    engine, script = capped["sides"]["engine"], capped["sides"]["script"]
    assert engine["rows_lost"]["high"] == engine["billed_twice"]["high"] == engine["billed_again"]["high"] == 0
    assert script["rows_lost"]["low"] > 0
    assert script["billed_again"]["low"] > 0
    for side in (engine, script):
        assert side["rejected"]["low"] > 0
        assert 0 < side["share_of_ideal"]["median"] <= 1.05
    assert capped["cpu"]["median"] > 0
    assert "capped, 16 in flight" in capsys.readouterr().out
