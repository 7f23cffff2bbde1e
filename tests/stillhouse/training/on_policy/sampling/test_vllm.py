import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from stillhouse.chat.refs import resolve_model
from stillhouse.config import StudentConfig, ToolsConfig
from stillhouse.errors import EndpointError
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.score import score_tokens
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.engine import SamplingEngines
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.training.on_policy.sampling.sampling_server import SamplingServer
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.sampling.vllm import VllmEngines
from stillhouse.training.on_policy.sampling.vllm_engine import read_generation
from stillhouse.training.on_policy.sampling.vllm_server import VllmServer
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt
from tests.stillhouse.training.sections import on_policy_of
from tests.stillhouse.training.trainings import disturb
from tests.stillhouse.training.vllm_stand_in import serving

NewEngines = Callable[..., VllmEngines]
REQUEST = GenerationRequest([5, 9, 40], 4)


@pytest.fixture(scope="module")
def server(serve: Callable[[str, str], str]) -> str:
    return serve("embedded:student", "base")


def vllm_engines(student: Student, server: str, folder: Path, **settings: object) -> VllmEngines:
    config = on_policy_of({"engine_url": server} | settings)
    return VllmEngines(student, config, folder / "sampler", max_outage_s=120.0)


@pytest.fixture
def new_engines(server: str, tmp_path: Path) -> Iterator[NewEngines]:
    with ExitStack() as stack:
        yield lambda student, **settings: stack.enter_context(
            closing(vllm_engines(student, server, tmp_path, **settings))
        )


@pytest.fixture
def original_weights(server: str) -> Iterator[None]:
    """Gives the server back the weights it began with."""
    yield
    call = {"method": "reload_weights", "kwargs": {"weights_path": resolve_model("embedded:student")}}
    httpx.post(server.removesuffix("v1") + "collective_rpc", json=call).raise_for_status()


def student_of(**settings: object) -> Student:
    config = StudentConfig.model_validate({"dtype": "float32", "max_length": 512, **settings})
    return load_student("embedded:student", config, torch.device("cpu"), seed=0)


def sample(
    student: Student, engines: SamplingEngines, version: int, prompts: list[Prompt], num_best: int = 0
) -> list[SampledTrajectory]:
    config = on_policy_of({"max_tokens": 48, "max_turns": 4, "group_size": 2, "max_concurrent": 5})
    sampler = Sampler(
        student.tokenizer,
        Toolbox.from_config(ToolsConfig(builtin=("calculator",))),
        SamplingSettings.of(config, num_best),
        512,
    )
    with engines.engine(version) as engine:
        return sampler.sample(engine, prompts, version, policy_version=version)


def models(server: str) -> list[str]:
    return [entry["id"] for entry in httpx.get(f"{server}/models").json()["data"]]


@pytest.mark.parametrize("parameters", ["lora", "full"])
def test_each_version_is_sampled_from_the_weights_it_has(
    original_weights: None, server: str, prompts: list[Prompt], tmp_path: Path, parameters: str
):
    student = student_of(parameters=parameters)
    engines = vllm_engines(student, server, tmp_path)
    for version in (0, 1):
        disturb(student, 0.02, seed=version)
        trajectories = sample(student, engines, version, prompts[:2])
        scores = score_tokens(student.causal_lm, [trajectory.token_ids for trajectory in trajectories])
        for trajectory, rescored in zip(trajectories, scores, strict=True):
            expected = [score if mask else 0.0 for score, mask in zip(rescored, trajectory.loss_mask, strict=True)]
            assert trajectory.sampling_logprobs == pytest.approx(expected, abs=1e-4)
            assert np.array_equal(trajectory.policy_versions, version * np.array(trajectory.loss_mask))
        # The same seeds in this process give the same tokens.
        here = sample(student, TransformersEngines(student, 5), version, prompts[:2])
        assert [made.token_ids for made in trajectories] == [made.token_ids for made in here]
    assert any(trajectory.num_turns > 1 for trajectory in trajectories)
    assert [path.name for path in (tmp_path / "sampler").iterdir()] == ["version-1"]
    assert len(models(server)) == (2 if parameters == "lora" else 1), "one adapter is left, of the last version"
    engines.close()
    assert models(server) == ["base"]
    assert not (tmp_path / "sampler").exists()


