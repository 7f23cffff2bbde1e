import pytest

from benchmarks.gpu.profile import HEAD, Interval, shares

ADAM = "Optimizer.step#AdamW.step"


def test_kernels_are_told_apart_by_phase_and_name() -> None:
    kernels = [
        Interval("sm90_xmma_gemm_bf16", 0, 30),
        Interval("flash_fwd_kernel", 30, 40),
        Interval("sm90_xmma_gemm_bf16", 40, 60),
        Interval("vectorized_elementwise_kernel", 60, 70),
        Interval("multi_tensor_apply_kernel", 80, 100),
    ]
    figures = shares(kernels, [Interval(HEAD, 40, 60), Interval(ADAM, 75, 100)])
    assert figures["shares"] == pytest.approx(
        {"matmul": 0.3, "attention": 0.1, "head": 0.2, "optimizer": 0.2, "other": 0.1, "idle": 0.1}
    )
    assert sum(figures["shares"].values()) == pytest.approx(1.0)
    assert figures["num_kernels"] == 5
    assert next(iter(figures["top_kernels_ms"].items())) == ("sm90_xmma_gemm_bf16", 0.05)


def test_kernels_on_two_streams_count_once_towards_the_busy_time() -> None:
    figures = shares([Interval("a", 0, 60), Interval("b", 20, 50), Interval("c", 90, 100)], [])
    assert figures["shares"]["idle"] == pytest.approx(0.3)
    assert shares([], []) == {}
