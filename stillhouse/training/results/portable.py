"""Rewrite the configs of a student so that other libraries end where it was trained to, and compute the same.

Ends are read from `generation_config.json` by transformers, vLLM, SGLang, TGI and MLX, and from `eos_token` of
`tokenizer_config.json` by llama.cpp's converter. transformers 4 knows settings by other names than those that 5 writes,
and takes its defaults where it misses them.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stillhouse.chat.next_turn import end_ids, turn_ends
from stillhouse.chat.refs import GENERATION_FILE, NO_CODE
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template_defaults import names_in
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.store.atomic import write_atomic
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NOT_SCALING: Final = frozenset({"rope_theta", "partial_rotary_factor"})
_ONLY_5: Final = frozenset({"apertus", "bamba", "dbrx", "granitemoehybrid", "mamba2", "xlstm", "zamba2"})
"""Families whose weights or settings transformers 4.57 refuses or computes otherwise, as 5 writes them."""


def make_portable(folder: Path) -> None:
    """Rewrite the configs in a student's folder.

    Raises:
        ConfigError: the tokenizer cannot be loaded.
        StoreError: no space or no permission.
    """
    from transformers import GenerationConfig

    tokenizer = load_tokenizer(str(folder))
    closing: Sequence[int] = ()
    with suppress(TemplateError):  # Where no turn of its own was rendered, its ends may be unknown.
        closing = turn_ends(tokenizer)
    path = folder / GENERATION_FILE
    # Adapters of earlier versions have none.
    generation = GenerationConfig.from_pretrained(folder) if path.is_file() else GenerationConfig()
    ends = list(dict.fromkeys((*closing, tokenizer.eos_token_id, *end_ids(generation))))
    # Otherwise transformers 4 makes it anew from config.json, which names one end.
    generation._from_model_config = False
    generation.eos_token_id = ends
    write_atomic(path, generation.to_json_string().encode())
    _rewrite_tokenizer(folder / "tokenizer_config.json", tokenizer, closing)
    if (config := folder / "config.json").is_file():
        _rewrite_model(config, ends[0])


def needs_5(folder: Path) -> bool:
    """Return whether transformers 4 computes something else from the config in a folder; False where there is none."""
    path = folder / "config.json"
    config = json.loads(path.read_bytes()) if path.is_file() else {}
    parts = (config, config.get("text_config") or {})
    return config.get("model_type") in _ONLY_5 or any("rope_parameters" in p and "rope_theta" not in p for p in parts)


def _rewrite_tokenizer(path: Path, tokenizer: "PreTrainedTokenizerBase", closing: Sequence[int]) -> None:
    config = json.loads(path.read_bytes())
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    # By default the class gives `token_type_ids` in 4, which models refuse.
    config["model_input_names"] = tokenizer.model_input_names
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    templates = tokenizer.chat_template
    if isinstance(templates, str):  # TGI reads no file of its own for it.
        config["chat_template"] = templates
    texts = templates.values() if isinstance(templates, dict) else [str(templates)]
    # A template that writes `eos_token` would write another one.
    if closing and tokenizer.eos_token_id not in closing and not any("eos_token" in names_in(text) for text in texts):
        config["eos_token"] = tokenizer.convert_ids_to_tokens(closing[0])
    _write(path, config)


def _rewrite_model(path: Path, end: int) -> None:
    from transformers import AutoConfig

    config = json.loads(path.read_bytes())
    before = AutoConfig.from_pretrained(path.parent, **NO_CODE)
    if not isinstance(config.get("eos_token_id"), list):
        config["eos_token_id"] = end
    older = _older_names(config, before)
    if text := config.get("text_config"):
        older["text_config"] = text | _older_names(text, before.get_text_config())
    _write(path, config | older)
    # Not every RoPE has an older form (Gemma 4's `proportional`).
    with suppress(KeyError, TypeError, ValueError):
        if _rope(AutoConfig.from_pretrained(path.parent, **NO_CODE)) == _rope(before):
            return
    _write(path, config)


def _older_names(config: JsonObject, read: Any) -> JsonObject:
    """Return what transformers 4 reads: settings by the names of the class, the type of weights, and its RoPE."""
    fields = type(read).__dataclass_fields__
    older = {name: config[key] for name, key in read.attribute_map.items() if key in config and name in fields}
    if "dtype" in config:
        older["torch_dtype"] = config["dtype"]
    rope = config.get("rope_parameters") or {}
    if rope.keys() == {"full_attention", "sliding_attention"} and all(rope.values()):
        older["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    older |= {name: rope[name] for name in _NOT_SCALING & rope.keys()}
    if config.get("model_type") == "gpt_neox":
        older |= {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}
    kind = rope.get("rope_type", "default")
    if kind == "longrope":
        older["rope_scaling"] = {"type": kind, **{name: rope[name] for name in ("short_factor", "long_factor")}}
    elif kind != "default":
        older["rope_scaling"] = {name: value for name, value in rope.items() if name not in _NOT_SCALING}
    return older


def _rope(config: Any) -> JsonObject:
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return {name: value for name, value in rope.items() if name != "type"}


def _write(path: Path, config: JsonObject) -> None:
    write_atomic(path, json.dumps(config, indent=2, ensure_ascii=False).encode() + b"\n")
