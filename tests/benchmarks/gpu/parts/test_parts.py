"""Every measurement at the tiny scale on the CPU: what a rehearsal of the plan runs, in one process."""

import math
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.gpu.bench import Bench, Unavailable
from benchmarks.gpu.parts import (
    demo,
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


DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
LOSSES = pytest.mark.parametrize("loss", ["cross_entropy", "reverse_kl", "forward_kl", "jsd", "top_k"])


@DTYPES
def test_packed_rows_give_the_loss_and_gradients_of_padded_ones(dtype: str) -> None:
    figures = measured(exactness, f"packed rows, {dtype}")
    assert figures["loss_difference"] < 1e-3
    assert figures["gradient_difference"] < (1e-5 if dtype == "float32" else 2e-2)


@DTYPES
def test_the_sampler_gives_the_log_probabilities_of_one_forward_pass(dtype: str) -> None:
    figures = measured(exactness, f"sampler, {dtype}")
    assert figures["largest_logprob_difference"] < (1e-4 if dtype == "float32" else 0.1)


@DTYPES
def test_a_merged_adapter_answers_as_the_adapter_beside_the_weights(dtype: str) -> None:
    figures = measured(exactness, f"merged adapter, {dtype}")
    assert figures["effect"] > 0.1, "the adapter changes something"
    assert max(figures["merged_difference"], figures["sampling_difference"]) < (1e-5 if dtype == "float32" else 2e-2)


@LOSSES
@pytest.mark.parametrize(
    ("row", "of_loss", "of_gradient"),
    [("head, {}, float32", 1e-5, 1e-5), pytest.param("compiled head, {}", 1e-3, 1e-2, marks=pytest.mark.slow)],
    ids=["eager", "compiled"],
)
def test_the_head_gives_the_gradients_of_all_logits_at_once(
    loss: str, row: str, of_loss: float, of_gradient: float
) -> None:
    figures = measured(exactness, row.format(loss))
    assert figures["loss_difference"] < of_loss
    assert figures["gradient_difference"] < of_gradient


def test_packed_attention_is_measured_and_right() -> None:
    figures = measured(kernels, "packed flash attention")
    assert max(figures["output_difference"], figures["gradient_difference"]) < 2e-2


@pytest.mark.parametrize("name", ["peaks", "decoding attention"])
def test_kernels_are_timed(name: str) -> None:
    assert all(value > 0 for value in measured(kernels, name).values())


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


@pytest.mark.parametrize(
    "name", ["8B at 4,096, ours plain", pytest.param("1.7B at 16,384, ours plain", marks=pytest.mark.slow)]
)
def test_our_sft_is_timed_and_profiled(name: str) -> None:
    figures = measured(sft, name)
    assert figures["tokens_per_s"] > 0
    assert 0 < figures["mfu"] < 1
    assert figures["estimated_memory_gib"] > 0
    assert len(figures["losses"]) == 12
    assert figures["losses"][0] == pytest.approx(math.log(512), abs=0.1)
    assert all(figures["shares"][part] > 0 for part in ("matmul", "head", "optimizer"))


def test_a_step_of_sft_has_some_32000_tokens_of_which_half_are_learnt() -> None:
    batches = sft.workload(Bench(torch.device("cpu"), False, lambda _: None), vocabulary=151_936)
    num_tokens = sft.num_tokens(batches)
    assert num_tokens / len(batches) == pytest.approx(32_000, rel=0.1)
    learnt = sum(sum(sample.loss_mask) for batch in batches for sample in batch)
    assert learnt / num_tokens == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    "pair", ["0.6B from 1.7B, equal", pytest.param("1.7B from 8B, log-normal", marks=pytest.mark.slow)]
)
def test_our_on_policy_step_is_timed_split_and_profiled(pair: str) -> None:
    figures = measured(on_policy, f"{pair} lengths, ours")
    assert figures["s_per_step"] > 0
    assert figures["split_s"].keys() >= figures["floor_s"].keys() == {"sample", "score", "train"}
    assert len(figures["losses"]) == 5
    assert figures["shares"]["head"] > 0


def test_equal_lengths_are_exactly_those_of_the_goal() -> None:
    lengths = on_policy.equal_lengths(128, 512)
    rows = list(prompts(8, 151_936, seed=0, lengths=lengths))
    tokenizer = word_tokenizer(151_936)
    rendered = [
        tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False) for row in rows
    ]
    assert {len(ids) for ids in rendered} == {128}
    assert {wanted_tokens(ids) for ids in rendered} == {512}


@pytest.mark.parametrize("side", ["ours", "generate", "generate, static cache"])
def test_sampling_is_timed_beside_its_floor(side: str) -> None:
    figures = measured(sampler, f"sampling 256 x (128 + 512), {side}")
    assert figures["seconds"] > figures["floor_s"] > 0


@pytest.mark.parametrize("loss", ["cross_entropy", "reverse_kl"])
@pytest.mark.parametrize("side", ["ours", "naive"])
def test_the_head_alone_is_timed_beside_its_floor(loss: str, side: str) -> None:
    figures = measured(head, f"{loss}, H 1,024, trained, {side}")
    assert min(figures["ms"], figures["floor_ms"]) > 0


@pytest.mark.slow
def test_the_demos_trainings_run_without_a_flow() -> None:
    figures = measured(demo, "demo")
    assert figures["teacher_accuracy"] > 0.9
    assert {"base_accuracy", "sft_accuracy", "on_policy_accuracy", "sft_s", "on_policy_s"} <= figures.keys()


@pytest.mark.slow
def test_a_pretrained_model_is_distilled_from_its_own_fine_tuning() -> None:
    figures = measured(pretrained, "pretrained", model=embedded_path("student"))
    assert {"base_accuracy", "teacher_accuracy", "on_policy_accuracy"} <= figures.keys()
    with pytest.raises(Unavailable, match="--model"):
        measured(pretrained, "pretrained")


def test_tests_for_cuda_are_found_by_their_mark() -> None:
    files = gpu_tests.gpu_test_files()
    assert "tests/stillhouse/training/model/test_attention.py" in files
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
