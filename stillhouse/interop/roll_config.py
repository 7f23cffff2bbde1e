"""Converts pipeline YAML of ROLL (RLVR and on-policy distillation)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from stillhouse.errors import ConfigError
from stillhouse.interop.chat_rows import verifier_of
from stillhouse.interop.mapping import Approximated, ConfigMapper, Default, section, set_algorithm, value_at
from stillhouse.interop.roll_distill import is_distill, map_distill
from stillhouse.interop.roll_keys import KEYS, SFT_KEYS, training_defaults
from stillhouse.interop.roll_objective import map_objective, settle_group
from stillhouse.interop.sources import absolute_path, find_path, with_absolute_models
from stillhouse.types import JsonObject

_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")
_ROLLOUT_DEFAULTS: Final[tuple[Default, ...]] = (
    ("on_policy.num_steps", "max_steps", 500),
    ("on_policy.prompts_per_step", "rollout_batch_size", 128),
    ("on_policy.temperature", "generating_args.temperature", 0.95),
)
"""roll/configs/{base_config,generating_args}.py, where they differ from ours."""
_TRAINERS: Final = ("student_train", "actor_train", "sft_train", "student")
_FEWER: Final = Approximated(
    "names more devices than num_nodes x num_gpus_per_node, which the training takes: raise runtime.num_hosts for more"
)
_IN_TURN: Final = Approximated("the devices that train also sample, in turn: on_policy.max_staleness is 0")
_MAX_REFERENCES: Final = 8
"""Maximum chain of references, since they may form a cycle."""


def map_roll(body: JsonObject, mapper: ConfigMapper, folder: Path) -> list[str]:
    """Map the keys of a config in `folder`; return the data files it names.

    Raises ConfigError if is_pure_opd and use_opd are both set, or the pipeline trains on preferences.
    """
    body = with_absolute_models(resolved(_with_included(body, mapper, folder)), folder)
    if "chosen_key" in body or "rejected_key" in body:
        raise ConfigError(
            "chosen_key and rejected_key: this pipeline trains on preferences (DPO), which is not offered here; "
            "pair the rows of train.parquet and rejected.parquet by `prompt_id` for another trainer"
        )
    _map_devices(body, mapper)
    if "sft_train" in body:
        files = [str(find_path(name, folder) or absolute_path(name, folder)) for name in _pop_files(body, mapper)]
        _map_sft(body, files, mapper)
        files = []
    else:
        files = _map_on_policy(body, mapper)
    if mapper.get("student.lora_rank") is None:
        mapper.set("student.parameters", "full")
    return files


def _map_devices(body: JsonObject, mapper: ConfigMapper) -> None:
    """Map the devices of workers that train (roll/configs/base_config.py), and pop their keys from `body`.

    Transformers samples where no others are left.
    """
    trainer = next((name for name in _TRAINERS if name in body), "")
    mapping, gpus = value_at(body, trainer, "device_mapping"), body.get("num_gpus_per_node", 8)
    trains = _numbers(mapping)
    if not trains or not isinstance(gpus, int) or not isinstance(body.get("num_nodes", 1), int):
        return
    num = min(len(trains), gpus * body.pop("num_nodes", len(trains)))
    hosts = -(-num // gpus)
    del body[trainer]["device_mapping"]
    body.pop("num_gpus_per_node", None)
    key = f"{trainer}.device_mapping"
    if num < len(trains):
        mapper.skip(_FEWER, key, mapping)
    if num > 1:
        mapper.set("runtime.launcher", "torchrun" if hosts == 1 else "ray", key, mapping)
        mapper.set("runtime.num_processes", num // hosts, key, mapping)
        if hosts > 1:
            mapper.set("runtime.num_hosts", hosts, key, mapping)
    sampler = "actor_infer" if trainer == "actor_train" else "student_infer"
    samples = _numbers(value_at(body, sampler, "device_mapping"))
    if num > 1 and trainer != "sft_train" and (samples & trains or num // hosts == gpus):
        section(body, sampler).pop("device_mapping", None)
        mapper.set("runtime.engine", "transformers", key, mapping)
        if ratio := body.pop("async_generation_ratio", 0):
            mapper.skip(_IN_TURN, "async_generation_ratio", ratio)


def _numbers(mapping: Any) -> set[int]:
    """Return the numbers of devices in `list(range(0,8))`, `[0, 1]` and sums of these."""
    text = str(mapping)
    ranges = (range(*map(int, ends)) for ends in re.findall(r"range\((\d+), *(\d+)\)", text))
    listed = (map(int, re.findall(r"\d+", part)) for part in re.findall(r"\[([\d, ]*)\]", text))
    return {number for part in (*ranges, *listed) for number in part}


def _map_on_policy(body: JsonObject, mapper: ConfigMapper) -> list[str]:
    """Map a pipeline that samples; return the data files it names."""
    rewards = body.pop("rewards", None)
    is_given = is_distill(body)
    if is_given:
        map_distill(body, mapper)
    map_objective(body, mapper)
    if mapper.get("sft.enabled") is None:
        mapper.set("sft.enabled", False)
    files = _pop_files(body, mapper)
    mapper.apply(body, KEYS)
    mapper.fill(training_defaults("on_policy") + (() if is_given else _ROLLOUT_DEFAULTS))
    settle_group(mapper)
    updates = (mapper.get("on_policy.num_passes") or 1) * (mapper.get("on_policy.num_substeps") or 1)
    if updates > 1 and (batches := mapper.get("on_policy.max_staleness")):
        # ROLL counts batches.
        mapper.replace("on_policy.max_staleness", batches * updates)
    set_algorithm(mapper)
    if isinstance(rewards, dict):
        _map_rewards(rewards, mapper)
    elif rewards is not None:
        mapper.skip("expected reward workers by name", "rewards", rewards)
    return files


def _map_sft(body: JsonObject, files: list[str], mapper: ConfigMapper) -> None:
    """Map a pipeline that trains on the rows of `files` and samples nothing."""
    mapper.set("sft.enabled", True, "sft_train", "sft_train")
    mapper.set("on_policy.enabled", False)
    mapper.set("sft.dataset_weight", 0.0)
    mapper.set("sft.sources", [{"path": file} for file in files], "sft_train.data_args.file_name", files)
    mapper.apply(body, SFT_KEYS)
    mapper.fill((("sft.num_epochs", "training_args.num_train_epochs", 1), *training_defaults("sft")))


def _with_included(body: JsonObject, mapper: ConfigMapper, folder: Path) -> JsonObject:
    """Return the body over the files that Hydra's `defaults` include beside it; others are unmapped."""
    body = dict(body)
    included: JsonObject = {}
    names = body.pop("defaults", None)
    for name in names if isinstance(names, list) else []:
        path = folder / f"{str(name).partition('@')[0]}.yaml"
        if name == "_self_":
            continue
        if path.is_file() and isinstance(content := yaml.safe_load(path.read_bytes()), dict):
            included |= content
        else:
            absent = "a file included by Hydra that is not there, so that what it says is not read"
            mapper.skip(absent, "defaults", name)
    return {**included, **body}


