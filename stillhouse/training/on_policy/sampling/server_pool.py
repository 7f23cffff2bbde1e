"""`ServerPool`: servers that sample with the same weights, some of which may be away."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from stillhouse.errors import EndpointError
from stillhouse.training.on_policy.sampling.sampling_server import SamplingServer
from stillhouse.training.on_policy.sampling.vllm_server import ServerLost

logger = logging.getLogger(__name__)

_RETRY_S: Final = 10.0
"""Between two tries to bring a server back that refused its weights, or was waited for in vain."""


class Asked(NamedTuple):
    """A server that is asked for one completion."""

    server: SamplingServer
    version: int
    """Of the weights to ask for."""
    num_losses: int
    """Of the server so far."""


class ServerPool:
    """Shares requests out among servers. Safe to use from several threads.

    A lost server is waited for in the background and given the weights of `version` before it is asked again, since one
    that was started anew has those of the base model. `say` shows that all are waited for; None when it is over.
    """

    def __init__(
        self,
        servers: Sequence[SamplingServer],
        say: Callable[[str | None], None] = lambda text: None,
        version: int | None = None,
    ) -> None:
        self.servers = servers
        self.version = version
        """Of the weights that all have or will have."""
        self._say = say
        self._changed = threading.Condition()
        self._loading = {server: threading.Lock() for server in servers}
        self._away: dict[SamplingServer, Exception | None] = {}
        """What the last try to bring one back ended with."""
        self._closed = threading.Event()

    def give(self, version: int) -> None:
        """Give all servers the weights of a version; raise EndpointError if one refuses them."""
        self.version = version
        with ThreadPoolExecutor(len(self.servers)) as threads:
            list(threads.map(self._load, self.servers))

    @contextmanager
    def asked(self) -> Iterator[Asked]:
        """Count a request within the block to the server with the fewest under way, once there is one.

        Raises the error of the only server, or EndpointError, if none came back.
        """
        with ExitStack() as counted:
            with self._changed:
                self._changed.wait_for(lambda: len(self._away) < len(self.servers) or all(self._away.values()))
                present = [server for server in self.servers if server not in self._away]
                if not present:
                    errors = [error for error in self._away.values() if error is not None]
                    raise errors[0] if len(errors) == 1 else EndpointError("; ".join(map(str, errors)))
                server = min(present, key=lambda server: server.num_under_way)
                asked = Asked(server, counted.enter_context(server.asked()), server.num_losses)
            yield asked

    def lose(self, server: SamplingServer, num_losses: int, reason: str) -> None:
        """Have a server brought back, unless that was begun since it had been lost `num_losses` times."""
        with self._changed:
            if server.num_losses > num_losses or self._closed.is_set():
                return
            server.num_losses += 1
            self._away[server] = None
            logger.warning("the vLLM server at %s was lost: %s", server.root, reason)
            if len(self._away) == len(self.servers):
                self._say(f"waiting for the vLLM server at {', '.join(one.root for one in self.servers)}")
        threading.Thread(target=self._bring_back, args=[server], name="vllm-back", daemon=True).start()

    def close(self) -> None:
        """End all waiting, and the servers' use."""
        self._closed.set()
        with self._changed:
            self._away = dict.fromkeys(self.servers, EndpointError("the training has ended"))
            self._changed.notify_all()
        for server in self.servers:
            server.close()

    def _load(self, server: SamplingServer) -> None:
        with self._loading[server]:
            if server in self._away:
                return
            assert self.version is not None
            try:
                server.load(self.version)
            except ServerLost as lost:
                self.lose(server, server.num_losses, str(lost))

    def _bring_back(self, server: SamplingServer) -> None:
        while not self._closed.is_set():
            try:
                server.wait()
                with self._loading[server]:
                    if self.version is not None:
                        server.load(self.version)
                    with self._changed:
                        self._away.pop(server)
                        self._changed.notify_all()
                self._say(None)
                return
            except Exception as error:  # whatever it is, requests must not wait for ever
                with self._changed:
                    self._away[server] = error
                    self._changed.notify_all()
            self._closed.wait(_RETRY_S)
