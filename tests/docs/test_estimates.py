"""The estimates of the recipe for 8B from 32B, against counts by hand."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / "docs" / "hooks" / "estimates.py"


@pytest.fixture(scope="module")
def estimates() -> Any:
    import sys

    spec = importlib.util.spec_from_file_location("estimates", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up by its name.
    sys.modules["estimates"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "billions", "cache_kib", "adapter_millions"),
    [("1.7B", 1.72, 112, 34.9), ("8B", 8.19, 144, 87.3), ("32B", 32.76, 256, 268.4)],
)
def test_shapes_have_the_published_sizes(
    estimates: Any, name: str, billions: float, cache_kib: int, adapter_millions: float
) -> None:
    shape = estimates.QWEN3[name]
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.005)
    assert shape.cache_bytes_a_token == cache_kib * 1024
    assert shape.lora_parameters(32) / 1e6 == pytest.approx(adapter_millions, abs=0.05)


def test_a_step_is_the_sum_of_its_parts_counted_by_hand(estimates: Any) -> None:
    step = estimates.RECIPE
    tokens = 256 * (256 + 2048)
    # 2,048 reads of 15.1 GB of weights and of 256 caches of 1,280 tokens in the mean, at 4.3 TB/s.
    assert step.sampling_s == pytest.approx(2048 * (2 * 7.568e9 + 256 * 1280 * 147_456) / 4.3e12, rel=0.001)
    # 64 GFLOP a token for weights and 2.4 for attention to 1,152 tokens in the mean.
    assert step.scoring_s == pytest.approx(tokens * (63.97e9 + 4 * 64 * 8192 * 1152) / 788e12, rel=0.001)
    assert step.training_s == pytest.approx(3 * tokens * (15.14e9 + 4 * 36 * 4096 * 1152) / 788e12, rel=0.001)
    assert step.floor_s == pytest.approx(step.sampling_s + step.scoring_s + step.training_s)


def test_more_of_anything_takes_longer(estimates: Any) -> None:
    base = estimates.Step(estimates.QWEN3["1.7B"], estimates.QWEN3["8B"])
    longer = estimates.Step(base.student, base.teacher, completion_tokens=2 * base.completion_tokens)
    larger = estimates.Step(estimates.QWEN3["8B"], estimates.QWEN3["32B"])
    assert base.floor_s < longer.floor_s
    assert base.floor_s < larger.floor_s
