"""The model card of a student, with front matter for the Hugging Face Hub.

It has no dates, speeds or local paths: equal trainings give equal cards.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from stillhouse.chat.refs import gguf_in, is_hub_id
from stillhouse.inference.vllm.launch import lora_rank
from stillhouse.report.markdown import code, fenced, plain
from stillhouse.store.atomic import write_atomic
from stillhouse.training.results.adapter import Adapter, read_adapter
from stillhouse.training.results.portable import needs_5
from stillhouse.training.results.record import MERGED_FOLDER, StudentRecord, read_record
from stillhouse.training.results.sections import (
    METHODS,
    config_section,
    data_section,
    evaluation_section,
    public_name,
    training_section,
)
from stillhouse.types import JsonObject
from stillhouse.version import code_version

CARD_FILE: Final = "README.md"


def write_card(
    folder: Path, *, evaluations: Mapping[str, JsonObject] | None = None, license_id: str | None = None
) -> None:
    """Write README.md into a student's folder; raise InputError if it holds none.

    `evaluations` are the metrics of `stillhouse.evaluation.measure` by model, from base to teacher; `license_id` is the
    hub's id of the license.
    """
    record, adapter = read_record(folder), read_adapter(folder)
    stated = "None is stated." if license_id is None else f"{code(license_id)}, as far as that is its author's to give."
    parts = [
        f"---\n{_front_matter(folder, record, adapter, license_id)}\n---\n",
        f"# {_title(record)}\n",
        _summary(record, adapter),
        *_loading_section(folder, adapter),
        *evaluation_section(evaluations or {}),
        *training_section(folder, record, adapter),
        *data_section(folder, record),
        *config_section(record),
        "## License\n",
        f"{stated} The student derives from its base and from what the teacher said, whose terms apply too.\n",
    ]
    write_atomic(folder / CARD_FILE, "\n".join(parts).encode("utf-8"))


def _front_matter(folder: Path, record: StudentRecord, adapter: Adapter | None, license_id: str | None) -> str:
    from huggingface_hub import ModelCardData

    base = _base(record, adapter)
    variant = [adapter.variant.lower()] if adapter else []
    methods = [METHODS[stage.method].replace(" ", "-") for stage in record.stages]
    # The hub refuses a card that names another base.
    known: dict[str, Any] = {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    return ModelCardData(
        library_name="gguf" if gguf_in(folder) else "peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=list(dict.fromkeys(["stillhouse", "distillation", *methods, *variant])),
        license=license_id,
        **(known if is_hub_id(base) else {}),
    ).to_yaml()


def _title(record: StudentRecord) -> str:
    # Without the digests of local folders, which the summary has.
    student, *teachers = (name.partition("@")[0] for name in (public_name(record.stages[0].base), *_teachers(record)))
    if not teachers:
        return f"{plain(student)}, fine-tuned"
    source = teachers[0] if len(teachers) == 1 else f"{len(teachers)} teachers"
    return f"{plain(student)}, distilled from {plain(source)}"


def _summary(record: StudentRecord, adapter: Adapter | None) -> str:
    base = _base(record, adapter)
    below = f"[{plain(base)}](https://huggingface.co/{base})" if is_hub_id(base) else code(public_name(base))
    rounds = ((METHODS[method], len(list(group))) for method, group in groupby(stage.method for stage in record.stages))
    methods = " and then by ".join(name if number == 1 else f"{name}, {number} times" for name, number in rounds)
    if adapter is not None:
        kind = f"An adapter ({adapter.variant}, rank {adapter.rank}) for {below}"
    elif record.merged is not None:
        kind = f"{below} with a trained adapter merged into its weights"
    else:
        kind = f"{below} with all of its weights trained"
    teachers = ", ".join(map(code, _teachers(record)))
    teaching = f" It learnt from {teachers}." if teachers else ""
    made = f"Made with Stillhouse {code_version()}."
    return f"{kind}; trained by {methods}.{teaching} {made}\n"


def _base(record: StudentRecord, adapter: Adapter | None) -> str:
    """Return the adapter's base, which may be an earlier student; without an adapter the base of the first training."""
    return record.stages[0].base if adapter is None else adapter.base


