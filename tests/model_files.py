"""The files that tell the sizes of published models, in the form that the hub's client keeps them; no weights."""

import json
from pathlib import Path
from typing import Final

_QWEN3: Final = {
    # Layers, hidden and inner size, heads, heads of keys, whether tables are tied, bytes of all weights.
    "Qwen/Qwen3-1.7B": (28, 2048, 6144, 16, 8, True, 4_063_479_808),
    "Qwen/Qwen3-8B": (36, 4096, 12288, 32, 8, False, 16_381_470_720),
    "Qwen/Qwen3-14B": (40, 5120, 17408, 40, 8, False, 29_536_614_400),
    "Qwen/Qwen3-32B": (64, 5120, 25600, 64, 8, False, 65_524_246_528),
}


def write_cache(folder: Path) -> None:
    """Write a cache of the hub that has config and index of Qwen3's models."""
    for ref, (layers, hidden, inner, heads, keys, is_tied, size) in _QWEN3.items():
        model = folder / f"models--{ref.replace('/', '--')}"
        snapshot = model / "snapshots" / "1"
        snapshot.mkdir(parents=True)
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text("1")
        config = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner, "head_dim": 128}
        config |= {"num_attention_heads": heads, "num_key_value_heads": keys, "tie_word_embeddings": is_tied}
        config |= {"vocab_size": 151_936, "torch_dtype": "bfloat16"}
        (snapshot / "config.json").write_text(json.dumps(config))
        index = {"metadata": {"total_size": size}, "weight_map": {}}
        (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
