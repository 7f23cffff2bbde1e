"""Tasks of inspect_ai: what one is made of, its run against a model that is served, and its log."""

import asyncio
import json
import math
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from stillhouse.config.suites import parse_suite
from stillhouse.errors import ConfigError, InputError
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.store.fingerprint import file_sha256
from stillhouse.types import JsonObject

_OUTPUT_FILE: Final = "output.txt"
SuiteLog = tuple[dict[str, float], list[str], JsonObject]
"""Scores from 0 to 1 by sample; why others have none; tokens, the scorer's name, and its figures by inspect_ai."""


def source_of(suite: str) -> JsonObject:
    """Return the versions of a suite's packages and its file's SHA-256; raise ConfigError if one of them is missing."""
    file, name = parse_suite(suite)  # inspect_ai itself registers `hf/OWNER/NAME`, tasks of data sets on the hub
    registered_by = [name.partition("/")[0]] if "/" in name and not name.startswith("hf/") else []
    try:
        versions = {package: version(package) for package in ("inspect_ai", *registered_by)}
        return {"sha256": None if file is None else file_sha256(Path(file)), **versions}
    except PackageNotFoundError as error:
        raise ConfigError(
            f"evaluation.suites: {suite} needs the package {error.name}: pip install {error.name}"
        ) from error
    except OSError as error:
        raise ConfigError(f"evaluation.suites: {suite}: {error}; expected a file below {Path.cwd()}") from error


async def run_suite(suite: str, request: JsonObject, api_key: str) -> SuiteLog:
    """Return what inspect_ai finds, whose log goes to the request's `folder`. A cancelled wait ends its process.

    Raises InputError if the task cannot be run, or does not score from 0 to 1.
    """
    file, name = parse_suite(suite)
    task = name if file is None else f"{file}@{name}"
    arguments, variables = [json.dumps({**request, "task": task})], {"STILLHOUSE_API_KEY": api_key or "none"}
    with GuardedProcess("stillhouse.evaluation.suites", arguments, variables) as process:
        await asyncio.to_thread(process.wait)
    try:
        return read_log(Path(request["folder"]))
    except InputError as error:
        raise InputError(
            f"evaluation.suites: {suite}: {error}. Run the same command again once `inspect eval {task} --model "
            "mockllm/model` gives scores from 0 to 1 here, with the packages, data sets and network that it needs"
        ) from error


def read_log(folder: Path) -> SuiteLog:
    """Read the log in a folder by its first scorer, of several values by the first; raise InputError without scores."""
    path = next(folder.glob("*.json"), None)
    if path is None:
        said = (folder / _OUTPUT_FILE).read_text(encoding="utf-8", errors="replace").strip()
        raise InputError(said.split("\n")[-1] or "inspect_ai left no log: is there such a task?")
    log = json.loads(path.read_text(encoding="utf-8"))
    if log["status"] != "success" or not (scorers := (log.get("results") or {}).get("scores")):
        errors = [each["error"]["message"] for each in (log, *(log.get("samples") or ())) if each.get("error")]
        raise InputError((errors or ["the task has no scorer"])[0])
    scorer, scores = scorers[0], {}
    reduced = (each["samples"] for each in log["reductions"] or () if each["scorer"] == scorer["scorer"])
    for sample in next(reduced, ()):
        value = next(iter(sample["value"].values())) if isinstance(sample["value"], dict) else sample["value"]
        if not isinstance(value, int | float) or not (math.isnan(value) or 0.0 <= value <= 1.0):
            raise InputError(f"sample {sample['sample_id']} is scored {value!r}, expected 0 to 1")
        if not math.isnan(value):
            scores[str(sample["sample_id"])] = float(value)
    causes = {str(sample["id"]): sample.get("error") or {} for sample in log["samples"]}
    failures = [causes[sample].get("message", "the scorer gave no score") for sample in causes if sample not in scores]
    usage = log["stats"]["model_usage"].get(log["eval"]["model"], {})
    tokens = {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")}
    reported = {name: figure["value"] for name, figure in scorer["metrics"].items()}
    return scores, failures, {**tokens, "scorer": scorer["name"], "reported": reported}


def _main(text: str) -> None:
    """Run the task of a request in this process, the only one that imports inspect_ai."""
    request = json.loads(text)
    output = os.open(Path(request["folder"]) / _OUTPUT_FILE, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    from inspect_ai import eval as evaluate
    from inspect_ai.model import GenerateConfig, get_model

    # A model's config gives way to what the task sets. The key is in STILLHOUSE_API_KEY: `ps` lists arguments.
    config, name = GenerateConfig(**request["settings"]), f"openai-api/stillhouse/{request['model']}"
    model = get_model(name, base_url=request["base_url"], config=config)
    shown: Any = {"log_dir": request["folder"], "log_format": "json", "display": "none", "ctl_server": False}
    evaluate(request["task"], model=model, fail_on_error=False, **shown)


if __name__ == "__main__":
    _main(*sys.argv[1:])