@pytest.mark.parametrize("parameters", ["lora", "full"])
def test_requests_under_way_end_while_new_weights_are_handed_over(
    original_weights: None, server: str, new_engines: NewEngines, tmp_path: Path, parameters: str
) -> None:
    student = student_of(parameters=parameters)
    engines = new_engines(student)
    long = GenerationRequest([5, 9, 40], 200)
    with engines.engine(0) as engine:
        alone = engine.complete(long)
        engine.submit(long)
        asked = engines._pool.servers[0]
        while not asked.num_under_way:
            time.sleep(0.001)
        disturb(student, 0.02, seed=1)
        with engines.engine(3):
            pass
        after = engine.complete(REQUEST)
        done = []
        while not done:
            done = engine.step()
        [(_, before)] = done
    assert set(before.policy_versions) == {0}
    assert set(after.policy_versions) == {3}
    assert before.logprobs == pytest.approx(alone.logprobs, abs=1e-4), "this server ends with what it began with"
    disturb(student, 0.02, seed=2)
    with engines.engine(5):
        assert [path.name for path in (tmp_path / "sampler").iterdir()] == ["version-5"]
        assert len([name for name in models(server) if name != "base"]) == (parameters == "lora")


def test_tokens_sampled_on_either_side_of_new_weights_are_told_apart(server: str, tmp_path: Path) -> None:
    asked = SamplingServer(VllmServer(server), tmp_path, is_adapter=False)
    spans = [{"version": asked._name(2), "start": 0, "end": 3}, {"version": asked._name(4), "start": 3, "end": 5}]
    assert asked.versions({"weight_versions": spans}, 2, 5) == [2, 2, 2, 4, 4]
    assert asked.versions({}, 2, 5) == [2] * 5
    asked.close()


def test_weights_are_handed_over_once_a_version(new_engines: NewEngines, tmp_path: Path):
    engines = new_engines(student_of())
    weights = tmp_path / "sampler" / "version-3" / "adapter_model.safetensors"
    with engines.engine(3):
        written = weights.stat().st_mtime_ns
    with engines.engine(3) as engine:
        assert engine.complete(REQUEST).completion_ids
    assert weights.stat().st_mtime_ns == written


def test_adapter_that_an_earlier_process_left_is_replaced(new_engines: NewEngines):
    student = student_of()
    with new_engines(student).engine(0) as engine:
        old = engine.complete(REQUEST)
    disturb(student, 0.02, seed=0)
    with new_engines(student).engine(0) as engine:
        assert engine.complete(REQUEST).logprobs != old.logprobs


def test_server_of_another_base_model_is_refused(new_engines: NewEngines):
    student = student_of()
    with torch.no_grad():
        student.head.weight += 0.5 * torch.randn(student.head.weight.shape)
    with pytest.raises(EndpointError, match="'embedded:student'"):
        new_engines(student).engine(0).__enter__()


def test_log_probs_of_another_distribution_than_the_sampled_one_are_refused(new_engines: NewEngines):
    with pytest.raises(EndpointError, match="processed_logprobs"):
        new_engines(student_of(), temperature=0.9).engine(0).__enter__()


def answer(**changed: Any) -> dict[str, Any]:
    choice = {"token_ids": [7, 2], "prompt_token_ids": [5, 9, 40], "logprobs": {"token_logprobs": [-0.5, -1.0]}}
    return {"choices": [{**choice, "finish_reason": "stop", **changed}]}


def test_answer_is_read_as_ids_and_log_probs():
    done = read_generation(answer(), REQUEST)
    assert (done.completion_ids, done.logprobs, done.finish_reason) == ([7, 2], [-0.5, -1.0], "stop")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token_ids": None}, "token_ids"),
        ({"logprobs": None}, "logprobs"),
        ({"prompt_token_ids": [1, 5, 9, 40]}, "read 4 tokens"),
        ({"logprobs": {"token_logprobs": [-0.5]}}, "1 log-probabilities"),
        ({"logprobs": {"token_logprobs": [-0.5, None]}}, "a number for each"),
        ({"logprobs": {"token_logprobs": [-0.5, float("nan")]}}, "a number for each"),
        ({"logprobs": {"token_logprobs": [-0.5, "-1.0"]}}, "a number for each"),
        ({"token_ids": [], "logprobs": {"token_logprobs": []}}, "a token or more"),
    ],
)
def test_answer_that_cannot_be_trained_on_is_refused(changed: dict[str, Any], message: str):
    with pytest.raises(EndpointError, match=message):
        read_generation(answer(**changed), REQUEST)


