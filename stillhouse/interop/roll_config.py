"""Converts pipeline YAML of ROLL (RLVR and on-policy distillation)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from stillhouse.interop.chat_rows import verifier_of
from stillhouse.interop.mapping import ConfigMapper
from stillhouse.interop.roll_keys import KEYS
from stillhouse.interop.roll_objective import map_objective
from stillhouse.types import JsonObject

_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")
_MAX_REFERENCES: Final = 8
"""Maximum chain of references, since they may form a cycle."""


def map_roll(body: JsonObject, mapper: ConfigMapper) -> list[str]:
    """Maps the keys of a config; returns the data files it names.

    Raises:
        ConfigError: is_pure_opd and use_opd are both set.
    """
    body = resolved(body)
    rewards = body.pop("rewards", None)
    map_objective(body, mapper)
    if mapper.get("sft.enabled") is None:
        mapper.set("sft.enabled", False)
    files = _pop_files(body, mapper)
    mapper.apply(body, KEYS)
    if mapper.get("student.lora_rank") is None:
        mapper.set("student.parameters", "full")
    if isinstance(rewards, dict):
        _map_rewards(rewards, mapper)
    elif rewards is not None:
        mapper.skip("expected reward workers by name", "rewards", rewards)
    return files


def resolved(body: JsonObject) -> JsonObject:
    """The body with `${key}` and `${section.key}` resolved; unknown references stay."""

    def value_of(path: str) -> Any:
        value: Any = body
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def fill(value: Any, depth: int = 0) -> Any:
        if isinstance(value, dict):
            return {key: fill(part, depth) for key, part in value.items()}
        if isinstance(value, list):
            return [fill(part, depth) for part in value]
        if not isinstance(value, str) or depth > _MAX_REFERENCES:
            return value
        reference = _REFERENCE.fullmatch(value)
        if reference is not None and (target := value_of(reference[1])) is not None:
            return fill(target, depth + 1)
        if reference is None and _REFERENCE.search(value):
            return _REFERENCE.sub(lambda match: str(fill(match[0], depth + 1)), value)
        return value

    return {key: fill(value) for key, value in body.items()}


def _pop_files(body: JsonObject, mapper: ConfigMapper) -> list[str]:
    files: list[str] = []
    for name in ("student_train", "actor_train"):
        worker = body.get(name)
        data = worker.get("data_args") if isinstance(worker, dict) else None
        named = data.pop("file_name", None) if isinstance(data, dict) else None
        listed = [named] if isinstance(named, str) else named or []
        if isinstance(listed, list) and all(isinstance(file, str) for file in listed):
            files += listed
        else:
            mapper.skip("expected a file or a list of them", f"{name}.data_args.file_name", named)
    return files


def _map_rewards(rewards: Mapping[str, Any], mapper: ConfigMapper) -> None:
    """Maps reward workers to verifiers; those without one are unmapped."""
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
