"""Requests of the engine, and the trajectories that it hands out."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from stillhouse.config import DatasetConfig, LabelsConfig, RolloutsConfig
from stillhouse.dataset.build import build_dataset
from stillhouse.dataset.read import read_rows
from stillhouse.inference import Journal
from stillhouse.inference.top_tokens import TopTokens
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion
from stillhouse.tools import Toolbox, tool
from stillhouse.tools.calculator import calculator
from stillhouse.types import Prompt, PromptMetadata, StopReason, Trajectory

Collect = Callable[..., Any]
MakePrompts = Callable[..., list[Prompt]]
Script = Callable[[ReceivedRequest], Reply]


def test_every_prompt_gets_its_samples_with_tools_run(collect: Collect, two_sums_then_answer: Script) -> None:
    with SimulatedProvider(two_sums_then_answer) as provider:
        got = collect(provider.url, 10, config=RolloutsConfig(num_samples=3))
    assert got.error is None
    assert len({row.rollout_key for row in got.trajectories}) == 30
    for row in got.trajectories:
        assert row.stop_reason is StopReason.ANSWERED
        assert [message["role"] for message in row.messages] == [
            *("user", "assistant", "tool", "assistant", "tool", "assistant"),
        ]
        assert row.tools == [calculator.schema]
        assert len(row.turns) == 3
        assert row.model == "simulated"
    assert got.stats.num_requests == provider.num_billed == 90
    assert got.stats.num_tool_calls == 60
    assert got.stats.completion_tokens == 450


def test_system_prompt_and_seed_reach_the_endpoint(collect: Collect, two_sums_then_answer: Script) -> None:
    with SimulatedProvider(two_sums_then_answer) as provider:
        collect(provider.url, 2, config=RolloutsConfig(system_prompt="Be brief.", num_samples=2))
        without = collect(provider.url, 1, config=RolloutsConfig(seed=None))
    with_seed = [body for body in provider.requests if "seed" in body]
    assert len(with_seed) == 12
    assert len({body["seed"] for body in with_seed}) == 12
    assert all(body["messages"][0] == {"role": "system", "content": "Be brief."} for body in with_seed)
    assert without.trajectories[0].messages[0]["role"] == "user"


def test_a_prompts_own_system_message_stays(collect: Collect, hello: Script) -> None:
    own = Prompt("p" * 64, [{"role": "system", "content": "Mine."}, {"role": "user", "content": "hi"}])
    with SimulatedProvider(hello) as provider:
        got = collect(provider.url, [own], config=RolloutsConfig(system_prompt="Yours."))
    assert [message["content"] for message in got.trajectories[0].messages] == ["Mine.", "hi", "hello"]


def test_a_prompt_is_offered_the_tools_it_names(collect: Collect, make_prompts: MakePrompts, hello: Script) -> None:
    with SimulatedProvider(hello) as provider:
        none = collect(provider.url, make_prompts(1, tools=[]))
        unknown = collect(provider.url, make_prompts(2, tools=["browse"]))
    assert "tools" not in provider.requests[0]
    assert none.trajectories[0].tools == []
    assert len(provider.ledger) == 1
    assert [row.stop_reason for row in unknown.trajectories] == [StopReason.ERROR] * 2
    assert "'browse' is not configured" in unknown.trajectories[0].error["message"]


def test_tools_that_raise_hang_or_are_called_wrongly_are_told_to_the_model(collect: Collect) -> None:
    @tool
    def explode() -> str:
        """Raises."""
        raise RuntimeError("boom")

    @tool(timeout_s=0.2)
    def hang() -> str:
        """Hangs."""
        threading.Event().wait()
        return ""

    calls = [("explode", "{}"), ("hang", "{}"), ("calculator", '{"expression": '), ("nothing", "{}")]

    def script(request: ReceivedRequest) -> Reply:
        return Reply(completion("sorry") if request.num_turns else completion(tool_calls=calls))

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, 2, toolbox=Toolbox([explode, hang, calculator]))
    for row in got.trajectories:
        assert row.stop_reason is StopReason.ANSWERED
        errors = [json.loads(message["content"])["error"] for message in row.messages if message["role"] == "tool"]
        assert errors[0] == "RuntimeError: boom"
        assert errors[1] == "hang did not return within 0.2 s"
        assert errors[2].startswith("the arguments are not valid JSON")
        assert errors[3] == "there is no tool 'nothing'; available tools: explode, hang, calculator"
        assert [turn.num_tool_errors for turn in row.turns] == [4, 0]
    assert got.stats.num_tool_errors == 8


def test_progress_tells_what_a_person_wants_to_see(collect: Collect, hello: Script) -> None:
    with SimulatedProvider(hello) as provider:
        got = collect(provider.url, 5, config=RolloutsConfig(num_samples=2))
    last = got.updates[-1]
    assert (last.done, last.total, last.failed, last.num_replayed) == (10, 10, 0, 0)
    assert last.tokens_per_s > 0
    assert last.limit >= 8
    assert last.usd is None


def test_prompts_that_raise_end_the_collection_with_their_error(
    collect: Collect, make_prompts: MakePrompts, hello: Script
) -> None:
    def prompts() -> Iterator[Prompt]:
        yield from make_prompts(3)
        raise ValueError("the file ends in the middle")

    with SimulatedProvider(hello) as provider:
        got = collect(provider.url, prompts())
    assert isinstance(got.error, ValueError)


def test_token_ids_reach_the_trajectory_when_asked_for(collect: Collect) -> None:
    def script(request: ReceivedRequest) -> Reply:
        body = completion("hello")
        body["prompt_token_ids"] = [1, 2]
        body["choices"][0]["token_ids"] = [3, 4]
        body["choices"][0]["logprobs"] = {"content": [{"logprob": -0.5}, {"logprob": -1.5}]}
        return Reply(body)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, 2, config=RolloutsConfig(record_tokens=True))
    turn = got.trajectories[0].turns[0]
    assert (turn.prompt_ids, turn.completion_ids, turn.sampling_logprobs) == ([1, 2], [3, 4], [-0.5, -1.5])


def test_the_most_probable_tokens_are_in_the_trajectory_and_the_journal(collect: Collect) -> None:
    config = RolloutsConfig(record_top_k=5)
    with SimulatedProvider() as provider:
        got = collect(provider.url, 2, config=config)
        again = collect(provider.url, 2, config=config)
        collect(provider.url, 2)
    assert len(provider.ledger) == 4, "a rollout that is to record them is another than one without"
    assert again.trajectories == got.trajectories
    for row in got.trajectories:
        [turn] = row.turns
        top = TopTokens.of_bytes(base64.b64decode(turn.top_logprobs))
        said = b"".join(top.spellings[token] for token in top.tokens_N)
        assert said.decode() == row.messages[-1]["content"]
        assert top.top.ids_NK.shape == (len(top.tokens_N), 5)


def test_a_provider_that_gives_fewer_than_asked_says_so_in_every_rollout(collect: Collect) -> None:
    with SimulatedProvider() as provider:
        got = collect(provider.url, 2, config=RolloutsConfig(record_top_k=50))
    assert all("refuses rollouts.record_top_k 50" in row.error["message"] for row in got.trajectories)
    assert len(provider.ledger) == 2, "a refusal is final"


def test_answers_without_what_was_to_be_recorded_are_kept_and_counted(
    collect: Collect, hello: Script, caplog: pytest.LogCaptureFixture
) -> None:
    with SimulatedProvider(hello) as provider:
        got = collect(provider.url, 3, config=RolloutsConfig(record_top_k=5))
    assert [row.turns[0].top_logprobs for row in got.trajectories] == [None] * 3
    assert "3 of 3 answers came without the most probable tokens" in caplog.text


def test_the_key_is_in_no_file(collect: Collect, tmp_path: Path, hello: Script) -> None:
    with SimulatedProvider(hello) as provider:
        collect(provider.url, 3)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert all(b"secret-key" not in path.read_bytes() for path in files)


def test_no_secret_of_the_environment_leaves_the_process(
    collect: Collect, monkeypatch: pytest.MonkeyPatch, journal: Journal, two_sums_then_answer: Script
) -> None:
    for name in ("HF_TOKEN", "GEMINI_API_KEY", "KERNEL_SECRET", "OTHER_PROJECT_ID"):
        monkeypatch.setenv(name, f"value-of-{name}")
    seen: list[str] = []

    def watch(request: ReceivedRequest) -> Reply:
        seen.append(json.dumps(request.body) + request.authorization)
        return two_sums_then_answer(request)

    with SimulatedProvider(watch) as provider:
        got = collect(provider.url, 3)
    assert "value-of-" not in "".join(seen)
    assert b"value-of-" not in b"".join(orjson.dumps(row) for row in got.trajectories)
    assert b"value-of-" not in journal.path.read_bytes()


def dataset_of(trajectories: list[Trajectory], folder: Path, metadata: dict[str, PromptMetadata]) -> Any:
    folder.mkdir()
    config = DatasetConfig(labels=LabelsConfig(render=False), validation_fraction=0.0)
    build_dataset(trajectories, metadata, config, tokenizer_ref="none", max_length=10_000, folder=folder)
    return {"train": list(read_rows(folder, "train")), "rejected": list(read_rows(folder, "rejected"))}


def test_what_was_cut_short_is_no_training_row(
    collect: Collect, make_prompts: MakePrompts, tmp_path: Path, hello: Script
) -> None:
    def cut_short(request: ReceivedRequest) -> Reply:
        if request.body["messages"][0]["content"].endswith("1"):
            return Reply(completion("and so on and", finish_reason="length"))
        return Reply(completion(tool_calls=[("calculator", '{"expression": "1 + 1"}')]))

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
