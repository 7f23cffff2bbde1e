"""Writes students as GGUF files, with llama.cpp's own converter and quantiser."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from stillhouse.chat.refs import gguf_in
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.publishing.gguf_header import header_of
from stillhouse.publishing.ollama import MODELFILE, modelfile
from stillhouse.store.atomic import replaced_folder, write_atomic
from stillhouse.training.results.adapter import read_adapter
from stillhouse.training.results.card import write_card
from stillhouse.training.results.export import export_student
from stillhouse.training.results.record import read_record
from stillhouse.types import JsonObject

_CONVERTER: Final = "convert_hf_to_gguf.py"
_UNQUANTISED: Final = ("f32", "f16", "bf16")
TYPES: Final = (*_UNQUANTISED, "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "q4_0", "q3_k_m", "q2_k")
"""Types of weights, from the most exact."""
_UNKNOWN_TOKENIZER: Final = (
    ". It splits text by rules that it has for each tokenizer, and has none for this one: serve the student by "
    "transformers or vLLM"
)


def export_gguf(
    folder: Path,
    output: Path,
    weights: str,
    *,
    evaluations: Mapping[str, JsonObject] | None = None,
    license_id: str | None = None,
) -> None:
    """Write a student to the new folder `output` as a GGUF file, beside its tokenizer, record and card.

    Raises as `export_student` and `write_gguf`.
    """
    with TemporaryDirectory(dir=output.parent) as name:
        model = Path(name) / "model"
        export_student(folder, model, merge=read_adapter(folder) is not None)
        with replaced_folder(output) as work:
            write_gguf(model, work / f"{output.name}-{weights}.gguf", weights)
            for path in model.iterdir():
                if path.is_file() and path.suffix != ".safetensors" and not path.name.endswith("index.json"):
                    shutil.copyfile(path, work / path.name)
            write_card(work, evaluations=evaluations, license_id=license_id)


def write_modelfile(folder: Path, ends: Iterable[str]) -> None:
    """Write Ollama's Modelfile into the folder of a GGUF file; raises as `stillhouse.publishing.ollama.modelfile`."""
    path = gguf_in(folder)
    assert path is not None
    text = modelfile(
        load_tokenizer(str(folder)),
        path.name,
        ends,
        adds_bos=bool(header_of(path).value("tokenizer.ggml.add_bos_token")),
        max_length=read_record(folder).config["student"]["max_length"],
    )
    write_atomic(folder / MODELFILE, text.encode())


def write_gguf(model: Path, output: Path, weights: str) -> None:
    """Write merged weights as a GGUF file whose weights are of a type of `TYPES`.

    Raises ConfigError if llama.cpp is not there, TrainingError if it refuses the model.
    """
    sources = sources_of_llama_cpp()
    exact = weights if weights in _UNQUANTISED else "f32"
    whole = output if weights == exact else output.with_suffix(".whole.gguf")
    command = [sys.executable, str(sources / _CONVERTER), str(model), "--outtype", exact, "--outfile", str(whole)]
    paths = [str(sources / "gguf-py"), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not whole.is_file():
        *_, said = done.stderr.strip().splitlines() or ["it said nothing"]
        why = _UNKNOWN_TOKENIZER if "pre-tokenizer was not recognized" in said else ""
        raise TrainingError(f"llama.cpp does not convert the student: {said}{why}")
    if whole != output:
        _quantise(whole, output, weights)
        whole.unlink()


def sources_of_llama_cpp() -> Path:
    """Return the folder of llama.cpp's sources; raise ConfigError if its converter is not there."""
    named = os.environ.get("LLAMA_CPP")
    folder = Path(named).expanduser() if named else Path(sys.prefix) / "llama.cpp"
    if not (folder / _CONVERTER).is_file():
        raise ConfigError(
            f"{folder} holds no {_CONVERTER}, which writes GGUF files; run `make llama-cpp`, or name the folder of "
            "llama.cpp's sources in LLAMA_CPP"
        )
    return folder


def _quantise(source: Path, output: Path, weights: str) -> None:
    from stillhouse.serving.gguf import llama_cpp

    settings = llama_cpp().llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp(), f"LLAMA_FTYPE_MOSTLY_{weights.upper()}")
    if code := llama_cpp().llama_model_quantize(str(source).encode(), str(output).encode(), settings):
        raise TrainingError(f"llama.cpp does not quantise {source} to {weights}: code {code}")
