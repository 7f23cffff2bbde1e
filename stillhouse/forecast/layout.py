"""Whether GPUs hold a training, by its settings and the sizes of its models, before anything is loaded."""

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stillhouse.config import DistillConfig, OnPolicyTeacher, RuntimeConfig
from stillhouse.errors import ConfigError
from stillhouse.forecast.model_size import ModelSize
from stillhouse.inference.vllm.environment import gpus, python_for_teacher, vllm_python
from stillhouse.inference.vllm.launch import server_bytes

if TYPE_CHECKING:
    from stillhouse.training.job import TrainJob

_logger = logging.getLogger("stillhouse.training")
_GIB: Final = 1 << 30
_ERROR: Final = 1.15
"""Factor by which a need may be off."""
_CACHES: Final = "more to sample at most"
"""Of keys and values, all of them as long as they may get: no reason to refuse."""
_STATES: Final = {"adamw": 8, "adamw_8bit": 2, "muon": 4}
"""Bytes of the optimiser's states for each trained weight; 8 for those of tables of tokens."""


def layout_of(config: DistillConfig, devices: str | None = None) -> list[str]:
    """Return what the trainings of a config take of a host's `devices`, such as `8x80GiB`, or of this machine's.

    Raises as `check_layout`, and ConfigError for another form, or where this machine has no vLLM that it needs.
    """
    runtime, found = config.runtime, [] if config.runtime.training_deployment else _gpus_for(config.runtime)
    if devices is None and not runtime.training_deployment:
        for section in (config.on_policy, config.sft):
            for teacher in section.teachers if section.enabled else ():
                if teacher.kind == "vllm" and teacher.is_here:
                    python_for_teacher(teacher, runtime)
    if devices is not None:
        if (form := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)GiB", devices)) is None:
            raise ConfigError(f"--devices {devices}: expected the number of a host's GPUs and their memory, as 8x80GiB")
        found = [int(form[2]) * _GIB] * int(form[1])
    if not found:
        told = "Whether GPUs have the memory is not checked, as the training has none here: add --devices 8x80GiB."
        return [told] if runtime.num_processes * runtime.num_hosts > 1 and runtime.device != "cpu" else []
    # Imports pyarrow, for which plans without GPUs need not wait.
    from stillhouse.training.job import TrainJob

    lines = list[str]()
    for method, section in (("sft", config.sft), ("on_policy", config.on_policy)):
        parts: dict[str, Any] = {"method": method, method: section, "student": config.student, "runtime": runtime}
        # Without its data.
        job = TrainJob.model_construct(student_ref=config.student.model, teacher_ref=config.scoring_teacher, **parts)
        lines += [told for told, _ in check_layout(job, found)] if section.enabled else []
    return lines


def require_room(job: "TrainJob") -> None:
    """Raise ConfigError if this machine's GPUs cannot hold a training that begins on them; warn if they may not."""
    if job.method in ("sft", "on_policy") and (found := _gpus_for(job.runtime)):
        for told, fits in check_layout(job, found):
            _logger.log(logging.INFO if fits else logging.WARNING, "%s", told)


def _gpus_for(runtime: RuntimeConfig) -> list[int]:
    """Return the bytes of this machine's GPUs; none where a training does not run on them."""
    return [] if runtime.device == "cpu" or runtime.launcher == "ray" else [gpu.total for gpu in gpus()]


