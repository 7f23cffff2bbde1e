import json
from pathlib import Path

import pytest

from stillhouse.errors import ConfigError, EndpointError
from stillhouse.inference.vllm.environment import Gpu
from stillhouse.inference.vllm.launch import (
    kv_bytes,
    lora_rank,
    memory_share,
    model_facts,
    place,
    places,
    require_servable,
)

GIB = 1 << 30
FACTS = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36}


def gpus(*free: int) -> list[Gpu]:
    return [Gpu(str(number), 80 * GIB, gib * GIB) for number, gib in enumerate(free)]


@pytest.mark.parametrize(
    ("weights_gib", "free", "expected"),
    [
        (15, (79, 79), ["0"]),
        (15, (20, 79), ["1"]),
        (15, (79,), ["0"]),
        (65, (79, 79, 60), ["0", "1"]),
        (140, (79, 79, 79, 79, 10), ["0", "1", "2", "3"]),
    ],
    ids=["one", "the emptiest", "the only one", "two for the weights", "four"],
)
def test_a_model_gets_as_few_gpus_as_hold_it_of_those_with_most_room(
    weights_gib: int, free: tuple[int, ...], expected: list[str]
) -> None:
    assert [gpu.name for gpu in place(gpus(*free), weights_gib * GIB, FACTS)] == expected


def test_a_model_that_fits_nowhere_is_refused_with_the_room_there_is() -> None:
    with pytest.raises(EndpointError, match="12 GiB"):
        place(gpus(12, 10), 15 * GIB, FACTS)
    # Heads that two GPUs cannot share.
    with pytest.raises(EndpointError, match="79 GiB"):
        place(gpus(79, 79), 100 * GIB, {"num_attention_heads": 7})


@pytest.mark.parametrize(
    ("weights_gib", "free", "most", "expected"),
    [
        (15, (79, 79, 79), 8, [["0"], ["1"], ["2"]]),
        (15, (79, 79, 79), 2, [["0"], ["1"]]),
        (15, (40, 79, 60), 8, [["1"]]),
        (15, (40,), 8, [["0"]]),
        (100, (79, 79, 79, 79, 79), 8, [["0", "1"], ["2", "3"]]),
    ],
    ids=["one each", "no more than asked for", "others are in use", "the only one", "two each"],
)
def test_further_servers_of_a_model_have_idle_gpus_of_their_own(
    weights_gib: int, free: tuple[int, ...], most: int, expected: list[list[str]]
) -> None:
    found = places(gpus(*free), weights_gib * GIB, FACTS, most)
    assert [[gpu.name for gpu in group] for group in found] == expected


def test_a_server_takes_what_it_needs_within_what_is_free() -> None:
    assert memory_share(gpus(79), 16 * GIB, 36 * GIB) == pytest.approx((1.1 * 16 + 36 + 4) / 80)
    assert memory_share(gpus(79, 79), 64 * GIB, 32 * GIB) == pytest.approx((1.1 * 64 + 32) / 2 / 80 + 4 / 80)
    assert memory_share(gpus(40), 16 * GIB, 36 * GIB) == pytest.approx(0.9 * 40 / 80)
    assert memory_share(gpus(60, 79), 0, 0) == pytest.approx(0.9 * 60 / 80), "of unknown weights"


def test_keys_and_values_of_a_token_are_two_of_each_head_and_layer_in_16_bits() -> None:
    assert kv_bytes(FACTS) == 2 * 2 * 36 * 8 * 128
    assert kv_bytes({"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2}) == 2 * 2 * 2 * 64
    assert kv_bytes({}) == 0


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (4, 8), (32, 32), (33, 64)])
def test_adapters_have_room_in_the_least_rank_that_vllm_takes(rank: int, allowed: int) -> None:
    assert lora_rank(rank) == allowed


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"use_dora": True}, "use_dora"), ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"r": 1024}, "1024")],
    ids=["dora", "whole layers", "rank"],
)
def test_an_adapter_that_vllm_would_serve_as_another_is_refused(
    tmp_path: Path, settings: dict[str, object], word: str
) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 16, "use_dora": False, **settings}))
    with pytest.raises(ConfigError, match=word):
        require_servable(tmp_path)


def test_a_models_size_is_its_indexs_or_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"hidden_size": 64}}))
    assert model_facts(str(tmp_path))[1] == 0
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    facts, size = model_facts(str(tmp_path))
    assert (facts["hidden_size"], size) == (64, 100)
    # Some hold the same weights twice, in another program's form.
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {}}))
    assert model_facts(str(tmp_path))[1] == 100
    index.write_text(json.dumps({"metadata": {"total_size": 50}}))
    assert model_facts(str(tmp_path))[1] == 50
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    assert model_facts(str(tmp_path / "adapter"))[1] == 50