def _teachers(record: StudentRecord) -> list[str]:
    """Return public names of the teachers: one that wrote goes by its name, and one that scored by a digest too."""
    names = dict.fromkeys(public_name(teacher) for stage in record.stages for teacher in stage.teachers)
    with_digest = {name.partition("@")[0] for name in names if "@" in name}
    return [name for name in names if name not in with_digest]


_EMBEDDED: Final = "embedded:"
_GENERATE: Final = """\
tokenizer = AutoTokenizer.from_pretrained(folder)
messages = [{"role": "user", "content": "Hello!"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
completion = model.generate(**inputs, max_new_tokens=128)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(completion, skip_special_tokens=True))
"""
_FOLDER: Final = 'folder = "."  # this folder, or its name on the hub\n'


def _loading_section(folder: Path, adapter: Adapter | None) -> Iterator[str]:
    """Yield how to load the student with transformers and peft, vLLM and Stillhouse."""
    yield "## Use\n"
    if (gguf := gguf_in(folder)) is not None:
        yield "With llama.cpp:\n"
        yield fenced("shell", f"llama-server -m {gguf.name} --jinja\n")
        yield "With Stillhouse, behind an OpenAI-compatible API:\n"
        yield fenced("shell", "stillhouse serve .\n")
        return
    yield "With transformers" + (":\n" if adapter is None else " and peft:\n")
    yield fenced("python", _python(adapter))
    if adapter is not None and not is_hub_id(adapter.base):
        yield f"`BASE` is the folder of the base model, {code(public_name(adapter.base))}.\n"
    if needs_5(folder):
        yield "It needs transformers 5 or newer, version 4 computes something else from its config.\n"
    yield "With vLLM:\n"
    yield from _vllm(adapter, has_merged=(folder / MERGED_FOLDER).is_dir())
    yield "With Stillhouse, behind an OpenAI-compatible API:\n"
    yield fenced("shell", "stillhouse serve .\n")


def _base_in(adapter: Adapter) -> str:
    """Return the base as a command names it."""
    return adapter.base if is_hub_id(adapter.base) else "BASE"


def _python(adapter: Adapter | None) -> str:
    if adapter is None:
        imports = ["from transformers import AutoModelForCausalLM, AutoTokenizer"]
        loading = 'model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")\n'
    else:
        imports = ["from peft import PeftModel"]
        path = f'"{_base_in(adapter)}"' + (f', revision="{adapter.revision}"' if adapter.revision else "")
        if adapter.base.startswith(_EMBEDDED):
            imports.append("from stillhouse.embedded import embedded_path")
            path = f'embedded_path("{adapter.base.removeprefix(_EMBEDDED)}")'
        imports.append("from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig")
        loading = (
            f'base = AutoModelForCausalLM.from_pretrained({path}, dtype="auto")\n'
            "model = PeftModel.from_pretrained(base, folder)\n"
            "model.generation_config = GenerationConfig.from_pretrained(folder)  # its ends, not those of its base\n"
        )
    return "\n".join(imports) + f"\n\n{_FOLDER}{loading}{_GENERATE}"


def _vllm(adapter: Adapter | None, *, has_merged: bool) -> Iterator[str]:
    if adapter is None:
        yield fenced("shell", "vllm serve .\n")
        return
    if adapter.refusal is not None:
        yield f"{adapter.refusal}; it serves the weights that this one is merged into:\n"
        merging = "" if has_merged else f"stillhouse publish . --merge -o {MERGED_FOLDER}\n"
        yield fenced("shell", f"{merging}vllm serve {MERGED_FOLDER}\n")
        return
    base = _base_in(adapter) + (f" --revision {adapter.revision}" if adapter.revision else "")
    options = f"--enable-lora --max-lora-rank {lora_rank(adapter.rank)} --lora-modules student=."
    # Without these, template and ends are those of the base.
    yield fenced("shell", f"vllm serve {base} --tokenizer . --generation-config . {options}\n")