def test_the_most_probable_tokens_are_those_that_this_process_finds(
    new_engines: NewEngines, original_weights: None, prompts: list[Prompt]
):
    student = student_of(parameters="full")
    there, here = (
        sample(student, engines, 0, prompts[:2], num_best=4)
        for engines in (new_engines(student), TransformersEngines(student, 5))
    )
    for one, other in zip(there, here, strict=True):
        assert one.best_ids_NK is not None
        assert other.best_ids_NK is not None
        assert one.best_ids_NK.shape == (sum(one.loss_mask), 4)
        assert one.best_ids_NK.tolist() == other.best_ids_NK.tolist()
    assert all(one.best_ids_NK is None for one in sample(student, TransformersEngines(student, 5), 0, prompts[:1]))


def test_the_most_probable_tokens_are_read_without_another_that_was_sampled():
    tops = [{"token_id:7": -4.0, "token_id:3": -1.0, "token_id:5": -2.0}, {"token_id:2": -0.5, "token_id:9": -3.0}]
    logprobs = {"token_logprobs": [-4.0, -0.5], "top_logprobs": tops}
    done = read_generation(answer(logprobs=logprobs), replace(REQUEST, num_best=2))
    assert done.best_ids_NK is not None
    assert done.best_ids_NK.tolist() == [[3, 5], [2, 9]]
    for wrong in (None, [None, None], [{"token_id:7": -1.0}, {}], [{"a": -1.0, "b": -2.0}] * 2):
        with pytest.raises(EndpointError, match="no completion"):
            read_generation(answer(logprobs={**logprobs, "top_logprobs": wrong}), replace(REQUEST, num_best=2))


@pytest.mark.parametrize("page", ["<html>Welcome</html>", None, [], {}, {"choices": []}, {"choices": [7]}])
def test_answer_that_is_no_completion_is_shown(page: Any):
    with pytest.raises(EndpointError, match=r"no completion: .*on_policy\.engine_url"):
        read_generation(page, REQUEST)


def test_adapters_that_a_killed_training_left_are_unloaded(new_engines: NewEngines, server: str):
    student = student_of(parameters="lora")
    with new_engines(student).engine(7):
        pass
    with new_engines(student).engine(5):
        assert len([name for name in models(server) if name.startswith("stillhouse-")]) == 1


def test_a_server_that_was_started_anew_between_two_requests_is_noticed(
    original_weights: None, server: str, new_engines: NewEngines
) -> None:
    student = student_of(parameters="full")
    disturb(student, 0.02, seed=0)
    root = server.removesuffix("v1")

    def start_anew() -> None:
        """Leave the server as a start does: with the base model's weights, and a version that nobody set."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": resolve_model("embedded:student")}}
        httpx.post(root + "collective_rpc", json=call).raise_for_status()
        httpx.post(root + "update_weight_version", json={"new_version": "default"}).raise_for_status()

    with new_engines(student).engine(0) as engine:
        before = engine.complete(REQUEST)
        start_anew()
        assert engine.complete(REQUEST) == before


def test_requests_are_shared_by_servers_of_which_one_is_lost_and_comes_back(
    server: str, serve: Callable[[str, str], str], prompts: list[Prompt], new_engines: NewEngines
) -> None:
    student = student_of(parameters="lora")

    def sampled(engines: SamplingEngines, version: int) -> list[list[int]]:
        return [trajectory.token_ids for trajectory in sample(student, engines, version, prompts[:6])]

    expected = sampled(TransformersEngines(student, 5), 0)
    with ExitStack() as stack:
        others = stack.enter_context(serving("embedded:student", "base"))
        engines = new_engines(student, engine_url=[server, others])
        assert sampled(engines, 0) == expected
        assert all(any(name.startswith("stillhouse-") for name in models(url)) for url in (server, others))
        port = int(others.removesuffix("/v1").rpartition(":")[2])
        stack.close()
        disturb(student, 0.02, seed=1)
        expected = sampled(TransformersEngines(student, 5), 1)
        assert sampled(engines, 1) == expected, "the other one has samples of all"
        assert engines._pool._away
        with serving("embedded:student", "base", port) as url:
            deadline = time.monotonic() + 120
            while engines._pool._away and time.monotonic() < deadline:
                time.sleep(0.05)
            [name] = [name for name in models(url) if name.startswith("stillhouse-")]
            assert name.endswith("-v1"), "it has the newest weights before it is asked"
            assert sampled(engines, 1) == expected
