"""What works on this machine and what does not, before a run depends on it."""

import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from stillhouse.chat.refs import model_identity
from stillhouse.config import DistillConfig
from stillhouse.errors import ConfigError, StoreError
from stillhouse.store import ArtifactStore
from stillhouse.store.atomic import unwritable

_REQUIRED = ("prefect", "mlflow", "torch", "transformers", "peft", "openai", "pyarrow")
_OPTIONAL = {"datasets": "hub"}
_ENDPOINT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `ok` is None for what is absent but not needed."""

    name: str
    ok: bool | None
    detail: str


def examine(config: DistillConfig) -> Iterator[Check]:
    """Every check for a run of `config`, in the order a person wants to read them."""
    yield from _packages()
    yield _device(config)
    yield _store(config)
    yield _key(config)
    yield from _models(config)
    if config.teacher.base_url is not None:
        yield _endpoint(config.teacher.base_url, config)
    if config.tracking.uri is not None and config.tracking.uri.startswith("http"):
        yield _answers("MLflow", config.tracking.uri)
    if prefect_api := os.environ.get("PREFECT_API_URL"):
        yield _answers("Prefect", f"{prefect_api.rstrip('/')}/health")


def _packages() -> Iterator[Check]:
    for name in (*_REQUIRED, *_OPTIONAL):
        try:
            yield Check(name, True, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            extra = _OPTIONAL.get(name)
            remedy = f"pip install 'stillhouse[{extra}]'" if extra else "pip install -c constraints.txt stillhouse"
            yield Check(name, None if extra else False, f"not installed; {remedy}")


def _device(config: DistillConfig) -> Check:
    try:
        import torch
    except ImportError as error:
        return Check("device", False, f"torch cannot be imported: {error}")
    if torch.cuda.is_available():
        return Check("device", True, f"cuda: {torch.cuda.get_device_name(0)}")
    wanted = config.runtime.device
    return Check(
        "device", wanted != "cuda", f"cpu, {torch.get_num_threads()} threads; no CUDA device (asked: {wanted})"
    )


def _store(config: DistillConfig) -> Check:
    try:
        root = ArtifactStore(config.runtime.store).root
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root) as file:
                file.write(b"stillhouse")
        except OSError as error:
            raise unwritable(root, error) from error
    except (ConfigError, StoreError) as error:
        return Check("store", False, str(error))
    return Check("store", True, f"{root} is writable")


def _key(config: DistillConfig) -> Check:
    name = config.runtime.api_key_env
    if os.environ.get(name):
        return Check("API key", True, f"{name} is set")
    needed = config.teacher.base_url is not None
    return Check("API key", False if needed else None, f"{name} is not set" + ("" if needed else "; not needed here"))


def _models(config: DistillConfig) -> Iterator[Check]:
    local = {"student": config.student.model}
    if config.teacher.base_url is None:
        local["teacher"] = config.teacher.model
    if config.on_policy.enabled:
        local["on-policy teacher"] = config.scoring_teacher
    for part, ref in local.items():
        try:
            yield Check(part, True, f"{ref} ({model_identity(ref)})")
        except ConfigError as error:
            yield Check(part, False, str(error))


def _endpoint(base_url: str, config: DistillConfig) -> Check:
    key = os.environ.get(config.runtime.api_key_env, "none")
    return _answers("teacher", f"{base_url.rstrip('/')}/models", {"Authorization": f"Bearer {key}"})


def _answers(name: str, url: str, headers: dict[str, str] | None = None) -> Check:
    try:
        status = httpx.get(url, headers=headers, timeout=_ENDPOINT_TIMEOUT_S).status_code
    except httpx.HTTPError as error:
        return Check(name, False, f"{url}: {type(error).__name__}: {error}")
    return Check(name, status < 400, f"{url}: HTTP {status}")
