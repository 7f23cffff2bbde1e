import io
import math
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

from stillhouse.config import StudentConfig, TrainerConfig
from stillhouse.errors import ConfigError
from stillhouse.training.loop.optimizer import build_optimizer, learning_rate
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student

CPU = torch.device("cpu")
RATE, DECAY = 0.1, 0.01


@pytest.fixture
def student(tiny_model: str, full_student: StudentConfig) -> Student:
    return load_student(tiny_model, full_student, CPU, seed=0)


def config(optimizer: str) -> TrainerConfig:
    return TrainerConfig(optimizer=optimizer, weight_decay=DECAY, betas=(0.8, 0.97))


def step(student: Student, optimizer: torch.optim.Optimizer, number: int, rate: float = RATE) -> None:
    generator = torch.Generator().manual_seed(number)
    for _, p in student.trained_parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()


def weights(student: Student) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in student.trained_parameters()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_parameter_is_in_one_group_and_only_matrices_are_decayed(student: Student, optimizer: str):
    groups = build_optimizer(student, config(optimizer)).param_groups
    members = [p for group in groups for p in group["params"]]
    assert sorted(map(id, members)) == sorted(id(p) for _, p in student.trained_parameters())
    assert {group["betas"] for group in groups if "betas" in group} == {(0.8, 0.97)}
    for group in groups:
        assert {p.ndim >= 2 for p in group["params"]} == {group["weight_decay"] == DECAY}


def test_muon_takes_the_matrices_between_embedding_and_output_layer(student: Student):
    optimizer = build_optimizer(student, config("muon"))
    step(student, optimizer, 0)
    muon = {name for name, p in student.trained_parameters() if "momentum_buffer" in optimizer.state[p]}
    assert muon == {name for name, p in student.trained_parameters() if "layers" in name and p.ndim == 2}


def test_muon_steps_by_an_orthogonal_matrix_of_the_size_of_an_adamw_step(student: Student):
    """Newton-Schulz in five steps brings the singular values to between 0.7 and 1.2, in half precision."""
    optimizer = build_optimizer(student, config("muon"))
    before = weights(student)
    step(student, optimizer, 0)
    name = "model.layers.0.mlp.up_proj.weight"
    rows, columns = before[name].shape
    change = weights(student)[name] - before[name] * (1 - RATE * DECAY)
    values = torch.linalg.svdvals(change) / (RATE * 0.2 * math.sqrt(max(rows, columns)))
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert change.square().mean().sqrt() == pytest.approx(0.2 * RATE, rel=0.2)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_learning_rate_of_the_groups_is_the_one_used(student: Student, optimizer: str):
    build = build_optimizer(student, config(optimizer))
    before = weights(student)
    step(student, build, 0, rate=0.0)
    after = weights(student)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_continued_from_its_saved_state_it_takes_bitwise_the_same_steps(
    tiny_model: str, full_student: StudentConfig, optimizer: str
):
    students = [load_student(tiny_model, full_student, CPU, seed=0) for _ in range(2)]
    whole, halved = (build_optimizer(student, config(optimizer)) for student in students)
    for number in range(2):
        step(students[0], whole, number)
        step(students[1], halved, number)
    file = io.BytesIO()
    torch.save(halved.state_dict(), file)
    file.seek(0)
    continued = build_optimizer(students[1], config(optimizer))
    continued.load_state_dict(torch.load(file, weights_only=True))
    for number in range(2, 4):
        for build, student in ((whole, students[0]), (continued, students[1])):
            for group in build.param_groups:
                group["lr"] = RATE / number
            step(student, build, number)
    one, other = map(weights, students)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_muon_is_refused_for_an_adapter(tiny_model: str):
    adapter = load_student(tiny_model, StudentConfig(lora_rank=4, dtype="float32"), CPU, seed=0)
    with pytest.raises(ConfigError, match=r"'muon'.*student\.parameters = 'full'"):
        build_optimizer(adapter, config("muon"))


def test_eight_bit_states_on_a_cpu_are_refused_with_all_that_is_missing(student: Student):
    package = "" if find_spec("bitsandbytes") else r"stillhouse\[quantised\].*"
    with pytest.raises(ConfigError, match=f"CUDA.*'cpu'.*{package}optimizer to `adamw`"):
        build_optimizer(student, config("adamw_8bit"))


@pytest.mark.gpu
def test_eight_bit_states_follow_adamw():
    pytest.importorskip("bitsandbytes")
    cuda = torch.device("cuda")
    settings = StudentConfig(parameters="full", dtype="float32")
    students = {name: load_student("embedded:student", settings, cuda, seed=0) for name in ("adamw", "adamw_8bit")}
    start = weights(students["adamw"])
    for name, student in students.items():
        build = build_optimizer(student, config(name))
        for number in range(3):
            for _, p in student.trained_parameters():
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(number)).to(cuda)
            build.step()
        table = student.causal_lm.get_input_embeddings().weight
        assert all(state.dtype is torch.float32 for state in build.state[table].values() if torch.is_tensor(state))
    exact, eight = (weights(student) for student in students.values())
    for name in start:
        moved = (exact[name] - start[name]).norm()
        assert (eight[name] - exact[name]).norm() < 0.2 * moved


PEAK, WARMUP, STEPS = 2.0, 4, 24


def rates(schedule: str, num_steps: int = STEPS, **changes: object) -> list[float]:
    config = TrainerConfig.model_validate({"schedule": schedule, "warmup_steps": WARMUP, **changes})
    return [learning_rate(PEAK, config, step, num_steps) for step in range(num_steps)]


@pytest.mark.parametrize(
    ("schedule", "after_warm_up"),
    [
        ("constant", lambda step: PEAK),
        ("linear", lambda step: PEAK * (24 - step) / 20),
        ("cosine", lambda step: PEAK * (1 + math.cos(math.pi * (step - 4) / 20)) / 2),
        ("wsd", lambda step: PEAK * min(1.0, (24 - step) / 4.8)),
    ],
)
def test_every_step_has_the_rate_of_the_formula(schedule: str, after_warm_up: Callable[[int], float]):
    expected = [0.5, 1.0, 1.5, 2.0, *map(after_warm_up, range(WARMUP, STEPS))]
    assert rates(schedule) == pytest.approx(expected)


def test_wsd_falls_from_the_end_of_warm_up_where_its_share_would_begin_before():
    assert rates("wsd", num_steps=10, warmup_steps=9)[7:] == pytest.approx([16 / 9, 2, 2])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd"])
def test_warm_up_longer_than_the_training_only_rises(schedule: str):
    assert rates(schedule, num_steps=3, warmup_steps=20) == pytest.approx([0.1, 0.2, 0.3])