def check_layout(job: "TrainJob", found: Sequence[int]) -> Iterator[tuple[str, bool]]:
    """Yield what each GPU of a host holds, and whether that surely fits; `found` are the bytes of each GPU.

    Raises ConfigError where it is too much even if the estimate is off, or there are too few GPUs.
    """
    refs = dict.fromkeys([job.student_ref, *(teacher.model or job.student_ref for teacher in _local(job))])
    sizes = {ref: ModelSize(ref) for ref in refs}
    if unknown := [ref for ref, size in sizes.items() if not size.weights]:
        told = f"{job.method}: the size of {' and '.join(unknown)} is unknown here, so that no memory was checked"
        yield f"{told}; `hf download {unknown[0]} --include '*.json'` brings what tells it", True
        return
    try:
        held = _held(job, found, sizes)
    except IndexError:
        asked = f"runtime.num_processes = {job.runtime.num_processes}, or a teacher's device"
        raise ConfigError(
            f"{job.method}: {asked}, takes more than the {len(found)} GPUs of a host", code="memory"
        ) from None
    for number, parts in enumerate(held):
        if not parts or parts in held[:number]:
            continue
        alike = [other for other, has in enumerate(held) if has == parts]
        needed, there = sum(parts.values()), min(found[other] for other in alike)
        where = " to ".join(str(end) for end in dict.fromkeys([alike[0], alike[-1]]))
        told = ", ".join(f"{name} {size / _GIB:.1f}" for name, size in parts.items())
        told = f"{job.method}: {needed / _GIB:.1f} of {there / _GIB:.1f} GiB on GPU {where} ({told})"
        fits = needed * _ERROR <= there
        told += "" if fits else f"; to make it fit, {_remedies(job, found, sizes)}"
        if needed - parts.get(_CACHES, 0.0) > there * _ERROR:
            raise ConfigError(told, code="memory")
        yield told, fits


def _local(job: "TrainJob") -> list[OnPolicyTeacher]:
    """Return the teachers that have weights of their own on GPUs of this host."""
    config = job.on_policy
    if config is None or not config.needs_teacher or config.source == "rollouts":
        return []
    ref = config.teacher or job.teacher_ref
    default = () if ref is None else (OnPolicyTeacher(name="teacher", model=ref),)
    copies = job.student.parameters == "full"
    has_own = (one for one in config.teachers or default if one.is_here or (one.kind == "base" and copies))
    return [one for one in has_own if one.device != "cpu"]


def _held(job: "TrainJob", found: Sequence[int], sizes: Mapping[str, ModelSize]) -> list[dict[str, float]]:
    """Return the bytes on each GPU of the first host by what they are for; raise IndexError where these are too few."""
    num, num_ranks = job.runtime.num_processes, job.runtime.num_processes * job.runtime.num_hosts
    student, itemsize = sizes[job.student_ref], 4 if job.student.dtype == "float32" else 2
    is_full, whole = job.student.parameters == "full", itemsize * student.weights
    share, held = _student(job, student, itemsize, num_ranks), [dict[str, float]() for _ in found]
    idle = range(num, len(found))
    for teacher in _local(job):
        size, name = sizes[teacher.model or job.student_ref], f"teacher {Path(teacher.model or teacher.name).name}"
        if teacher.kind == "vllm":
            parallel = _num_gpus(2 * size.weights, found)
            for number in (idle or range(num))[-parallel:]:
                held[number][f"vLLM of {name}"] = server_bytes(2 * size.weights, parallel)
            idle = idle[:-parallel] or idle
            continue
        parts = share if teacher.device is None else held[int(teacher.device.partition(":")[2] or 0)]
        needed = size.weights * {"float32": 4, "bfloat16": 2}.get(teacher.dtype, itemsize) / num_ranks
        parts[name] = parts.get(name, 0) + (size.quantised(itemsize) if teacher.dtype == "4bit" else needed)
    for number in range(num):
        held[number] = share | held[number]
    config, longest, caches, sampling = job.on_policy, job.student.max_length, 0.0, dict[str, float]()
    if config is not None and config.source != "rollouts":
        longest = max(longest, config.max_tokens)
        is_served = (
            config.engine_url is not None or job.runtime.engine == "vllm" or vllm_python(job.runtime) is not None
        )
        if (is_full and itemsize == 2 and not is_served) or (num_ranks > 1 and job.student.parameters != "qlora"):
            sampling["copy to sample by"] = whole
        if not is_served:
            batch = math.ceil(config.prompts_per_step * config.group_size / num_ranks)
            caches = min(config.max_concurrent, batch) * longest * student.cache * itemsize / 2
        elif config.engine_url is None:
            parallel = _num_gpus(whole, found)
            for number in idle or range(min(parallel, num)):
                # A single GPU samples and trains in turn.
                parts = sampling if len(found) == 1 and config.max_staleness == 0 else held[number]
                parts["vLLM"] = server_bytes(whole, parallel)
    compares, tokens = config is not None and bool(config.divergence), max(job.trainer.microbatch_tokens, longest)
    step = student.step(tokens, itemsize, trains_all=is_full, compares=compares)
    # Where a model is sharded, the block that runs and the next one are gathered, and what is outside of blocks.
    step += (num_ranks > 1) * itemsize * (student.tables + 2 * (student.weights - student.tables) / student.layers)
    more = sum(sampling.values()) + caches - max(step, sum(sampling.values()))
    for parts in held[:num]:
        parts |= sampling if sum(sampling.values()) > step else {"a step": step}
        parts |= {_CACHES: more} if more > 0 else {}
    return held


