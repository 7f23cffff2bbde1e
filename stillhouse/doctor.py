"""Shows what works on this machine and what does not, before a run depends on it."""

import asyncio
import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

import httpx

from stillhouse.chat.refs import model_identity
from stillhouse.config import DistillConfig, ModelRole, TeacherConfig
from stillhouse.errors import ConfigError, StoreError
from stillhouse.inference.budget import price_of, require_prices
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inspection import Finding
from stillhouse.keys import place_of, unset
from stillhouse.store import ArtifactStore

_REQUIRED = ("prefect", "mlflow", "torch", "transformers", "peft", "aiohttp", "pyarrow")
_OPTIONAL = {"datasets": "hub"}
_ENDPOINT_TIMEOUT_S = 5.0


def examine(config: DistillConfig) -> Iterator[Finding]:
    """Yield every check for a run of `config`, in the order a person wants to read them."""
    sections = {ModelRole.TEACHER: config.teacher}
    if config.dataset.judge.enabled:
        sections[ModelRole.JUDGE] = config.dataset.judge.model
    yield from _packages()
    yield _device(config)
    yield _store(config)
    yield from _keys(sections, config)
    yield from _models(sections, config)
    for role, section in sections.items():
        if section.base_url is not None:
            yield _price(role, section.base_url, section, config)
    yield from _servers(config)


def _packages() -> Iterator[Finding]:
    for name in (*_REQUIRED, *_OPTIONAL):
        try:
            yield Finding(name, True, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            extra = _OPTIONAL.get(name)
            remedy = f"pip install 'stillhouse[{extra}]'" if extra else "pip install -c constraints.txt stillhouse"
            yield Finding(name, None if extra else False, f"not installed; {remedy}")


def _device(config: DistillConfig) -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("device", False, f"torch cannot be imported: {error}")
    if torch.cuda.is_available():
        return Finding("device", True, f"cuda: {torch.cuda.get_device_name(0)}")
    device = config.runtime.device
    detail = f"cpu, {torch.get_num_threads()} threads; no CUDA device (asked: {device})"
    return Finding("device", device != "cuda", detail)


def _store(config: DistillConfig) -> Finding:
    store = ArtifactStore(config.runtime.store, config.runtime.scratch)
    try:
        store.check()
    except (ConfigError, StoreError) as error:
        return Finding("store", False, str(error))
    remote = "" if store.remote is None else f", and so is {store.remote.url}"
    return Finding("store", True, f"{store.root} is writable{remote}")


def _keys(sections: Mapping[ModelRole, TeacherConfig], config: DistillConfig) -> Iterator[Finding]:
    """Yield one check for each variable, however many models share it."""
    needed: dict[str, bool] = {}
    for role, section in sections.items():
        name = role.key_variable(config.runtime)
        needed[name] = needed.get(name, False) or section.base_url is not None
    for name, is_needed in needed.items():
        label = "API key" if len(needed) == 1 else f"API key {name}"
        if os.environ.get(name):
            yield Finding(label, True, f"{name} is set: found in {place_of(name)}")
        elif is_needed:
            yield Finding(label, False, unset(name))
        else:
            yield Finding(label, None, f"{name} is not set; not needed here")


def _models(sections: Mapping[ModelRole, TeacherConfig], config: DistillConfig) -> Iterator[Finding]:
    local = {"student": config.student.model}
    local |= {role.name.lower(): section.model for role, section in sections.items() if section.base_url is None}
    if config.on_policy.enabled and config.on_policy.needs_teacher:
        local |= {f"on-policy {name}": ref for name, ref in config.local_teachers.items()}
    for part, ref in local.items():
        try:
            yield Finding(part, True, f"{ref} ({model_identity(ref)})")
        except ConfigError as error:
            yield Finding(part, False, str(error))


def _servers(config: DistillConfig) -> Iterator[Finding]:
    mlflow = config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if mlflow.startswith("http"):
        name = os.environ.get("MLFLOW_TRACKING_USERNAME")
        login = None if name is None else (name, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
        yield _check_response("MLflow", mlflow, login)
    if prefect_api := os.environ.get("PREFECT_API_URL"):
        name, _, password = os.environ.get("PREFECT_API_AUTH_STRING", "").partition(":")
        # The path `health` needs no login.
        version = f"{prefect_api.rstrip('/')}/admin/version"
        yield _check_response("Prefect", version, (name, password) if name else None)


def _check_response(name: str, url: str, login: tuple[str, str] | None) -> Finding:
    try:
        # The body, which may be large, is not read.
        with httpx.stream("GET", url, auth=login, timeout=_ENDPOINT_TIMEOUT_S) as response:
            status = response.status_code
    except httpx.HTTPError as error:
        return Finding(name, False, f"{url}: {type(error).__name__}: {error}")
    return Finding(name, status < 400, f"{url}: HTTP {status}")


def _price(role: ModelRole, base_url: str, section: TeacherConfig, config: DistillConfig) -> Finding:
    """Return what the model costs, and by which source; an unknown price fails where the budget needs it."""
    name = f"{role.name.lower()} price"
    key = os.environ.get(role.key_variable(config.runtime), "none")
    endpoint = Endpoint(base_url, section.model, section.model, api_key=key, role=role)
    try:
        price = asyncio.run(price_of(endpoint, section))
        require_prices(replace(endpoint, price=price), config.budget)
    except ConfigError as error:
        return Finding(name, False, str(error))
    if price is None:
        return Finding(name, None, f"unknown; set {role.section}.usd_per_million_tokens or prices_file")
    return Finding(name, not price.unknown, f"{price}: {price.source}")
