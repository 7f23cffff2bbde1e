import psutil
import pytest
import torch

from stillhouse.training.monitoring.flops import AttentionCost, ModelFlops
from stillhouse.training.monitoring.throughput import Throughput, peak_memory_gib
from stillhouse.types import Sample

# 7 inputs with 2 targets, and 3 inputs with 1: what stands behind the last target is never fed.
LONG = Sample(list(range(10)), [index in (4, 7) for index in range(10)], "long")
SHORT = Sample(list(range(4)), [False, False, False, True], "short")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def throughput(clock: Clock, *, packing: bool = True, num_steps: int = 10) -> Throughput:
    costs = ModelFlops(per_input=100.0, per_target=10.0, attention=(AttentionCost(1.0, None),))
    return Throughput(costs, 1000.0, num_steps, packing=packing, device=torch.device("cpu"), clock=clock)


@pytest.mark.parametrize(("packing", "padding_share"), [(True, 0.0), (False, 4 / 14)])
def test_a_step_is_counted_in_tokens_operations_and_seconds(packing: bool, padding_share: float):
    clock = Clock()
    watched = throughput(clock, packing=packing)
    watched.begin_step(0)
    clock.now += 3.0
    watched.batch_ready()
    clock.now += 2.0
    ratios = watched.end_step([[LONG, SHORT]])
    values = {name: top / bottom for name, (top, bottom) in ratios.items()}
    flops = 10 * 100.0 + 3 * 10.0 + (7 * 8 / 2 + 3 * 4 / 2)
    assert values == pytest.approx(
        {
            "tokens_per_s": 10 / 5.0,
            "mfu": flops / (1000.0 * 2.0),
            "padding_share": padding_share,
            "supervised_share": 3 / 10,
            "step_s": 5.0,
            "data_s": 3.0,
            "train_s": 2.0,
        }
    )


def test_the_time_left_goes_by_the_pace_of_the_last_steps():
    clock = Clock()
    watched = throughput(clock, num_steps=100)
    watched.begin_step(40)
    assert watched.eta_s is None
    assert "eta_s" not in watched.gauges()
    clock.now += 2.0
    watched.begin_step(41)
    assert watched.eta_s == pytest.approx(59 * 2.0)
    for step in range(42, 60):
        clock.now += 30.0
        watched.begin_step(step)
    assert watched.gauges()["eta_s"] == pytest.approx(41 * 30.0)


def test_peak_memory_rises_with_what_is_held_and_stays_there():
    cpu = torch.device("cpu")
    before = peak_memory_gib(cpu)
    # As much as is missing to the highest so far, and some more.
    held = torch.ones(int(before * 2**30 - psutil.Process().memory_info().rss + 2**27) // 4)
    during = peak_memory_gib(cpu)
    assert during >= before + 0.1
    del held
    assert peak_memory_gib(cpu) == pytest.approx(during, abs=0.01)


@pytest.mark.gpu
def test_peak_memory_of_a_gpu_is_that_of_its_tensors():
    device = torch.device("cuda")
    torch.cuda.reset_peak_memory_stats()
    before = peak_memory_gib(device)
    torch.ones(2**27, device=device)
    assert peak_memory_gib(device) == pytest.approx(before + 0.5, abs=0.1)
