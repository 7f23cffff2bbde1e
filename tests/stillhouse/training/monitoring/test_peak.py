import time

import pytest
import torch

from stillhouse.training.monitoring.peak import measure_peak_flops


def test_the_peak_is_near_what_a_product_takes_and_leaves_the_random_generators_alone():
    measure_peak_flops.cache_clear()
    state = torch.get_rng_state()
    peak = measure_peak_flops(torch.device("cpu"), torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    square = torch.ones(1024, 1024)
    square @ square
    started = time.perf_counter()
    square @ square
    assert 2 * 1024**3 / (time.perf_counter() - started) < 2 * peak
    assert 1e9 < peak < 1e13


@pytest.mark.gpu
def test_a_gpu_is_faster_in_half_precision():
    device = torch.device("cuda")
    assert measure_peak_flops(device, torch.bfloat16) > 2 * measure_peak_flops(device, torch.float32)
