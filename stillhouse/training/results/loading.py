"""How a student is loaded, for its card: by transformers and peft, by vLLM, by Stillhouse."""

from collections.abc import Iterator
from typing import Final

from stillhouse.chat.refs import is_hub_id
from stillhouse.report.markdown import fenced
from stillhouse.training.results.adapter import Adapter
from stillhouse.training.results.record import MERGED_FOLDER

_VLLM_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Choices of vLLM's `--max-lora-rank` (vllm/config/lora.py)."""
_EMBEDDED: Final = "embedded:"
_ASKING: Final = """\
tokenizer = AutoTokenizer.from_pretrained(folder)
messages = [{"role": "user", "content": "Hello!"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
completion = model.generate(**inputs, max_new_tokens=128)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(completion, skip_special_tokens=True))
"""
_FOLDER: Final = 'folder = "."  # this folder, or its name on the hub\n'


def loading_section(adapter: Adapter | None, *, is_merged_beside: bool) -> Iterator[str]:
    """The parts of the section.

    Args:
        adapter: What is loaded; None for whole weights.
        is_merged_beside: Whether the merged weights of the adapter lie in the folder too.
    """
    yield "## Use\n"
    yield "With transformers" + (":\n" if adapter is None else " and peft:\n")
    yield fenced("python", _python(adapter))
    yield "With vLLM:\n"
    yield from _vllm(adapter, is_merged_beside)
    yield "With Stillhouse, behind an OpenAI-compatible API:\n"
    yield fenced("shell", "stillhouse serve .\n")


def _python(adapter: Adapter | None) -> str:
    if adapter is None:
        return (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'{_FOLDER}model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")\n{_ASKING}'
        )
    if adapter.base.startswith(_EMBEDDED):
        name = adapter.base.removeprefix(_EMBEDDED)
        return (
            "from peft import PeftModel\n"
            "from stillhouse.embedded import embedded_path\n"
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'{_FOLDER}base = AutoModelForCausalLM.from_pretrained(embedded_path("{name}"), dtype="auto")\n'
            f"model = PeftModel.from_pretrained(base, folder)\n{_ASKING}"
        )
    return (
        "from peft import AutoPeftModelForCausalLM\n"
        "from transformers import AutoTokenizer\n\n"
        f'{_FOLDER}model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype="auto")\n{_ASKING}'
    )


def _vllm(adapter: Adapter | None, is_merged_beside: bool) -> Iterator[str]:
    if adapter is None:
        yield fenced("shell", "vllm serve .\n")
        return
    rank = next((rank for rank in _VLLM_RANKS if rank >= adapter.rank), None)
    if adapter.variant == "DoRA" or rank is None:
        what = "DoRA adapters" if adapter.variant == "DoRA" else f"adapters of a rank above {_VLLM_RANKS[-1]}"
        yield f"vLLM does not load {what}; it serves the weights that this one is merged into:\n"
        merging = "" if is_merged_beside else f"stillhouse publish . --merge -o {MERGED_FOLDER}\n"
        yield fenced("shell", f"{merging}vllm serve {MERGED_FOLDER}\n")
        return
    base = adapter.base if is_hub_id(adapter.base) else "BASE"
    options = f"--enable-lora --max-lora-rank {rank} --lora-modules student=."
    yield fenced("shell", f"vllm serve {base} {options}\n")
    if base == "BASE":
        yield "`BASE` is the folder of the base model.\n"
