"""What the loose scripts that this engine replaces got wrong: answers lost, paid twice, or of no use for training.

Duplicates, what counts as done, and errors in an answer of status 200 are in `test_engine_failures` and
`test_engine_replay`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from stillhouse.config import DatasetConfig, LabelsConfig, RolloutsConfig
from stillhouse.dataset.build import build_dataset
from stillhouse.dataset.read import read_rows
from stillhouse.inference import Journal
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion
from stillhouse.types import Prompt, PromptMetadata, Trajectory

Collect = Callable[..., Any]
MakePrompts = Callable[..., list[Prompt]]
Script = Callable[[ReceivedRequest], Reply]


def one_sum_then_answer(request: ReceivedRequest) -> Reply:
    if request.body["messages"][-1]["role"] == "user":
        return Reply(completion(tool_calls=[("calculator", '{"expression": "1 + 1"}')]))
    return Reply(completion("The answer is 2."))


def always_a_call(request: ReceivedRequest) -> Reply:
    return Reply(completion(tool_calls=[("calculator", '{"expression": "1 + 1"}')]))


def dataset_of(trajectories: list[Trajectory], folder: Path, metadata: dict[str, PromptMetadata]) -> Any:
    folder.mkdir()
    config = DatasetConfig(labels=LabelsConfig(render=False), validation_fraction=0.0)
    build_dataset(trajectories, metadata, config, tokenizer_ref="none", max_length=10_000, folder=folder)
    return {"train": list(read_rows(folder, "train")), "rejected": list(read_rows(folder, "rejected"))}


def test_what_was_cut_short_is_no_training_row(
    collect: Collect, make_prompts: MakePrompts, tmp_path: Path, hello: Script
) -> None:
    def cut_short(request: ReceivedRequest) -> Reply:
        long = request.body["messages"][0]["content"].endswith("1")
        return Reply(completion("and so on and", finish_reason="length")) if long else always_a_call(request)

    with SimulatedProvider(cut_short) as provider:
        got = collect(provider.url, 2, config=RolloutsConfig(max_turns=2, closing_answer=False))
        with SimulatedProvider(hello) as whole:
            got.trajectories += collect(whole.url, make_prompts(1, start=7)).trajectories
    rows = dataset_of(got.trajectories, tmp_path / "dataset", {})
    assert len(rows["train"]) == 1
    assert sorted(row["stop_reason"] for row in rows["rejected"]) == ["length", "max_turns"]


def test_the_facts_of_an_answer_are_kept_and_no_metadata_hides_them(
    collect: Collect, make_prompts: MakePrompts, tmp_path: Path
) -> None:
    answer = completion("2", message={"reasoning": "one and one"})
    answer["provider"] = "Somewhere"
    answer["usage"] |= {"cost": 0.25, "prompt_tokens_details": {"cached_tokens": 3}}
    with SimulatedProvider(lambda request: Reply(answer)) as provider:
        got = collect(provider.url, 1, config=RolloutsConfig(seed=3))
        assert provider.requests[0]["seed"] >= 0
    prompt = make_prompts(1)[0]
    impostor = PromptMetadata(prompt.id, None, None, "exact", {"teacher": "impostor", "turns": 99})
    row = dataset_of(got.trajectories, tmp_path / "dataset", {prompt.id: impostor})["train"][0]
    turn = got.trajectories[0].turns[0]
    assert (turn.finish_reason, turn.cost_usd, turn.provider, turn.usage["cached_tokens"]) == (
        *("stop", 0.25, "Somewhere", 3),
    )
    assert got.trajectories[0].messages[-1]["reasoning"] == "one and one"
    assert (row["teacher"], row["turns"]) == ("simulated", 1)
    assert row["metadata"] == {"teacher": "impostor", "turns": 99}


def test_no_secret_of_the_environment_leaves_the_process(
    collect: Collect, monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    for name in ("HF_TOKEN", "GEMINI_API_KEY", "KERNEL_SECRET", "OTHER_PROJECT_ID"):
        monkeypatch.setenv(name, f"value-of-{name}")
    seen: list[str] = []

    def watch(request: ReceivedRequest) -> Reply:
        seen.append(json.dumps(request.body) + request.authorization)
        return one_sum_then_answer(request)

    with SimulatedProvider(watch) as provider:
        got = collect(provider.url, 3)
    assert "value-of-" not in "".join(seen)
    assert b"value-of-" not in b"".join(orjson.dumps(row) for row in got.trajectories)
    assert b"value-of-" not in journal.path.read_bytes()
