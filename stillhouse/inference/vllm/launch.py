"""The command that serves a model by vLLM, with devices and memory for it."""

import json
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from stillhouse.chat.refs import adapter_base, resolve_model
from stillhouse.config import RuntimeConfig
from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.errors import ConfigError, EndpointError, StillhouseError
from stillhouse.inference.vllm.environment import Gpu, gpus
from stillhouse.inference.vllm.process import START_TIMEOUT_S, VllmProcess, starting
from stillhouse.store import ArtifactStore
from stillhouse.types import JsonObject

_GPU_SEQUENCES: Final = 256
_CPU_SEQUENCES: Final = 64
"""Completions that a server samples at once, memory permitting."""
_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""That --max-lora-rank takes."""
_UNSERVABLE: Final = ("modules_to_save", "target_parameters", "use_dora", "rank_pattern", "alpha_pattern")
"""Settings of an adapter that vLLM does not apply."""
_ROOM_TOKENS: Final = 64 * 4096
"""Tokens whose keys and values have room on a GPU that others share: 64 sequences of 4,096."""
_OVERHEAD: Final = 4 << 30
"""Bytes of a GPU for activations and graphs."""
_FREE_SHARE: Final = 0.9
_logger = logging.getLogger("stillhouse.vllm")


@dataclass(frozen=True, slots=True)
class Launch:
    """One model and how it is served; `options` are further flags of `vllm serve`, `variables` of its environment."""

    python: Path
    ref: str
    runtime: RuntimeConfig
    chat_template_kwargs: ChatTemplateKwargs = field(default_factory=dict)
    options: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    avoided_gpus: Collection[int] = ()
    """Numbers in torch of GPUs that are taken only where there are no others."""

    def start(self, start_timeout_s: float = START_TIMEOUT_S, most: int = 1) -> list[VllmProcess]:
        """Return the server once it answers, or up to `most` of them if there are idle GPUs for more than one.

        Raises:
            ConfigError: the model is not there, or is an adapter that vLLM does not serve.
            EndpointError: one did not come up, or no GPU has room for the first.
        """
        with starting, ExitStack() as begun:
            folder = Path(resolve_model(self.ref))
            base = resolve_model(adapter_base(folder) or self.ref)
            facts, weights = _facts_of(base)
            command = [
                str(self.python),
                "-m",
                "vllm.entrypoints.cli.main",
                "serve",
                base,
                "--generation-config",
                "vllm",
            ]
            command += ["--max-model-len", "-1", "--max-num-seqs", str(self.max_sequences), "--max-logprobs", "-1"]
            # By itself it rounds weights of 32 bits to 16.
            command += ["--dtype", "float32"] if facts.get("dtype", facts.get("torch_dtype")) == "float32" else []
            command += [*self._named(folder), *self.options]
            if self.chat_template_kwargs:
                command += ["--default-chat-template-kwargs", json.dumps(dict(self.chat_template_kwargs))]
            root = ArtifactStore(self.runtime.store, self.runtime.scratch).root
            log = root / "vllm" / f"{os.getpid()}-{Path(self.ref).name.replace(':', '-')}.log"
            servers: list[VllmProcess] = []
            for number, (devices, variables) in enumerate(self._placed(weights, facts, most)):
                named = log.with_stem(f"{log.stem}-{number}") if number else log
                servers.append(
                    VllmProcess(self.ref, [*command, *devices], {**variables, **self.variables}, named, start_timeout_s)
                )
                begun.callback(servers[-1].stop)
            for server in servers:
                server.wait()
            begun.pop_all()
            return servers

    @property
    def max_sequences(self) -> int:
        """Return how many completions the server samples at once."""
        return _CPU_SEQUENCES if self._is_on_cpu else _GPU_SEQUENCES

    @property
    def _is_on_cpu(self) -> bool:
        return self.runtime.device == "cpu" or not gpus()

    def _named(self, folder: Path) -> list[str]:
        """Return the flags by which the model answers under its ref, with calls of tools left in the text.

        They are read by this project's own reader: the Hermes parser leaves what it cannot read where it is.
        """
        flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        if not (folder / "adapter_config.json").is_file():
            return [*flags, "--served-model-name", self.ref]
        rank = require_servable(folder)
        adapter = json.dumps({"name": self.ref, "path": str(folder)})
        flags += ["--tokenizer", str(folder), "--served-model-name", f"base of {self.ref}"]
        return [*flags, "--enable-lora", "--max-lora-rank", str(rank), "--lora-modules", adapter]

    def _placed(self, weights: int, facts: JsonObject, most: int) -> list[tuple[list[str], dict[str, str]]]:
        """Return the flags and variables of devices and memory, for each server."""
        # A key in the environment would be asked of every request.
        variables = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_API_KEY": ""}
        room = _ROOM_TOKENS * kv_bytes(facts)
        if self._is_on_cpu:
            if self.runtime.device == "cuda":
                raise ConfigError(
                    "runtime.device is `cuda`, but NVML finds no GPU; use `auto` or `cpu`", code="no-cuda"
                )
            free = psutil.virtual_memory().available - weights
            variables["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, min(room, free // 4) >> 30))
            if self.runtime.num_threads is not None:
                cores = sorted(os.sched_getaffinity(0))[: self.runtime.num_threads]
                variables["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
            return [(["--enforce-eager"], variables)]
        found = gpus()
        free_ones = [gpu for i, gpu in enumerate(found) if i not in self.avoided_gpus] or found
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return [
            (
                [
                    f"--gpu-memory-utilization={memory_share(chosen, weights, room):.3f}",
                    f"--tensor-parallel-size={len(chosen)}",
                ],
                {**variables, "CUDA_VISIBLE_DEVICES": ",".join(gpu.name for gpu in chosen)},
            )
            for chosen in places(free_ones, weights, facts, most)
        ]


def started(launch: Launch, start_timeout_s: float = START_TIMEOUT_S, most: int = 1) -> list[VllmProcess]:
    """Return the servers once they answer; none where they do not and the config leaves the engine to this machine.

    Arguments as of `Launch.start`, which raises where `runtime.engine` is `vllm`.
    """
    try:
        return launch.start(start_timeout_s, most)
    except StillhouseError as error:
        if launch.runtime.engine == "vllm":
            raise
        _logger.warning("%s is not served by vLLM but by transformers, which is slower: %s", launch.ref, error)
        return []


def places(found: Sequence[Gpu], weights: int, facts: JsonObject, most: int) -> list[list[Gpu]]:
    """Return the GPUs of each of up to `most` servers of a model; all but the first have theirs to themselves.

    Raises as `place` if there is no room for the first.
    """
    chosen = [place(found, weights, facts)]
    with suppress(EndpointError):
        while len(chosen) < most:
            taken = {gpu.name for group in chosen for gpu in group}
            idle = [gpu for gpu in found if gpu.name not in taken and gpu.free >= _FREE_SHARE * gpu.total]
            chosen.append(place(idle, weights, facts))
    return chosen


def place(found: Sequence[Gpu], weights: int, facts: JsonObject) -> list[Gpu]:
    """Return as few GPUs as hold a model, those with the most free memory first.

    `weights` are in bytes. Raise EndpointError if it fits on none.
    """
    heads = int(facts.get("num_attention_heads") or 1)
    by_room = sorted(found, key=lambda gpu: -gpu.free)
    for size in (size for size in (1, 2, 4, 8) if size <= len(by_room) and heads % size == 0):
        if all(server_bytes(weights, size) <= _FREE_SHARE * gpu.free for gpu in by_room[:size]):
            return by_room[:size]
    free = ", ".join(f"{gpu.free / 2**30:.0f} GiB" for gpu in by_room)
    raise EndpointError(
        f"the weights of {weights / 2**30:.1f} GiB do not fit the free memory of the GPUs ({free}), with "
        f"{_OVERHEAD >> 30} GiB beside them on each; end other programs, take a smaller model or more GPUs"
    )


def server_bytes(weights: float, num_gpus: int, room: int = 0) -> float:
    """Return the bytes that a server takes on each of its GPUs, with `room` for keys and values in all."""
    return (1.1 * weights + room) / num_gpus + _OVERHEAD


def memory_share(gpus: Sequence[Gpu], weights: int, room: int) -> float:
    """Return the share of each whole GPU that a server takes, within what is free: all of it for unknown weights, of 0.

    `room` are the bytes for keys and values.
    """
    needed = server_bytes(weights, len(gpus), room) if weights else float("inf")
    return min(needed / min(gpu.total for gpu in gpus), *(_FREE_SHARE * gpu.free / gpu.total for gpu in gpus))


def require_servable(adapter: Path) -> int:
    """Return the --max-lora-rank for an adapter's folder; raise ConfigError if vLLM does not serve such an adapter."""
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    if reason := refusal(settings):
        raise ConfigError(f"{adapter}: {reason}; merge it into its base, or set runtime.engine to `transformers`")
    return lora_rank(settings["r"])


