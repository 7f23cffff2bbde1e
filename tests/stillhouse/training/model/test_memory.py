import logging
from typing import Final

import pytest
import torch

from stillhouse.config import StudentConfig, TrainerConfig
from stillhouse.training.head.fused import chunk_tokens
from stillhouse.training.loop.optimizer import build_optimizer
from stillhouse.training.model.blocks import prepare_blocks
from stillhouse.training.model.load import load_student
from stillhouse.training.model.memory import estimate_memory, free_memory, wants_checkpointing
from stillhouse.training.model.microbatches import collate
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks
from stillhouse.types import Sample

CPU = torch.device("cpu")
ALONE = Ranks.single(CPU)
FAR_TOO_MANY: Final = 10**12


@pytest.fixture
def student(tiny_model: str) -> Student:
    return load_student(tiny_model, StudentConfig(parameters="full", dtype="float32"), CPU, seed=0)


@pytest.mark.parametrize(
    ("setting", "num_tokens", "expected"),
    [("auto", 64, False), ("auto", FAR_TOO_MANY, True), ("on", 64, True), ("off", FAR_TOO_MANY, False)],
)
def test_auto_checkpoints_where_the_activations_do_not_fit_and_on_and_off_are_obeyed(
    student: Student, setting: str, num_tokens: int, expected: bool
):
    config = TrainerConfig(gradient_checkpointing=setting)
    assert wants_checkpointing(student, config, num_tokens, ALONE) is expected


def test_compiled_blocks_are_reckoned_to_keep_less(student: Student):
    plain, compiled = (
        estimate_memory(student, TrainerConfig(), 10**6, checkpointed=False, compiled=compiled)
        for compiled in (False, True)
    )
    assert compiled.kept == pytest.approx(0.7 * plain.kept, rel=0.01)
    assert compiled.state == plain.state


def test_decision_is_logged_with_its_figures(student: Student, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    wants_checkpointing(student, TrainerConfig(), FAR_TOO_MANY, ALONE)
    decision, warning = (record.getMessage() for record in caplog.records if "memory" in record.name)
    assert decision.startswith("gradient checkpointing on: ")
    assert decision.count("GiB beyond the weights (state ") == 2
    assert "lower microbatch_tokens" in warning


def test_estimating_changes_nothing_that_training_sees(tiny_model: str):
    student = load_student(tiny_model, StudentConfig(lora_rank=4, lora_dropout=0.5), CPU, seed=0)
    student.model.eval()
    before = torch.get_rng_state()
    estimate_memory(student, TrainerConfig(), 64, checkpointed=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert not student.model.training
    assert all(p.grad is None for p in student.model.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_state_is_that_of_gradients_optimiser_and_mean(student: Student, optimizer: str):
    config = TrainerConfig(optimizer=optimizer, ema_decay=0.9)
    build = build_optimizer(student, config)
    for _, p in student.trained_parameters():
        p.grad = torch.zeros_like(p)
    build.step()
    weights = sum(p.nbytes for _, p in student.trained_parameters())
    moments = sum(value.nbytes for state in build.state.values() for value in state.values() if value.ndim)
    assert estimate_memory(student, config, 64, checkpointed=False).state == 2 * weights + moments


def test_comparing_with_a_teacher_takes_its_logits_and_hidden_states_besides(student: Student):
    num_tokens = 64  # of which the output layer makes more than a block
    alone, compared = (
        estimate_memory(student, TrainerConfig(), num_tokens, checkpointed=False, compares=compares)
        for compares in (False, True)
    )
    vocabulary, width = student.head.weight.shape
    chunk = chunk_tokens(num_tokens, vocabulary, "cpu")
    assert compared.passing - alone.passing >= 4 * (chunk * vocabulary + num_tokens * width)
    assert (compared.state, compared.kept) == (alone.state, alone.kept)


def test_recomputed_activations_take_less(student: Student):
    kept = estimate_memory(student, TrainerConfig(), 4096, checkpointed=False).kept
    # The inputs of two blocks of width 16.
    assert 2 * 16 * 4 * 4096 <= estimate_memory(student, TrainerConfig(), 4096, checkpointed=True).kept < 0.5 * kept


def test_all_experts_count_and_their_sums_with_adapters_are_kept_as_activations_are(mixture_model: str):
    layers, experts = (
        load_student(mixture_model, StudentConfig(dtype="float32", lora_rank=4, lora_targets=targets), CPU, seed=0)
        for targets in (("all-linear",), ("all-linear", "experts"))
    )
    trained = sum(p.numel() for _, p in experts.trained_parameters())
    assert trained - sum(p.numel() for _, p in layers.trained_parameters()) == 2 * 16 * 4 * (16 + 64 + 32 + 16)
    plain, recomputed = (
        [estimate_memory(s, TrainerConfig(), 512, checkpointed=checkpointed) for s in (layers, experts)]
        for checkpointed in (False, True)
    )
    # Weights, their gradients and two moments; here the weights are there before.
    assert plain[1].state == recomputed[1].state == 12 * trained
    assert plain[1].kept - plain[0].kept >= 4 * 49_152
    assert recomputed[1].kept == recomputed[0].kept


@pytest.mark.gpu
@pytest.mark.parametrize("checkpointed", [False, True])
def test_estimate_is_near_what_torch_allocates_on_cuda(checkpointed: bool):
    cuda = torch.device("cuda")
    config = StudentConfig(parameters="full", dtype="bfloat16")
    student = load_student("embedded:student", config, cuda, seed=0)
    sample = Sample([token % 100 for token in range(257)], [False] + [True] * 256, "prompt")
    batch = collate([sample] * 64, lambda sample: {}, cuda, packing=False)
    estimate = estimate_memory(student, TrainerConfig(), batch.num_slots, checkpointed=checkpointed)
    prepare_blocks(student.causal_lm, compiled=False, checkpointed=checkpointed)
    student.model.train()
    before, free = torch.cuda.memory_allocated(), free_memory(cuda)
    torch.cuda.reset_peak_memory_stats()
    with student.precision():
        hidden = student.step.backbone(input_ids=batch.inputs_BT, use_cache=False).last_hidden_state
    hidden.float().sum().backward()
    kept = torch.cuda.max_memory_allocated() - before
    assert 0 < kept < free
    assert estimate.kept < kept < 1.5 * estimate.total
