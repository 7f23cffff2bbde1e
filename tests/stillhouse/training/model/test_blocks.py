from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from stillhouse.attention.segments import Segments, segment_arguments
from stillhouse.config import StudentConfig, TrainerConfig
from stillhouse.errors import ConfigError
from stillhouse.training.model.blocks import (
    MIN_COMPILED_STEPS,
    can_compile,
    decoder_blocks,
    prepare_blocks,
    wants_compile,
)
from stillhouse.training.model.load import load_student
from stillhouse.training.model.memory import estimate_memory
from stillhouse.training.model.student import Student
from tests.stillhouse.training.trainings import disturb

CPU = torch.device("cpu")
NewStudent = Callable[[str], Student]
KINDS = {
    "full": {"parameters": "full"},
    "lora": {"lora_rank": 4, "lora_dropout": 0.5},
    "bfloat16": {"lora_rank": 4, "dtype": "bfloat16"},
}


@pytest.fixture
def new_student(tiny_model: str) -> NewStudent:
    def new(kind: str) -> Student:
        config = StudentConfig.model_validate({"dtype": "float32", **KINDS[kind]})
        return disturb(load_student(tiny_model, config, CPU, seed=0))

    return new


def trained_pass(student: Student, lengths: tuple[int, ...]) -> list[torch.Tensor]:
    """Hidden states of a packed row, and the gradient of a weighted sum of them."""
    student.model.train()
    torch.manual_seed(0)
    starts = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    with student.precision():
        hidden = student.step.backbone(
            input_ids=torch.randint(100, (1, sum(lengths))),
            position_ids=torch.cat([torch.arange(length) for length in lengths])[None],
            use_cache=False,
            **segment_arguments(Segments(starts, lengths, max(lengths))),
        ).last_hidden_state.float()
    weight = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
    parameters = [p for _, p in student.trained_parameters()]
    return [hidden.detach(), *torch.autograd.grad((hidden * weight).sum(), parameters, allow_unused=True)]


def kept_bytes(student: Student) -> int:
    """What a forward pass of 64 tokens keeps for the backward pass, as counted for the estimate of memory."""
    return estimate_memory(student, TrainerConfig(), 64, checkpointed=False).kept


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_blocks_are_the_layers_in_order_with_or_without_an_adapter(new_student, kind: str):
    student = new_student(kind)
    assert decoder_blocks(student.causal_lm) == list(student.step.backbone.layers)


