"""An 8B student whose frozen weights are in 4 bits, and one whose weights are all trained with 8-bit optimiser states.

For QLoRA the weights are written to a folder and loaded as a training job loads them.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.bench import Bench, Unavailable
from benchmarks.gpu.models import LORA_RANK, build, shape_of
from benchmarks.gpu.parts import sft
from benchmarks.gpu.plan import Row
from benchmarks.sft.workload import word_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.training.model.load import load_student

_ROW_TOKENS = 4_096


def measure(row: Row, bench: Bench) -> None:
    """Trains a few steps."""
    if not bench.on_gpu:
        raise Unavailable("bitsandbytes is used on CUDA alone")
    import bitsandbytes  # noqa: F401 - its absence is said before a model is built

    if row.options["what"] == "qlora":
        with tempfile.TemporaryDirectory() as folder:
            student = _qlora_student(Path(folder), bench)
            sft.measure_student(student, _ROW_TOKENS, bench)
    else:
        built = build(shape_of("8B", bench), bench, parameters="full")
        sft.measure_student(built.student(bench), _ROW_TOKENS, bench, optimizer="adamw_8bit")


def _qlora_student(folder: Path, bench: Bench) -> Any:
    shape = shape_of("8B", bench)
    causal_lm = build(shape, bench, parameters="frozen").causal_lm
    free = shutil.disk_usage(folder).free
    needed = sum(p.nbytes for p in causal_lm.parameters())
    if free < 1.2 * needed:
        raise Unavailable(f"{free / 2**30:.0f} GiB are free in {folder}, {1.2 * needed / 2**30:.0f} GiB are needed")
    causal_lm.save_pretrained(folder)
    word_tokenizer(shape.vocabulary).save_pretrained(folder)
    del causal_lm
    torch.cuda.empty_cache()
    config = StudentConfig(parameters="qlora", dtype="bfloat16", lora_rank=LORA_RANK, lora_alpha=2.0 * LORA_RANK)
    return load_student(str(folder), config, bench.device, seed=0)