def refusal(settings: Mapping[str, Any]) -> str | None:
    """Return why vLLM would not serve an adapter of these settings as it is; None if it does."""
    found = [name for name in _UNSERVABLE if settings.get(name)]
    found += [f"rank {settings['r']}"] if settings["r"] > _RANKS[-1] else []
    return f"vLLM serves no adapter with {', '.join(found)}" if found else None


def lora_rank(rank: int) -> int:
    """Return the least --max-lora-rank that holds adapters of a rank."""
    return next((allowed for allowed in _RANKS if allowed >= rank), _RANKS[-1])


def kv_bytes(facts: JsonObject) -> int:
    """Return the bytes of a token's keys and values in 16 bits; 0 where the config does not tell."""
    heads = facts.get("num_key_value_heads") or facts.get("num_attention_heads") or 0
    size = facts.get("head_dim") or facts.get("hidden_size", 0) // (facts.get("num_attention_heads") or 1)
    return 4 * facts.get("num_hidden_layers", 0) * heads * size


def model_facts(ref: str) -> tuple[JsonObject, int]:
    """Return the config and the bytes of the weights of a ref, or of its base; {} and 0 where they are not here.

    Raises ConfigError as `resolve_model`.
    """
    return _facts_of(resolve_model(adapter_base(Path(resolve_model(ref))) or ref))


def _facts_of(model: str) -> tuple[JsonObject, int]:
    """Return a model's config and the bytes of its weights; {} and 0 where they are not on this machine."""
    folder = Path(model)
    if not folder.is_dir():
        # Takes a tenth of a second to import.
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            folder = Path(snapshot_download(model, local_files_only=True))
        except (HfHubHTTPError, LocalEntryNotFoundError, ValueError):
            return {}, 0
    if not (folder / "config.json").is_file():
        return {}, 0
    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    index, weights = folder / "model.safetensors.index.json", None
    if index.is_file():
        # Which is there before the weights are, and does not count other files beside them.
        weights = json.loads(index.read_text(encoding="utf-8")).get("metadata", {}).get("total_size")
    weights = weights or sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return {**facts, **facts.get("text_config", {})}, weights
