"""Machines on this one: each a network namespace with processes, a hostname and a folder of its own.

Their addresses, 10.78.0.N, lie on a bridge in a namespace of its own and reach nothing else.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import psutil

from tests.outside.containers import ROOT

PROGRAMS: Final = ("ip", "nsenter", "unshare", "tini")
BIN: Final = Path(sys.executable).parent
HOME: Final = "/srv"
"""Every machine's own folder, in which its commands run."""
SHARED: Final = "/mnt"
"""A folder that all machines of a network share."""
_BOOT: Final = """
hostname "$1"
mount --make-rprivate /
mount --bind "$2" /srv
mount --bind "$3" /mnt
mount --bind "$2/hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
exec tini -s -- sleep infinity
"""


def ip(*arguments: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Host:
    """One machine. `kill` is its loss with all that runs on it; `boot` brings it back, or another in its place."""

    def __init__(self, name: str, number: int, folder: Path, env: Mapping[str, str]) -> None:
        self.name, self.address = name, f"10.78.0.{number}"
        self.folder = folder
        self._namespace = f"stillhouse-{name}"
        # Nothing of this machine's own settings, servers and keys.
        self.env = {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8", **env}
        self.env |= {"HOME": HOME, "TMPDIR": f"{HOME}/tmp", "OMP_NUM_THREADS": "1"}
        self._unshared: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def boot(self) -> None:
        """Start the machine with an empty folder but for the project's configs."""
        for name in ("tmp", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("configs", "deployments"):
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        isolated = ["unshare", "-m", "-u", "-i", "-p", "--fork", "--kill-child", "--mount-proc"]
        command = ["ip", "netns", "exec", self._namespace, *isolated, "sh", "-c", _BOOT, "sh", self.name]
        shared = self.folder.with_name("shared")
        shared.mkdir(exist_ok=True)
        self._unshared = subprocess.Popen([*command, str(self.folder), str(shared)], start_new_session=True)
        wait_until(lambda: self._init().name() == "tini", f"{self.name} is up")

    def kill(self) -> None:
        """End every process of the machine at once."""
        if self._unshared is not None:
            for process in psutil.Process(self._unshared.pid).children():
                process.kill()
            for entered in (self._unshared, *self._started):
                entered.wait()
            self._unshared, self._started = None, []

    def run(self, *command: str) -> str:
        """Return what a command says that runs to its good end."""
        done = subprocess.run(self._entered(command), env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a command whose output goes to a log of that name."""
        with (self.folder / "logs" / name).open("ab") as log:
            entered = subprocess.Popen(
                self._entered(command), env=self.env, stdout=log, stderr=log, start_new_session=True
            )
        self._started.append(entered)

    def log(self, name: str) -> str:
        """Return what a command that was started has said."""
        return (self.folder / "logs" / name).read_text(errors="replace")

    def _init(self) -> psutil.Process:
        assert self._unshared is not None
        return next(iter(psutil.Process(self._unshared.pid).children()))

    def _entered(self, command: tuple[str, ...]) -> list[str]:
        enter = ["nsenter", "-t", str(self._init().pid), "-m", "-u", "-i", "-n", "-p"]
        return [*enter, "sh", "-c", f'cd {HOME} && exec "$@"', "sh", *command]


class Network:
    """Hosts on one bridge; leaving the block ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hosts: list[Host] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._namespace("switch")
        ip("-n", "stillhouse-switch", "link", "add", "bridge", "type", "bridge")
        ip("-n", "stillhouse-switch", "link", "set", "bridge", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.kill()
        self._stack.close()

    def host(self, name: str, env: Mapping[str, str]) -> Host:
        """Return a machine that has booted."""
        host = Host(name, len(self._hosts) + 1, self._folder / name, env)
        inside, port = f"stillhouse-{name}", f"port-{name}"
        self._namespace(name)
        ip("-n", inside, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", "stillhouse-switch")
        ip("-n", "stillhouse-switch", "link", "set", port, "master", "bridge", "up")
        ip("-n", inside, "address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            ip("-n", inside, "link", "set", device, "up")
        self._hosts.append(host)
        host.boot()
        return host

    def _namespace(self, name: str) -> None:
        ip("netns", "add", f"stillhouse-{name}")
        self._stack.callback(ip, "netns", "delete", f"stillhouse-{name}")


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 900) -> Any:
    """Return what `condition` returns once it is true; a child that is not there yet is no error."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if value := condition():
                return value
        except (psutil.NoSuchProcess, StopIteration, AssertionError):
            pass
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.5)