def _num_gpus(weights: float, found: Sequence[int]) -> int:
    """Return on how many GPUs a server has weights of so many bytes."""
    return next((n for n in (1, 2, 4) if server_bytes(weights, n) * _ERROR <= found[-1]), 8)


def _student(job: "TrainJob", size: ModelSize, itemsize: int, num_ranks: int) -> dict[str, float]:
    """Return the bytes that each process has of the student's weights, gradients and optimiser."""
    state, others = _STATES[job.trainer.optimizer], 4 if job.trainer.ema_decay is None else 8
    if job.student.parameters == "full":
        states = size.weights * (state + others) + size.tables * (8 - state)
        return {"student": 4 * size.weights / num_ranks, "gradients and states": states / num_ranks}
    # Weights in 4 bits are not sharded.
    base = size.quantised(itemsize) if job.student.parameters == "qlora" else itemsize * size.weights / num_ranks
    return {"student": base, "adapter": size.adapter * job.student.lora_rank * (4 + state + others) / num_ranks}


def _remedies(job: "TrainJob", found: Sequence[int], sizes: Mapping[str, ModelSize]) -> str:
    """Return the settings each of which makes the training fit, or else those that help."""
    tokens, most = job.trainer.microbatch_tokens, job.on_policy.max_concurrent if job.on_policy else 0
    tried: dict[str, list[Any]] = {
        "runtime.num_processes": [len(found)],
        "runtime.engine": ["transformers"],
        "student.parameters": ["lora", "qlora"],
        "student.max_length": [job.student.max_length >> by for by in range(1, 6)],
        f"{job.method}.trainer.microbatch_tokens": [tokens >> by for by in range(1, 6)],
    }
    if job.on_policy is not None:
        tried["on_policy.max_concurrent"] = [most >> by for by in range(1, 6)]
        tried |= {"on_policy.teachers.dtype": ["4bit"], "on_policy.teachers.base_url": ["a server elsewhere"]}
        job = _changed(job, "on_policy.teachers", tuple(_local(job)))

    def need(variant: "TrainJob") -> float:
        with suppress(IndexError):
            held = _held(variant, found, sizes)
            return max(sum(parts.values()) / there for parts, there in zip(held, found, strict=True))
        return math.inf

    needs = {path: {value: need(_changed(job, path, value)) for value in values} for path, values in tried.items()}
    fitting = [(path, next((v for v, share in of.items() if share * _ERROR <= 1), None)) for path, of in needs.items()]
    if told := " or ".join(f"{path} to {value}" for path, value in fitting if value is not None):
        return f"set {told}"
    helping = [path for path, of in needs.items() if min(of.values()) < need(job)]
    return f"take other models or GPUs, or several of these settings: {', '.join(helping)}"


def _changed(part: Any, path: str, value: object) -> Any:
    """Return a job or a section, or each of a tuple of these, with another value at a path."""
    if isinstance(part, tuple):
        return tuple(_changed(one, path, value) for one in part)
    name, _, rest = path.partition(".")
    return part.model_copy(update={name: _changed(getattr(part, name), rest, value) if rest else value})
