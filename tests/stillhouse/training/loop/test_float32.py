from collections.abc import Iterator

import pytest
import torch

from stillhouse.training.loop.float32 import use_fast_float32_products


@pytest.fixture(autouse=True)
def _precision_as_before() -> Iterator[None]:
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


@pytest.mark.parametrize("shapes", [((64, 128), (128, 96)), ((3, 512), (512, 1000)), ((4, 32, 64), (4, 64, 32))])
def test_fast_products_keep_the_digits_of_float32(shapes: tuple[tuple[int, ...], tuple[int, ...]]):
    use_fast_float32_products()
    left, right = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes)
    torch.testing.assert_close(left @ right, (left.double() @ right.double()).float(), rtol=1e-5, atol=1e-4)


def test_the_answer_is_what_was_set():
    assert use_fast_float32_products() is (torch.backends.mkldnn.matmul.fp32_precision == "bf16")
