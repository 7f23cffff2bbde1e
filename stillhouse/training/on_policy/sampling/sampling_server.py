"""`SamplingServer`: a vLLM server, and the versions of the student's weights that it was given.

An adapter is loaded under a name that carries its version, so that nothing cached under one name is used for other
weights; requests under way end with the adapter that they began with. Whole weights are loaded in place: the server
stops between two tokens, forgets keys and values of the old weights, and goes on with the new ones.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stillhouse.errors import EndpointError
from stillhouse.store import digest
from stillhouse.training.on_policy.sampling.vllm_server import VllmServer


class SamplingServer:
    """One server, which reads weights in `folder/version-N`; raises EndpointError if it cannot be reached.

    Safe to use from several threads, of which one at a time gives it weights.
    """

    def __init__(self, http: VllmServer, folder: Path, *, is_adapter: bool) -> None:
        self._http, self._folder, self._is_adapter = http, folder, is_adapter
        self.root = http.root
        self._prefix = f"stillhouse-{digest([str(folder)])[:8]}-v"
        self._lock = threading.Lock()
        self._under_way: Counter[int] = Counter()
        self._version = -1
        self.num_losses = 0
        """How often it was lost."""
        served = http.models(is_first=True)
        # Adapters of ours are those of a killed process.
        self._loaded = {model.id for model in served if model.id.startswith(self._prefix)}
        base = next((model for model in served if not model.is_adapter), served[0])
        self._base = base.id
        self.max_context = base.max_context
        """Most tokens of a sequence that it holds; None where it does not say."""

    @property
    def num_under_way(self) -> int:
        """Return the number of requests that it has not answered yet."""
        return self._under_way.total()

    @property
    def needed(self) -> set[int]:
        """Return the versions whose adapters requests under way need."""
        with self._lock:
            return {version for version, count in self._under_way.items() if count} if self._is_adapter else set()

    @contextmanager
    def asked(self) -> Iterator[int]:
        """Count a request within the block; enter the version of the weights that it has to ask for."""
        with self._lock:
            version = self._version
            self._under_way[version] += 1
        try:
            yield version
        finally:
            with self._lock:
                self._under_way[version] -= 1

    def complete(self, version: int, body: dict[str, Any]) -> Any:
        """Return the answer to the body of a request; raises as `VllmServer.complete`."""
        whole = {"model": self._base, "return_weight_versions": True}
        return self._http.complete(body | ({"model": self._name(version)} if self._is_adapter else whole))

    def versions(self, choice: dict[str, Any], asked: int, count: int) -> list[int]:
        """Return the versions that sampled the `count` tokens of an answer to a request that asked for one of them.

        Where a server before 0.33 does not tell, all count as old as the oldest that it can have been.
        """
        versions = [asked] * count
        for span in choice.get("weight_versions") or ():
            first, end = span["start"], span["end"]
            versions[first:end] = [int(span["version"].removeprefix(self._prefix))] * (end - first)
        return versions

    def has_weights(self) -> bool:
        """Return whether its weights are of this training; a server without an adapter says so itself."""
        return self._is_adapter or self._http.weight_version().startswith(self._prefix)

    def load(self, version: int) -> None:
        """Give it the weights of a version, for all requests from now on; raises as `VllmServer.load`."""
        name, path = self._name(version), str(self._folder / f"version-{version}")
        if self._is_adapter:
            # An adapter of this name may be another process's.
            self._unload({name})
            self._http.load("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
            self._loaded.add(name)
        else:
            self._http.load("/pause?mode=keep", None)
            try:
                self._http.load("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}})
                self._http.load("/update_weight_version", {"new_version": name})
            finally:
                self._http.load("/resume", None)
        with self._lock:
            self._version = version
        self._unload(self._loaded - set(map(self._name, {version, *self.needed})))

    def wait(self) -> None:
        """Wait until a lost server answers again; raise EndpointError if it does not."""
        self._loaded = {model.id for model in self._http.models() if model.id.startswith(self._prefix)}

    def wake(self) -> None:
        """Have a sleeping server take its device's memory."""
        self._http.post("/wake_up", None)

    def sleep(self) -> None:
        """Have it give its device's memory back."""
        self._http.post("/sleep?level=1", None)

    def close(self) -> None:
        """Take the adapters away; errors are ignored, and nothing is retried."""
        self._http.stop()
        self._unload(set(self._loaded))
        self._http.close()

    def _name(self, version: int) -> str:
        return f"{self._prefix}{version}"

    def _unload(self, names: set[str]) -> None:
        for name in names & self._loaded:
            self._loaded.discard(name)
            # One that was started anew does not have it.
            with suppress(EndpointError):
                self._http.post("/v1/unload_lora_adapter", {"lora_name": name})
