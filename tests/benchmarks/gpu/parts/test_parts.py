"""Every measurement at the tiny scale on the CPU: what a rehearsal of the plan runs, in one process."""

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.gpu.bench import Bench, Unavailable
from benchmarks.gpu.parts import (
    demo,
    engines,
    exactness,
    gpu_tests,
    head,
    kernels,
    on_policy,
    pretrained,
    quantised,
    sampler,
    sft,
)
from benchmarks.gpu.plan import plan
from benchmarks.on_policy.workload import prompts, wanted_tokens
from benchmarks.sft.workload import word_tokenizer
from stillhouse.embedded import embedded_path

ROWS = {row.name: row for job in plan(with_model=True) for row in job.rows}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def measured(module: Any, name: str, **surroundings: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    module.measure(ROWS[name], Bench(torch.device("cpu"), True, figures.update, **surroundings))
    return figures


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (kernels, "8-bit and 4-bit kernels"),
        (quantised, "8B QLoRA at 4,096"),
        (quantised, "8B full weights, adamw_8bit, at 4,096"),
    ],
)
def test_what_needs_cuda_says_so_on_a_cpu(module: Any, name: str) -> None:
    with pytest.raises(Unavailable, match="CUDA"):
        measured(module, name)


def test_a_step_of_sft_has_some_32000_tokens_of_which_half_are_learnt() -> None:
    batches = sft.workload(Bench(torch.device("cpu"), False, lambda _: None), vocabulary=151_936)
    num_tokens = sft.num_tokens(batches)
    assert num_tokens / len(batches) == pytest.approx(32_000, rel=0.1)
    learnt = sum(sum(sample.loss_mask) for batch in batches for sample in batch)
    assert learnt / num_tokens == pytest.approx(0.5, abs=0.05)


def test_equal_lengths_are_exactly_those_of_the_goal() -> None:
    lengths = on_policy.equal_lengths(128, 512)
    rows = list(prompts(8, 151_936, seed=0, lengths=lengths))
    tokenizer = word_tokenizer(151_936)
    rendered = [
        tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False) for row in rows
    ]
    assert {len(ids) for ids in rendered} == {128}
    assert {wanted_tokens(ids) for ids in rendered} == {512}


def test_tests_for_cuda_are_found_by_their_mark() -> None:
    files = gpu_tests.gpu_test_files()
    assert "tests/stillhouse/training/head/test_fused.py" in files
    assert "tests/benchmarks/gpu/test_plan.py" not in files


def test_failures_of_the_tests_for_cuda_are_kept_with_their_messages() -> None:
    report = ElementTree.fromstring(
        """<testsuites><testsuite>
        <testcase classname="a" name="right"/>
        <testcase classname="a" name="left_out"><skipped message="no bitsandbytes"/></testcase>
        <testcase classname="a" name="wrong"><failure message="assert 1 == 2"/></testcase>
        <testcase classname="a" name="broken"><error message="no such fixture"/></testcase>
        </testsuite></testsuites>"""
    )
    failures = {"a::wrong": "assert 1 == 2", "a::broken": "no such fixture"}
    assert gpu_tests.outcome(report) == {"passed": 1, "failed": 2, "skipped": 1, "failures": failures}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (exactness, "packed rows, float32"),
        (exactness, "sampler, float32"),
        (exactness, "merged adapter, float32"),
        (exactness, "head, reverse_kl, float32"),
        (kernels, "packed flash attention"),
    ],
)
def test_what_is_compared_agrees(module: Any, name: str) -> None:
    figures = measured(module, name)
    assert max(value for key, value in figures.items() if key.endswith("difference")) < (
        2e-2 if module is kernels else 1e-4
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (kernels, "decoding attention"),
        (sft, "8B at 4,096, ours plain"),
        (on_policy, "0.6B from 1.7B, equal lengths, ours"),
        (sampler, "sampling 256 x (128 + 512), ours"),
        (head, "reverse_kl, H 1,024, trained, ours"),
        pytest.param(engines, "a job sampled by transformers", marks=pytest.mark.slow),
        pytest.param(demo, "demo", marks=pytest.mark.slow),
        pytest.param(pretrained, "pretrained", marks=pytest.mark.slow),
    ],
)
def test_what_is_timed_has_figures(module: Any, name: str) -> None:
    surroundings = {"model": embedded_path("student")} if module is pretrained else {}
    assert measured(module, name, **surroundings)
