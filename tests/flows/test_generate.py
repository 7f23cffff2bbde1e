"""Prompts of every kind to a dataset, over HTTP; a target, trajectories from elsewhere, and what a run saves."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stillhouse.dataset.read import read_rows
from stillhouse.errors import QuotaError
from tasks.publish import Published
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

RNOW_ROWS = [
    {
        "messages": [{"role": "user", "content": "What is 17 + 25?"}],
        "rewards": ["accuracy"],
        "tools": ["calculator"],
        "metadata": {"expected_answer": "42", "verifier": "numeric"},
    },
    {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who wrote Faust?"}],
        "rewards": ["accuracy"],
        "docker": "local/playwright",
        "docker_env": {"MODE": "test"},
        "metadata": {"expected_answer": "Goethe", "verifier": "contains"},
        "variables": {"level": 2},
    },
]
ANSWERS = {
    "What is 17 + 25?": "It is 42.",
    "Who wrote Faust?": "Johann Wolfgang von Goethe wrote it.",
}


def answer(request: ReceivedRequest) -> Reply:
    question = next(m["content"] for m in request.body["messages"] if m["role"] == "user")
    if question.startswith("question "):
        # Every third is wrong, whatever the sample.
        number = int(question.split()[1])
        return Reply(completion(str(number if number % 3 else -1)))
    if "17" in question and request.body["messages"][-1]["role"] == "user":
        return Reply(completion(tool_calls=[("calculator", json.dumps({"expression": "17 + 25"}))]))
    return Reply(completion(ANSWERS[question]))


def numbered(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"question {index}", "tools": [], "metadata": {"expected_answer": str(index), "verifier": "numeric"}}
        for index in range(count)
    ]


def rows_of(published: Published, split: str = "train") -> list[dict[str, Any]]:
    assert published.dataset is not None
    return list(read_rows(Path(published.dataset.uri), split))


def test_rows_of_rnow_become_a_verified_dataset(generate) -> None:
    rows = {row["messages"][-1]["content"]: row for row in rows_of(generate(RNOW_ROWS))}
    assert {content: row["verified"] for content, row in rows.items()} == {
        "It is 42.": True,
        "Johann Wolfgang von Goethe wrote it.": True,
    }
    with_tool = rows["It is 42."]
    assert [tool["function"]["name"] for tool in with_tool["tools"]] == ["calculator"]
    (call,) = with_tool["messages"][1]["tool_calls"]
    assert call["function"]["arguments"] == {"expression": "17 + 25"}
    assert rows["Johann Wolfgang von Goethe wrote it."]["metadata"]["docker"] == "local/playwright"


def test_a_target_is_met_exactly_and_nothing_is_asked_beyond_it(generate, provider: SimulatedProvider) -> None:
    selection = {"target_rows": 12, "rows_per_prompt": 1}
    published = generate(
        numbered(60), dataset={"selection": selection, "validation_fraction": 0.0}, runtime={"shard_size": 20}
    )
    rows = rows_of(published)
    assert len(rows) == 12
    assert len({row["prompt_id"] for row in rows}) == 12
    # A third of the answers is wrong: 18 are needed on average.
    assert len(provider.ledger) <= 24


def test_a_target_beyond_reach_keeps_what_there_is_once_every_candidate_was_tried(
    generate, provider: SimulatedProvider, caplog: pytest.LogCaptureFixture
) -> None:
    selection = {"target_rows": 50, "rows_per_prompt": 1}
    published = generate(numbered(30), dataset={"selection": selection}, rollouts={"num_samples": 2})
    assert published.dataset is not None
    assert published.dataset.num_rows == 20
    assert len(provider.ledger) == 20 + 2 * 10
    assert "20 of 50 rows are there and no candidate is left" in caplog.text


def test_rows_that_only_the_whole_set_can_drop_are_made_up_for(generate, provider: SimulatedProvider) -> None:
    """Ten of the prompts are one prompt but for its white space: nine of their rows repeat the first."""
    alike = [
        {"prompt": f"question{' ' * index} 1", "tools": [], "metadata": {"expected_answer": "1", "verifier": "numeric"}}
        for index in range(1, 11)
    ]
    published = generate(
        alike + numbered(60),
        dataset={"filters": {"duplicates": "exact"}, "selection": {"target_rows": 30, "rows_per_prompt": 1}},
    )
    contents = [row["messages"][-1]["content"] for row in rows_of(published)]
    assert (len(contents), contents.count("1")) == (30, 1)
    assert [row[0] for row in published.summary] == ["prompts", "rollouts", "labels", "duplicates", "dataset"]


def test_trajectories_from_elsewhere_become_a_dataset_without_a_request(
    generate, provider: SimulatedProvider, tmp_path: Path
) -> None:
    generate(numbered(10))
    asked = len(provider.ledger)
    (shard,) = (tmp_path / "runs" / "artifacts" / "rollouts").iterdir()
    lines = (shard / "trajectories.jsonl").read_text().splitlines()
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_text("\n".join([*lines, '{"messages": []}']) + "\n")
    published = generate(
        numbered(8), rollouts={"trajectories_file": str(elsewhere)}, runtime={"store": str(tmp_path / "other")}
    )
    assert len(provider.ledger) == asked
    assert [row["sampling"] for row in rows_of(published)] == [None] * 5


def test_a_schema_may_refer_to_its_own_definitions(generate) -> None:
    """Prefect would take `$ref` in a flow's parameters for the name of one of its blocks."""
    schema = {"$ref": "#/$defs/number", "$defs": {"number": {"type": "integer", "minimum": 3}}}
    # The answers are -1, 1, 2, -1 and 4.
    rows = rows_of(generate(numbered(5), rollouts={"response_schema": schema}))
    assert [row["messages"][-1]["content"] for row in rows] == ["4"]


def test_the_error_of_one_shard_counts_what_all_shards_have_finished(generate, provider: SimulatedProvider) -> None:
    def script(request: ReceivedRequest) -> Reply:
        if request.index >= 14:
            return error(402, "Insufficient credits")
        return answer(request)

    provider.script = script
    with pytest.raises(QuotaError) as raised:
        generate(numbered(24), runtime={"shard_size": 4, "concurrency": 3})
    assert provider.num_billed == 14
    assert "Saved: 14 of 24 finished" in str(raised.value)
    assert str(raised.value).count("Saved:") == 1


def test_shards_use_the_connections_of_those_before_them(generate, provider: SimulatedProvider) -> None:
    generate(numbered(24), runtime={"shard_size": 2, "max_concurrency": 3})
    assert provider.num_billed == 24
    assert provider.num_connections <= 4


@pytest.fixture
def _lax_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_lax_umask")
def test_no_file_or_folder_of_a_store_is_open_to_others(generate, tmp_path: Path) -> None:
    generate(numbered(6), tracking={"enabled": True})
    store = tmp_path / "runs"
    names = {path.name for path in store.iterdir()}
    assert {"journal.sqlite3", "mlflow.db", "artifacts", "reports", "results"} <= names
    assert [path for path in (store, *store.rglob("*")) if path.stat().st_mode & 0o077] == []
