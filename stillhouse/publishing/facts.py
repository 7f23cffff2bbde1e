"""What decides how weights are computed and where answers end, as a folder of transformers or a GGUF file says it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stillhouse.chat.next_turn import end_ids
from stillhouse.chat.refs import GENERATION_FILE, NO_CODE, adapter_base, base_revision, gguf_in, resolve_model
from stillhouse.types import JsonObject

MAX_KL: Final = 0.02
_MAX_KL_OF_FEW_BITS: Final = 0.1
_EXACT: Final = frozenset({0, 1, 7, 32})
"""`general.file_type` of float32, float16, q8_0 and bfloat16 (llama_ftype in llama.h)."""
_SCALED: Final = frozenset({"linear", "yarn"})
"""Kinds of RoPE whose factor a GGUF file holds."""


def facts_of(folder: Path, ends: Mapping[int, str]) -> JsonObject:
    """Return the facts of a student or of a form, by what they are called in a certificate.

    `ends` are the tokens that end a turn of the student, with their texts; a form's are those of them at which its
    runtime stops.
    """
    gguf = gguf_in(folder)
    return _of_transformers(folder, ends) if gguf is None else _of_gguf(gguf, ends)


def _of_transformers(folder: Path, ends: Mapping[int, str]) -> JsonObject:
    from transformers import AutoConfig, GenerationConfig

    base = adapter_base(folder)
    path = folder if base is None else resolve_model(base)
    config = AutoConfig.from_pretrained(path, revision=base_revision(folder), **NO_CODE).get_text_config()
    named = (folder / GENERATION_FILE).is_file()
    known = set(end_ids(GenerationConfig.from_pretrained(folder))) if named else set()
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    return {
        "vocabulary": config.vocab_size,
        "output layer tied": bool(config.tie_word_embeddings),
        "RoPE base": rope.get("rope_theta"),
        "RoPE factor": rope.get("factor") if rope.get("rope_type") in _SCALED else None,
        "end tokens": sorted(ends[token] for token in known & ends.keys()),
    }


def _of_gguf(path: Path, ends: Mapping[int, str]) -> JsonObject:
    import gguf

    from stillhouse.serving.gguf import llama_cpp, load_file

    reader = gguf.GGUFReader(path)
    names = {tensor.name: tensor for tensor in reader.tensors}

    def value(key: str) -> Any:
        field = reader.get_field(key)
        return None if field is None else field.contents()

    family = value("general.architecture")
    base = value(f"{family}.rope.freq_base")
    api = llama_cpp()
    known = api.llama_model_get_vocab(load_file(path, vocab_only=True))
    return {
        "vocabulary": int(names["token_embd.weight"].shape[-1]),
        "output layer tied": "output.weight" not in names,
        # In single precision there.
        "RoPE base": None if base is None else float(f"{base:.7g}"),
        "RoPE factor": value(f"{family}.rope.scaling.factor"),
        "end tokens": sorted(ends[token] for token in ends if api.llama_vocab_is_eog(known, token)),
    }


def max_kl(path: Path) -> float:
    """Return the most nats a token that a GGUF file may be away from the student, by the type of its weights.

    Measured of a SmolLM2-135M student in float32: f16 0.00002, bf16 0.0003, q8_0 0.0012, q6_k 0.004, q4_k_m 0.03,
    q3_k_m 0.07, q4_0 0.11, q2_k 0.14, q5_k_m 0.17.
    """
    import gguf

    kind = gguf.GGUFReader(path).get_field("general.file_type")
    return MAX_KL if kind is not None and kind.contents() in _EXACT else _MAX_KL_OF_FEW_BITS
