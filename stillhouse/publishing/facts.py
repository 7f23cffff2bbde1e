"""What decides how weights are computed and where answers end, as a folder of transformers or a GGUF file says it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stillhouse.chat.next_turn import end_ids
from stillhouse.chat.refs import GENERATION_FILE, NO_CODE, adapter_base, base_revision, gguf_in, resolve_model
from stillhouse.publishing.gguf_header import header_of
from stillhouse.types import JsonObject

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
    header = header_of(path)
    family = header.value("general.architecture")
    base = header.value(f"{family}.rope.freq_base")
    return {
        "vocabulary": int(header.shapes["token_embd.weight"][-1]),
        "output layer tied": "output.weight" not in header.shapes,
        # In single precision there.
        "RoPE base": None if base is None else float(f"{base:.7g}"),
        "RoPE factor": header.value(f"{family}.rope.scaling.factor"),
        "end tokens": sorted(ends[token] for token in ends if header.api.llama_vocab_is_eog(header.vocabulary, token)),
    }
