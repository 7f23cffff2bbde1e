"""Prompts of every kind to a dataset, over HTTP; other filters, a target, and trajectories that came from elsewhere."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider, completion
from stillhouse.dataset.read import read_rows
from tasks.publish import Published

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
ROLL_ROWS = [
    {
        "id": "math-1",
        "source": "gsm8k",
        "difficulty": "easy",
        "prompt": "What is 6 * 7?",
        "messages": json.dumps([{"role": "user", "content": "What is 6 * 7?"}]),
        "tag": "math_rule",
        "ground_truth": "42",
    },
    {
        "id": "code-1",
        "source": "kodcode",
        "difficulty": "easy",
        "messages": json.dumps([{"role": "user", "content": "Write add(a, b)."}]),
        "tag": "KodCode",
        "test_cases": json.dumps(["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]),
    },
    {
        "id": "code-2",
        "messages": json.dumps([{"role": "user", "content": "Write twice(a)."}]),
        "tag": "KodCode",
        "test_cases": json.dumps(["assert twice(2) == 4"]),
    },
]
ANSWERS = {
    "What is 17 + 25?": "It is 42.",
    "Who wrote Faust?": "Johann Wolfgang von Goethe wrote it.",
    "What is 6 * 7?": "\\boxed{42}",
    "Write add(a, b).": "```python\ndef add(a, b):\n    return a + b\n```",
    "Write twice(a).": "```python\ndef twice(a):\n    return a\n```",
}


def answer(asked: Asked) -> Reply:
    question = next(m["content"] for m in asked.body["messages"] if m["role"] == "user")
    if question.startswith("question "):
        # Every third is wrong, whatever the sample.
        number = int(question.split()[1])
        return Reply(completion(str(number if number % 3 else -1)))
    if "17" in question and asked.body["messages"][-1]["role"] == "user":
        return Reply(completion(tool_calls=[("calculator", json.dumps({"expression": "17 + 25"}))]))
    return Reply(completion(ANSWERS[question]))


Generate = Callable[..., Published]


@pytest.fixture
def provider() -> Iterator[SimulatedProvider]:
    with SimulatedProvider(answer) as running:
        yield running


@pytest.fixture
def generate(provider: SimulatedProvider, generate_from: Callable[..., Published]) -> Generate:
    """Runs the flow over rows of a prompts file, with a student whose template renders them."""
    return partial(generate_from, provider.url)


def numbered(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"question {index}", "tools": [], "metadata": {"expected_answer": str(index), "verifier": "numeric"}}
        for index in range(count)
    ]


def folder_of(published: Published) -> Path:
    assert published.dataset is not None
    return Path(published.dataset.uri)


def test_rows_of_rnow_become_a_verified_dataset(generate: Generate) -> None:
    folder = folder_of(generate(RNOW_ROWS))
    rows = {row["messages"][-1]["content"]: row for row in read_rows(folder, "train")}
    assert {content: row["verified"] for content, row in rows.items()} == {
        "It is 42.": True,
        "Johann Wolfgang von Goethe wrote it.": True,
    }
    with_tool = rows["It is 42."]
    assert [tool["function"]["name"] for tool in with_tool["tools"]] == ["calculator"]
    (call,) = with_tool["messages"][1]["tool_calls"]
    assert call["function"]["arguments"] == {"expression": "17 + 25"}
    assert rows["Johann Wolfgang von Goethe wrote it."]["metadata"]["docker"] == "local/playwright"


def test_rows_of_roll_become_a_dataset_whose_code_was_run(generate: Generate) -> None:
    published = generate(ROLL_ROWS, prompts={"verifier": "math"})
    folder = folder_of(published)
    assert {row["tag"]: row["verified"] for row in read_rows(folder, "train")} == {"math_rule": True, "KodCode": True}
    (dropped,) = read_rows(folder, "rejected")
    assert (dropped["verifier"], dropped["verified"], dropped["drop_reasons"]) == ("python", False, ["wrong"])


def test_other_filters_ask_nothing_and_label_nothing_again(generate: Generate, provider: SimulatedProvider) -> None:
    first = generate(numbered(30))
    asked = len(provider.ledger)
    assert folder_of(first) != folder_of(second := generate(numbered(30), dataset={"filters": {"drop_wrong": False}}))
    assert len(provider.ledger) == asked
    assert [name for name, cached in second.cached.items() if not cached] == ["dataset"]
    assert first.dataset is not None
    assert second.dataset is not None
    assert (first.dataset.num_rows, second.dataset.num_rows) == (20, 30)


def test_a_changed_answer_labels_its_shard_anew_and_no_other(generate: Generate, provider: SimulatedProvider) -> None:
    runtime = {"shard_size": 10}
    generate(numbered(30), runtime=runtime)
    labels = len(list((folder_of(generate(numbered(30), runtime=runtime)).parents[1] / "labels").iterdir()))
    asked = len(provider.ledger)
    rows = numbered(30)
    rows[0]["metadata"]["expected_answer"] = "-1"
    changed = generate(rows, runtime=runtime)
    assert len(provider.ledger) == asked
    assert changed.dataset is not None
    assert changed.dataset.num_rows == 21
    assert len(list((folder_of(changed).parents[1] / "labels").iterdir())) == labels + 1


def test_a_target_is_met_exactly_and_nothing_is_asked_beyond_it(
    generate: Generate, provider: SimulatedProvider
) -> None:
    selection = {"target_rows": 12, "rows_per_prompt": 1}
    published = generate(
        numbered(60), dataset={"selection": selection, "validation_fraction": 0.0}, runtime={"shard_size": 20}
    )
    rows = list(read_rows(folder_of(published), "train"))
    assert len(rows) == 12
    assert len({row["prompt_id"] for row in rows}) == 12
    # A third of the answers is wrong: 18 are needed on average.
    assert len(provider.ledger) <= 24


def test_a_target_beyond_reach_keeps_what_there_is_once_every_candidate_was_tried(
    generate: Generate, provider: SimulatedProvider, caplog: pytest.LogCaptureFixture
) -> None:
    selection = {"target_rows": 50, "rows_per_prompt": 1}
    published = generate(numbered(30), dataset={"selection": selection}, rollouts={"num_samples": 2})
    assert published.dataset is not None
    assert published.dataset.num_rows == 20
    assert len(provider.ledger) == 20 + 2 * 10
    assert "20 of 50 rows are there and no candidate is left" in caplog.text


def test_rows_that_only_the_whole_set_can_drop_are_made_up_for(generate: Generate, provider: SimulatedProvider) -> None:
    """Ten of the prompts are one prompt but for its white space: nine of their rows repeat the first."""
    alike = [
        {"prompt": f"question{' ' * index} 1", "tools": [], "metadata": {"expected_answer": "1", "verifier": "numeric"}}
        for index in range(1, 11)
    ]
    published = generate(
        alike + numbered(60),
        dataset={"filters": {"duplicates": "exact"}, "selection": {"target_rows": 30, "rows_per_prompt": 1}},
    )
    assert published.dataset is not None
    assert published.dataset.num_rows == 30
    contents = [row["messages"][-1]["content"] for row in read_rows(folder_of(published), "train")]
    assert contents.count("1") == 1
    assert [row[0] for row in published.summary] == ["prompts", "rollouts", "labels", "duplicates", "dataset"]


def test_trajectories_from_elsewhere_become_a_dataset_without_a_request(
    generate: Generate, provider: SimulatedProvider, tmp_path: Path
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
    assert published.dataset is not None
    assert published.dataset.num_rows == 5
    assert {row["sampling"] for row in read_rows(folder_of(published), "train")} == {None}


def test_a_schema_may_refer_to_its_own_definitions(generate: Generate) -> None:
    """Prefect would take `$ref` in a flow's parameters for the name of one of its blocks."""
    schema = {"$ref": "#/$defs/number", "$defs": {"number": {"type": "integer", "minimum": 3}}}
    # The answers are -1, 1, 2, -1 and 4.
    for section in ({"rollouts": {"response_schema": schema}}, {"dataset": {"labels": {"answer_schema": schema}}}):
        folder = folder_of(generate(numbered(5), **section))
        assert [row["messages"][-1]["content"] for row in read_rows(folder, "train")] == ["4"]