def resolved(body: JsonObject) -> JsonObject:
    """Return the body with `${key}` and `${section.key}` resolved; unknown references stay."""

    def fill(value: Any, depth: int = 0) -> Any:
        if isinstance(value, dict):
            return {key: fill(part, depth) for key, part in value.items()}
        if isinstance(value, list):
            return [fill(part, depth) for part in value]
        if not isinstance(value, str) or depth > _MAX_REFERENCES:
            return value
        reference = _REFERENCE.fullmatch(value)
        if reference is not None and (target := value_at(body, *reference[1].split("."))) is not None:
            return fill(target, depth + 1)
        if reference is None and _REFERENCE.search(value):
            return _REFERENCE.sub(lambda match: str(fill(match[0], depth + 1)), value)
        return value

    return {key: fill(value) for key, value in body.items()}


def _pop_files(body: JsonObject, mapper: ConfigMapper) -> list[str]:
    files: list[str] = []
    for name in ("student_train", "actor_train", "sft_train"):
        named = section(body, name, "data_args").pop("file_name", None)
        listed = [named] if isinstance(named, str) else named or []
        if isinstance(listed, list) and all(isinstance(file, str) for file in listed):
            files += listed
        else:
            mapper.skip("expected a file or a list of them", f"{name}.data_args.file_name", named)
    return files


def _map_rewards(rewards: Mapping[str, Any], mapper: ConfigMapper) -> None:
    """Map reward workers to verifiers; those without one are unmapped."""
    by_tag: dict[str, str] = {}
    for name, worker in rewards.items():
        verifier = verifier_of(name)
        if verifier is None or not isinstance(worker, dict):
            mapper.skip("a reward worker that no verifier stands for: write it as @reward", f"rewards.{name}", worker)
            continue
        tags = worker.get("tag_included")
        by_tag |= dict.fromkeys(map(str, tags) if isinstance(tags, list) and tags else [name], verifier)
        if rest := {key: value for key, value in worker.items() if key not in ("worker_cls", "tag_included")}:
            mapper.skip("answers are verified by prompts.verifier_by_tag, on this machine", f"rewards.{name}", rest)
    if by_tag:
        mapper.set("prompts.verifier_by_tag", by_tag, "rewards", by_tag)
