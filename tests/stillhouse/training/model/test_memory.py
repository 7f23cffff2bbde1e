import json
import logging
import os
import subprocess
import sys
import textwrap
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import nn

from stillhouse.config import StudentConfig, TrainerConfig
from stillhouse.training.head.fused import chunk_tokens
from stillhouse.training.loop.optimizer import build_optimizer
from stillhouse.training.model.blocks import prepare_blocks
from stillhouse.training.model.load import load_student
from stillhouse.training.model.memory import activation_offload, estimate_memory, free_memory, wants_checkpointing
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


def test_offloaded_or_recomputed_activations_take_less(student: Student):
    kept = estimate_memory(student, TrainerConfig(), 4096, checkpointed=False).kept
    recomputed = estimate_memory(student, TrainerConfig(), 4096, checkpointed=True).kept
    offloaded = estimate_memory(student, TrainerConfig(gradient_checkpointing="offload"), 4096, checkpointed=False).kept
    assert 0 <= offloaded < 0.2 * kept
    # The inputs of two blocks of width 16.
    assert recomputed == offloaded + 2 * 16 * 4 * 4096


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


_TWO_STEPS: Final = textwrap.dedent("""
    import ctypes, json, sys
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from stillhouse.chat.tokenizer import load_tokenizer
    from stillhouse.config import StudentConfig, TrainerConfig
    from stillhouse.training.model.microbatches import collate
    from stillhouse.training.head.scores import TokenLosses
    from stillhouse.training.loop.optimizer import build_optimizer
    from stillhouse.training.model.blocks import prepare_blocks
    from stillhouse.training.model.load import load_student
    from stillhouse.training.model.memory import estimate_memory
    from stillhouse.types import Sample

    folder, parameters, dtype, num_rows, checkpointed, targets = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    settings = dict(hidden_size=256, intermediate_size=768, num_hidden_layers=6, head_dim=64, vocab_size=8192)
    settings |= dict(num_attention_heads=4, num_key_value_heads=2)
    moe = dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=256) if "experts" in targets else {}
    kind = "qwen3_moe" if moe else "qwen3"
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings, **moe)).save_pretrained(folder)
    load_tokenizer("embedded:student").save_pretrained(folder)
    config = StudentConfig(parameters=parameters, dtype=dtype, lora_rank=16, lora_targets=targets)
    student = load_student(folder, config, cpu, seed=0)
    estimate = estimate_memory(student, TrainerConfig(), 512 * num_rows, checkpointed=checkpointed)
    prepare_blocks(student.causal_lm, compiled=False, checkpointed=checkpointed)
    optimizer = build_optimizer(student, TrainerConfig())

    class Imitation:
        temperature, divergence_temperature, wants, divergence = 1.0, 1.0, frozenset(), ()

        def loss(self, scores, values):
            return TokenLosses(-scores.logprobs_N)

    def status(key):
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

    sample = Sample([token % 8000 for token in range(513)], [False] + [True] * 512, "prompt")
    batch = collate([sample] * num_rows, lambda sample: {}, cpu, packing=True)
    student.model.train()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    for _ in range(2):
        with student.precision():
            loss = student.step(batch, Imitation(), 1e-3).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss
    print(json.dumps([estimate.total, status("VmHWM") - before]))
""")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "dtype", "num_rows", "checkpointed", "targets"),
    [
        ("full", "float32", 3, False, ["all-linear"]),
        ("lora", "bfloat16", 6, False, ["all-linear"]),
        ("full", "float32", 6, True, ["all-linear"]),
        ("full", "float32", 3, False, ["experts"]),
        ("lora", "float32", 2, False, ["all-linear", "experts"]),
    ],
)
def test_estimate_is_near_the_peak_of_the_process(
    tmp_path: Path, parameters: str, dtype: str, num_rows: int, checkpointed: bool, targets: list[str]
):
    arguments = json.dumps([str(tmp_path / "model"), parameters, dtype, num_rows, checkpointed, targets])
    # Blocks of their own in the address space: the heap keeps freed ones, and fragments.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", _TWO_STEPS, arguments], env=environment, capture_output=True, text=True, check=True
    )
    estimated, measured = json.loads(done.stdout.splitlines()[-1])
    assert 0.85 * measured < estimated < 1.3 * measured


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


def gradients(student: Student) -> list[torch.Tensor]:
    student.model.train()
    torch.manual_seed(0)
    inputs = torch.randint(100, (2, 20), device=student.device)
    with student.precision():
        hidden = student.step.backbone(input_ids=inputs, use_cache=False).last_hidden_state.float()
    hidden[..., ::3].sum().backward()
    return [p.grad for _, p in student.trained_parameters() if p.grad is not None]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_gradients_are_the_same_bits(tiny_model: str, parameters: str, checkpointed: bool):
    config = StudentConfig(parameters=parameters, lora_rank=4, lora_dropout=0.3, dtype="bfloat16")
    here, offloaded = (load_student(tiny_model, config, torch.device("cpu"), seed=0) for _ in range(2))
    if checkpointed:
        prepare_blocks(offloaded.causal_lm, compiled=False, checkpointed=True)
    expected = gradients(here)
    with activation_offload(min_bytes=1):
        seen = gradients(offloaded)
    assert len(expected) > 10
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("is_trained", [False, True])
def test_weights_stay_and_activations_are_copied(is_trained: bool, is_cast: bool):
    layer = nn.Linear(8, 8, bias=False).requires_grad_(is_trained)
    if not is_trained and is_cast:
        layer.to(torch.bfloat16)
    offload = activation_offload(min_bytes=1)
    stays: list[bool] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        stays.append(offload.pack_hook(tensor) is tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast),
    ):
        layer(torch.randn(3, 8, requires_grad=True).tanh())
    # tanh keeps its result, the layer its weight and, where that is trained, its input.
    assert stays == ([False, True, False] if is_trained else [False, True])


def test_small_tensors_stay():
    small, large = torch.zeros(8), torch.zeros(1 << 20)
    hooks = activation_offload()
    assert hooks.pack_hook(small) is small
    assert torch.equal(hooks.unpack_hook(hooks.pack_hook(large)), large)
    assert hooks.pack_hook(large) is not large


@pytest.mark.gpu
def test_activations_leave_the_device_until_they_are_used():
    weights = [torch.randn(1024, 1024, device="cuda", requires_grad=True) for _ in range(8)]

    def run(context: AbstractContextManager[object]) -> tuple[list[torch.Tensor], int]:
        hidden = torch.ones(8192, 1024, device="cuda", requires_grad=True)
        with context:
            for weight in weights:
                hidden = (hidden @ weight).tanh()
        kept = torch.cuda.memory_allocated()
        return list(torch.autograd.grad(hidden.sum(), weights)), kept

    expected, most = run(nullcontext())
    seen, least = run(activation_offload())
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert most - least > 6 * 8192 * 1024 * 4
