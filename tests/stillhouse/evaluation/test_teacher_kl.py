import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from stillhouse.config import BudgetConfig, OnPolicyTeacher, RuntimeConfig
from stillhouse.errors import EndpointError, InputError
from stillhouse.evaluation.log_ratio import ServedBy
from stillhouse.evaluation.teacher_kl import merge_turns, teacher_kl
from stillhouse.inference.local_server import served_model
from stillhouse.inference.scoring.ledger import LEDGER
from stillhouse.inference.scoring.segments import find_keys
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.models import load_model
from stillhouse.types import StopReason, Trajectory, Turn

STUDENT = "embedded:student"
TEACHER = "embedded:teacher"


def made_turn(prompt_ids: Sequence[int], completion_ids: Sequence[int], logprobs: Sequence[float]) -> Turn:
    return Turn(
        "stop", {}, 0.1, "m",
        prompt_ids=list(prompt_ids), completion_ids=list(completion_ids), sampling_logprobs=list(logprobs),
    )  # fmt: skip


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeConfig:
    return RuntimeConfig(store=str(tmp_path / "store"), device="cpu", num_threads=1)


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Yield a port, bound so that nothing else takes it, and not listened to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory("k", "p", 0, [], [], list(turns), StopReason.ANSWERED, "m")


@pytest.fixture(scope="module")
def student() -> PreTrainedModel:
    return load_model(STUDENT, device="cpu", num_threads=1)


@pytest.fixture(scope="module")
def sampled(student: PreTrainedModel) -> list[Trajectory]:
    """Return two-turn trajectories the student really sampled; the second prompt goes on from the first completion."""
    generator = Generator(student)
    rows = []
    for seed in range(4):
        prompt = [5 + seed, 17, 200, 41][: 2 + seed % 3]
        (first,) = generator.run([GenerationRequest(prompt, max_tokens=12, seed=seed)])
        longer = [*prompt, *first.completion_ids, 9, 8, 7]
        (second,) = generator.run([GenerationRequest(longer, max_tokens=6, seed=seed)])
        turns = [
            made_turn(ids, turn.completion_ids, turn.logprobs) for ids, turn in ((prompt, first), (longer, second))
        ]
        rows.append(trajectory(*turns))
    return rows


def test_a_student_that_is_the_teacher_is_at_distance_zero(sampled: list[Trajectory], runtime: RuntimeConfig) -> None:
    assert teacher_kl(sampled, STUDENT, runtime, temperature=1.0) == pytest.approx(0.0, abs=1e-4)


def test_distance_is_the_mean_log_ratio_of_plain_forward_passes(
    sampled: list[Trajectory], runtime: RuntimeConfig
) -> None:
    teacher = load_model(TEACHER, device="cpu", num_threads=1)
    differences = []
    for turn in (turn for trajectory in sampled for turn in trajectory.turns):
        prompt_ids, completion_ids = turn.prompt_ids or [], turn.completion_ids or []
        with torch.no_grad():
            logprobs = teacher(torch.tensor([prompt_ids + completion_ids])).logits[0].log_softmax(-1)
        for place, (token, logprob) in enumerate(zip(completion_ids, turn.sampling_logprobs or [], strict=True)):
            differences.append(logprob - float(logprobs[len(prompt_ids) + place - 1, token]))
    expected = sum(differences) / len(differences)
    assert abs(expected) > 0.01
    assert teacher_kl(sampled, TEACHER, runtime, temperature=1.0) == pytest.approx(expected, abs=1e-4)


