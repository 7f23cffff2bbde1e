import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stillhouse.attention.slots import slot_attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_heads_that_share_keys_attend_as_they_do_by_repeated_keys(
    dtype: torch.dtype, num_tokens: int, groups: int
) -> None:
    torch.manual_seed(0)
    query = torch.randn(4, 2 * groups, num_tokens, 16, dtype=dtype)
    key, value = torch.randn(2, 4, 40, 2, 16, dtype=dtype).transpose(2, 3)
    mask = torch.rand(4, 1, num_tokens, 40) < 0.5
    mask[..., 0] = True
    module = torch.nn.Module()
    module.num_key_value_groups = groups  # type: ignore[assignment]
    seen = slot_attention(module, query, key, value, mask, scaling=0.3)
    # Which repeats the keys and values for the heads that share them.
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert seen.shape == (4, num_tokens, 2 * groups, 16)
    assert torch.allclose(seen, expected, atol=1e-6 if dtype is torch.float32 else 2e-2)
