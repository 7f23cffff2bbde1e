"""A teacher scores rows once, whatever trainings learn from the scores afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.publish import Published


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scores") / "store"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [
        [{"role": "user", "content": f"What is {n} + 1?"}, {"role": "assistant", "content": f"The answer is {n + 1}."}]
        for n in range(8)
    ]
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
    return {
        "sft__loss": "kl",
        "sft__dataset_weight": 0.0,
        "sft__sources": [{"path": str(path)}],
        "sft__batch_size": 4,
        "student__max_length": 128,
    }


@pytest.fixture(scope="module")
def scored(store: Path, settings: dict[str, Any], smoke_config) -> Published:
    from flows.score_rows import score_rows

    return score_rows(smoke_config(store, **settings))


def test_rows_are_scored_without_training(scored: Published) -> None:
    assert scored.cached == {"scores": False}
    assert scored.students == {}
    [row] = scored.summary
    assert "8 scored" in row[-1]


@pytest.mark.slow
def test_a_training_finds_the_scores_also_with_other_settings_of_its_own(
    scored: Published, store: Path, settings: dict[str, Any], smoke_config
) -> None:
    from flows.train_sft import train_sft

    for rate in (1e-3, 2e-3):
        trained = train_sft(smoke_config(store, **settings, sft__learning_rate=rate))
        assert trained.cached == {"scores": True, "sft": False}


@pytest.mark.slow
def test_more_tokens_at_each_position_are_scored_anew(
    scored: Published, store: Path, settings: dict[str, Any], smoke_config
) -> None:
    from flows.score_rows import score_rows

    files = set(store.glob("scores/*/*.arrows"))
    fewer = score_rows(smoke_config(store, **settings, sft__top_k=5))
    assert fewer.cached == {"scores": False}
    assert set(store.glob("scores/*/*.arrows")) == files, "those with more serve fewer"
    score_rows(smoke_config(store, **settings, sft__top_k=30))
    assert len(set(store.glob("scores/*/*.arrows")) - files) == 1