def test_answers_that_were_scored_before_are_not_scored_again(
    sampled: list[Trajectory], runtime: RuntimeConfig
) -> None:
    def scored() -> list[int]:
        """Return the answers in each file of the teacher's ledger."""
        files = sorted(Path(runtime.store).glob(f"{LEDGER}/*/*.arrows"))
        return [len(list(find_keys(file))) for file in files]

    first = teacher_kl(sampled[:3], TEACHER, runtime, temperature=1.0)
    assert scored() == [3]
    assert teacher_kl(sampled[:3], TEACHER, runtime, temperature=1.0) == first
    assert scored() == [3]
    teacher_kl(sampled, TEACHER, runtime, temperature=1.0)
    assert scored() == [3, 1]
    teacher_kl(sampled[:1], STUDENT, runtime, temperature=1.0)
    assert sorted(scored()) == [1, 1, 3], "another teacher has a ledger of its own"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBy]:
    """Yield the teacher behind our own server, with vLLM's form of scores."""
    runtime = RuntimeConfig(store=str(tmp_path_factory.mktemp("server")), device="cpu", num_threads=1)
    with served_model(TEACHER, runtime) as (url, *_):
        teacher = OnPolicyTeacher(name="far", kind="vllm", model=TEACHER, base_url=url, top_k=5)
        yield ServedBy(teacher=teacher, student_ref=STUDENT, budget=BudgetConfig())


def test_a_teacher_behind_a_server_finds_the_distance_that_it_finds_here(
    sampled: list[Trajectory], runtime: RuntimeConfig, served: ServedBy
) -> None:
    expected = teacher_kl(sampled, TEACHER, runtime, temperature=1.0)
    assert teacher_kl(sampled, served, runtime, temperature=1.0) == pytest.approx(expected, abs=1e-4)
    ledgers = Path(runtime.store) / LEDGER
    assert sorted(len(list(find_keys(file))) for file in ledgers.glob("*/*.arrows")) == [4, 4]
    assert teacher_kl(sampled, served, runtime, temperature=1.0) == pytest.approx(expected, abs=1e-4)
    assert sorted(len(list(find_keys(file))) for file in ledgers.glob("*/*.arrows")) == [4, 4], "asked once"


def test_a_server_that_is_gone_is_named(
    sampled: list[Trajectory], runtime: RuntimeConfig, served: ServedBy, unused_port: int
) -> None:
    gone = served.teacher.model_copy(update={"base_url": f"http://127.0.0.1:{unused_port}/v1"})
    with pytest.raises(EndpointError, match=rf"127\.0\.0\.1:{unused_port}"):
        teacher_kl(sampled, served.model_copy(update={"teacher": gone}), runtime, temperature=1.0)


def test_turns_that_continue_are_scored_in_one_sequence() -> None:
    (spans,) = merge_turns([made_turn([1, 2], [3], [-0.1]), made_turn([1, 2, 3, 9], [4, 5], [-0.2, -0.3])])
    assert spans.token_ids == [1, 2, 3, 9, 4, 5]
    assert np.flatnonzero(spans.loss_mask).tolist() == [2, 4, 5]
    assert spans.sampling_logprobs == [-0.1, -0.2, -0.3]


def test_a_turn_whose_prompt_was_rendered_anew_starts_its_own_sequence() -> None:
    first, second = merge_turns([made_turn([1, 2], [3], [-0.1]), made_turn([1, 2, 7, 9], [4], [-0.2])])
    assert (first.token_ids, first.loss_mask) == ([1, 2, 3], [False, False, True])
    assert (second.token_ids, second.loss_mask) == ([1, 2, 7, 9, 4], [False] * 4 + [True])


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [trajectory()],
        [trajectory(made_turn([1], [], []))],
        [trajectory(made_turn([1], [2], [-0.1])), trajectory(Turn("stop", {}, 0.1, "m"))],
        [trajectory(Turn("stop", {}, 0.1, "m", prompt_ids=[1], completion_ids=[2]))],
    ],
)
def test_without_recorded_tokens_there_is_no_estimate(rows: list[Trajectory], runtime: RuntimeConfig) -> None:
    assert teacher_kl(rows, STUDENT, runtime, temperature=1.0) is None


def test_another_temperature_gives_no_estimate(sampled: list[Trajectory], runtime: RuntimeConfig) -> None:
    assert teacher_kl(sampled, STUDENT, runtime, temperature=0.7) is None


def test_a_token_the_teacher_does_not_know_is_named(runtime: RuntimeConfig) -> None:
    with pytest.raises(InputError, match="9999999"):
        teacher_kl([trajectory(made_turn([1], [9999999], [-0.1]))], STUDENT, runtime, temperature=1.0)