def test_model_without_such_layers_is_refused():
    with pytest.raises(ConfigError, match="Linear"):
        decoder_blocks(nn.Linear(1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", list(KINDS))
def test_recomputed_blocks_give_the_same_bits_and_keep_less(new_student, kind: str):
    plain, recomputed = new_student(kind), new_student(kind)
    prepare_blocks(recomputed.causal_lm, compiled=False, checkpointed=True)
    for expected, seen in zip(trained_pass(plain, (9, 5)), trained_pass(recomputed, (9, 5)), strict=True):
        assert torch.equal(seen, expected)
    assert kept_bytes(recomputed) < 0.5 * kept_bytes(plain)


def test_recomputed_blocks_still_sample_with_a_cache(new_student):
    student = new_student("lora")
    student.model.eval()
    inputs = torch.tensor([[5, 6, 7, 8]])
    expected = student.causal_lm.generate(inputs, max_new_tokens=8, do_sample=False)
    prepare_blocks(student.causal_lm, compiled=False, checkpointed=True)
    assert torch.equal(student.causal_lm.generate(inputs, max_new_tokens=8, do_sample=False), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "checkpointed"), [("full", False), ("lora", True)])
def test_compiled_blocks_give_the_same_to_rounding_and_serve_rows_of_any_length(
    new_student, kind: str, checkpointed: bool
):
    torch._dynamo.reset()
    plain, compiled = new_student(kind), new_student(kind)
    for student in (plain, compiled):
        for module in student.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    prepare_blocks(compiled.causal_lm, compiled=True, checkpointed=checkpointed)
    num_graphs = []
    for lengths in ((9, 5), (31,), (3, 17, 8, 2), (40, 41)):
        for expected, seen in zip(trained_pass(plain, lengths), trained_pass(compiled, lengths), strict=True):
            assert (seen - expected).norm() <= 1e-4 * expected.norm()
        num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs[0] > 0
    assert num_graphs[1:] == [num_graphs[1]] * 3


@pytest.mark.slow
def test_rows_packed_in_many_ways_are_compiled_twice_at_most(new_student):
    torch._dynamo.reset()
    counters.clear()
    student = new_student("full")
    prepare_blocks(student.causal_lm, compiled=True, checkpointed=False)
    generator = torch.Generator().manual_seed(3)
    # As long as the model is wide, which the compiler takes for a rule until it sees the second row.
    packings = [(64,), *(tuple(torch.randint(2, 40, (n,), generator=generator).tolist()) for n in (1, 2, 3, 7, 15))]
    num_graphs = []
    for lengths in packings:
        trained_pass(student, lengths)
        num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs[1:] == [num_graphs[1]] * 5
    assert num_graphs[1] <= 2 * num_graphs[0]


@pytest.mark.slow
def test_first_block_over_frozen_embeddings_shares_the_graph_of_the_others(new_student):
    num_graphs = []
    for kind in ("full", "lora"):
        torch._dynamo.reset()
        counters.clear()
        student = new_student(kind)
        prepare_blocks(student.causal_lm, compiled=True, checkpointed=False)
        trained_pass(student, (9, 5))
        num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs[1] == num_graphs[0]


def test_a_block_may_be_compiled_as_often_in_the_thread_of_a_backward_pass(new_student):
    student = new_student("full")
    [block, *_] = decoder_blocks(student.causal_lm)
    limits: list[int] = []
    block.forward = lambda x: limits.append(torch._dynamo.config.recompile_limit)  # type: ignore[method-assign]
    prepare_blocks(student.causal_lm, compiled=True, checkpointed=False)
    with torch.compiler.set_stance("force_eager"), ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(block.forward, torch.zeros(1, requires_grad=True)).result()
    assert limits == [32]


@pytest.mark.slow
def test_a_compiler_that_does_not_work_is_found_out_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with monkeypatch.context() as broken_machine, torch._inductor.config.patch({"cpp.cxx": (str(broken),)}):
        broken_machine.setenv("CXX", str(broken))
        torch._dynamo.reset()
        can_compile.cache_clear()
        assert not can_compile(CPU)
        assert "torch.compile needs a compiler that works" in caplog.text
    torch._dynamo.reset()
    can_compile.cache_clear()
    assert can_compile(CPU)


@pytest.mark.parametrize(("setting", "expected"), [("on", True), ("off", False), ("auto", False)])
def test_on_a_cpu_only_on_compiles(new_student, setting: str, expected: bool):
    config = TrainerConfig(compile=setting)
    assert wants_compile(new_student("full"), config, 10 * MIN_COMPILED_STEPS, CPU) is expected


def test_compiling_without_a_compiler_is_refused(new_student, monkeypatch: pytest.MonkeyPatch):
    student = new_student("full")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"g\+\+"):
        wants_compile(student, TrainerConfig(compile="on"), 10, CPU)
    assert not wants_compile(student, TrainerConfig(), 10, CPU)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["full", "bfloat16"])
def test_auto_compiles_long_trainings_on_cuda_to_the_same_hidden_states(tiny_model: str, kind: str):
    config = StudentConfig.model_validate({"dtype": "float32", **KINDS[kind]})
    plain, compiled = (load_student(tiny_model, config, torch.device("cuda"), seed=0) for _ in range(2))
    assert not wants_compile(compiled, TrainerConfig(), MIN_COMPILED_STEPS - 1, torch.device("cuda"))
    assert wants_compile(compiled, TrainerConfig(), MIN_COMPILED_STEPS, torch.device("cuda"))
    prepare_blocks(compiled.causal_lm, compiled=True, checkpointed=True)
    for width in (16, 40, 33):
        inputs = torch.randint(100, (1, width), device="cuda")
        hidden = []
        for student in (plain, compiled):
            student.model.train()
            with student.precision():
                hidden.append(student.step.backbone(input_ids=inputs, use_cache=False).last_hidden_state.float())
        assert (hidden[1] - hidden[0]).norm() < (1e-3 if kind == "full" else 5e-2) * hidden[0].norm()
        hidden[1].sum().backward()
