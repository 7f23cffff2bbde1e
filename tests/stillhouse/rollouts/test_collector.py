"""Requests of the engine, and the trajectories that it hands out."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from stillhouse.config import RolloutsConfig
from stillhouse.errors import EndpointError
from stillhouse.inference.top_tokens import TopTokens
from stillhouse.tools import Toolbox, tool
from stillhouse.tools.calculator import calculator
from stillhouse.types import Prompt, StopReason
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

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


def test_system_prompt_seed_and_further_keys_reach_the_endpoint(collect: Collect, two_sums_then_answer: Script) -> None:
    further: dict[str, Any] = {"reasoning_effort": "low", "extra_body": {"provider": {"order": ["x"]}}}
    config = RolloutsConfig(system_prompt="Be brief.", num_samples=2, record_tokens=True, **further)
    with SimulatedProvider(two_sums_then_answer) as provider:
        collect(provider.url, 2, config=config)
        without = collect(provider.url, 1, config=RolloutsConfig(seed=None))
    with_seed = [body for body in provider.requests if "seed" in body]
    assert len({body["seed"] for body in with_seed}) == len(with_seed) == 12
    for body in with_seed:
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (body["reasoning_effort"], body["provider"], body["logprobs"]) == ("low", {"order": ["x"]}, True)
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
    assert "browse" in unknown.trajectories[0].error["message"]


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
        errors = [message["content"] for message in row.messages if message["role"] == "tool"]
        for error, word in zip(errors, ("boom", "0.2 s", "JSON", "'nothing'"), strict=True):
            assert word in error
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


def test_a_provider_that_gives_fewer_than_asked_ends_the_run_at_once(collect: Collect) -> None:
    with SimulatedProvider() as provider:
        got = collect(provider.url, 2, config=RolloutsConfig(record_top_k=50))
    assert isinstance(got.error, EndpointError)
    assert "Change rollouts.record_top_k" in str(got.error)


def test_answers_without_what_was_to_be_recorded_are_kept_and_counted(
    collect: Collect, hello: Script, caplog: pytest.LogCaptureFixture
) -> None:
    with SimulatedProvider(hello) as provider:
        got = collect(provider.url, 3, config=RolloutsConfig(record_top_k=5))
    assert [row.turns[0].top_logprobs for row in got.trajectories] == [None] * 3
    assert "3 of 3 answers came without the most probable tokens" in caplog.text


def test_the_key_is_in_no_file_and_no_secret_of_the_environment_leaves_the_process(
    collect: Collect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, two_sums_then_answer: Script
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
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(secret in content for content in kept for secret in (b"value-of-", b"secret-key"))
