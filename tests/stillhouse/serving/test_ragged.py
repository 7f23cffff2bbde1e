import pytest
import torch
from transformers import PreTrainedModel

from stillhouse.serving.ragged import TOLERANCE, Kernel, Places, deviation, flash_kernel, kernel_for


def test_places_of_rows_say_where_tokens_and_slots_begin() -> None:
    places = Places.of_rows(2, [0, 5], [3, 1], 100)
    assert places.query_starts.tolist() == [0, 3, 4]
    assert places.key_starts.tolist()[:2] == [200, 300]
    assert places.key_lengths.tolist() == [3, 6]
    assert (places.max_queries, places.max_keys) == (3, 6)
    assert {tensor.dtype for tensor in places[:3]} == {torch.int32}


def test_places_of_decoding_are_those_of_rows_of_one_token() -> None:
    seen, expected = Places.of_decoding(torch.tensor([4, 0, 99]), 100), Places.of_rows(0, [4, 0, 99], [1, 1, 1], 100)
    assert all(torch.equal(one, other) for one, other in zip(seen[:3], expected[:3], strict=True))


def test_a_model_on_a_cpu_is_attended_to_with_masks(model: PreTrainedModel) -> None:
    assert kernel_for(model) is None


@pytest.mark.gpu
@pytest.mark.parametrize(("width", "groups"), [(128, 2), (64, 1), (64, 7), (32, 4), (256, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_on_cuda_compute_what_attention_written_out_does(
    dtype: torch.dtype, width: int, groups: int, plain_kernel: Kernel
) -> None:
    from stillhouse.serving.decode_kernel import decode_kernel

    torch.manual_seed(0)
    rows, columns, heads = 90, 300, 2
    key, value = torch.randn(2, (rows + 1) * columns, heads, width, device="cuda", dtype=dtype)
    query = torch.randn(1, heads * groups, rows, width, device="cuda", dtype=dtype)[0].transpose(0, 1)
    decoding = Places.of_decoding(torch.randint(0, columns, (rows,), device="cuda"), columns)
    expected = plain_kernel(query, key, value, decoding, 0.1)
    for kernel in (flash_kernel, decode_kernel):
        assert torch.allclose(kernel(query, key, value, decoding, 0.1), expected, atol=2e-2), kernel.__name__
    on_host = Places.of_rows(3, [0, 100, 7], [40, 1, 49], columns)
    prefill = on_host._replace(
        query_starts=on_host.query_starts.cuda(),
        key_starts=on_host.key_starts.cuda(),
        key_lengths=on_host.key_lengths.cuda(),
    )
    assert torch.allclose(
        flash_kernel(query, key, value, prefill, None), plain_kernel(query, key, value, prefill, None), atol=2e-2
    )


def test_a_kernel_that_misses_a_token_is_told_from_one_that_is_right(plain_kernel: Kernel) -> None:
    def sees_too_little(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, places: Places, scale: float | None
    ) -> torch.Tensor:
        return plain_kernel(
            query, key, value, places._replace(key_lengths=(places.key_lengths - 1).clamp(min=1)), scale
        )

    cpu = torch.device("cpu")
    assert deviation(plain_kernel, cpu) < TOLERANCE
    assert deviation(sees_too_little, cpu) > 2 * TOLERANCE
