"""What the loose scripts that this engine replaces got wrong: answers lost, paid twice, or of no use for training.

Duplicates, what counts as done, and errors in an answer of status 200 are in `test_engine_failures` and
`test_engine_replay`.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from stillhouse.config import DatasetConfig, LabelsConfig, RolloutsConfig, RuntimeConfig
from stillhouse.dataset.build import build_dataset
from stillhouse.dataset.read import read_rows
from stillhouse.inference import Journal
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion, error
from stillhouse.tools import Toolbox, tool
from stillhouse.tools.calculator import calculator
from stillhouse.types import Prompt, PromptMetadata, StopReason, Trajectory

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


def test_every_finished_rollout_reaches_the_dataset(collect: Collect, tmp_path: Path, hello: Script) -> None:
    with SimulatedProvider(hello) as provider:
        got = collect(provider.url, 20, config=RolloutsConfig(num_samples=3))
    rows = dataset_of(got.trajectories, tmp_path / "dataset", {})
    assert len(rows["train"]) == 60
    assert rows["rejected"] == []


def test_turns_and_tools_survive_into_sft_rows(collect: Collect, tmp_path: Path) -> None:
    with SimulatedProvider(one_sum_then_answer) as provider:
        got = collect(provider.url, 3)
    for row in dataset_of(got.trajectories, tmp_path / "dataset", {})["train"]:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert row["tools"] == [calculator.schema]


def test_at_a_concurrency_of_one_a_429_skips_no_prompt(collect: Collect) -> None:
    def refused_twice(request: ReceivedRequest) -> Reply:
        refused = error(429, "slow down", headers={"retry-after": "0.1"})
        return refused if request.index in (3, 4) else Reply(completion("hi"))

    with SimulatedProvider(refused_twice) as provider:
        got = collect(provider.url, 12, runtime=RuntimeConfig(concurrency=1, max_concurrency=1))
        assert sum(entry.status == 429 for entry in provider.ledger) == 2
    assert [row.stop_reason for row in got.trajectories] == [StopReason.ANSWERED] * 12


def test_retry_after_is_kept_by_all(collect: Collect) -> None:
    refused_at: list[float] = []

    def first_refused(request: ReceivedRequest) -> Reply:
        if not refused_at:
            refused_at.append(time.time())
            return error(429, "slow down", headers={"retry-after": "1"})
        return Reply(completion("hi"), delay_s=0.05)

    with SimulatedProvider(first_refused) as provider:
        collect(provider.url, 30, runtime=RuntimeConfig(concurrency=2))
        after = [entry.arrived_at - refused_at[0] for entry in provider.ledger if entry.arrived_at > refused_at[0]]
    # What was on its way when the refusal came is not held against anyone.
    assert sum(wait < 0.95 for wait in after) <= 1
    assert len(after) >= 28


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


def test_a_tool_that_blocks_holds_up_no_other_rollout(collect: Collect) -> None:
    meeting = threading.Barrier(8)

    @tool
    def slow() -> str:
        """Returns once all eight rollouts are in it."""
        meeting.wait(60)
        return "done"

    def call_then_answer(request: ReceivedRequest) -> Reply:
        called = request.body["messages"][-1]["role"] == "tool"
        return Reply(completion("done")) if called else Reply(completion(tool_calls=[("slow", "{}")]))

    with SimulatedProvider(call_then_answer) as provider:
        got = collect(provider.url, 8, toolbox=Toolbox([slow]), runtime=RuntimeConfig(concurrency=8))
    assert len(got.trajectories) == 8
    assert {row.messages[2]["content"] for row in got.trajectories} == {"done"}


def test_a_cut_answer_is_asked_again_and_what_fails_for_good_is_told(collect: Collect) -> None:
    def cut(request: ReceivedRequest) -> Reply:
        hopeless = request.body["messages"][0]["content"] == "question 0"
        return Reply(completion("hi"), fault="cut" if hopeless or request.attempt == 0 else "none")

    with SimulatedProvider(cut) as provider:
        got = collect(provider.url, 5)
    assert Counter(row.stop_reason for row in got.trajectories) == {StopReason.ANSWERED: 4, StopReason.ERROR: 1}
    assert got.stats.num_failed == 1


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
