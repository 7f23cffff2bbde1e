"""Podman and buildah with a store of their own."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON_IMAGE: Final = "docker.io/library/python:3.11.14-slim-bookworm"
_OF_PIP: Final = ("cert", "find-links", "index-url", "timeout")
"""Settings that decide where packages come from."""
STAND_INS: Final = Path(__file__).parent / "stand_ins"
PROGRAMS: Final = ("buildah", "podman", "runc", "netavark", "aardvark-dns", "debootstrap")
"""Debian's packages of the same names are needed; some lie outside the PATH."""
_WITHOUT_LIMITS: Final = '''#!/usr/bin/python3
"""runc without limits on files and processes: root may not raise the hard ones in every machine."""
import json, os, sys

arguments = sys.argv[1:]
files = [value.partition("=")[2] for value in arguments if value.startswith("--process=")]
for flag, name in (("--bundle", "config.json"), ("--process", "")):
    if flag in arguments:
        files.append(os.path.join(arguments[arguments.index(flag) + 1], name).rstrip("/"))
for name in files:
    with open(name) as file:
        spec = json.load(file)
    spec.get("process", spec).pop("rlimits", None)
    with open(name, "w") as file:
        json.dump(spec, file)
os.execv(RUNC, ["runc", *arguments])
'''


class Containers:
    """Runs `podman` and `buildah` on images and containers that lie below a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        runtime = folder / "without-limits"
        runtime.write_text(_WITHOUT_LIMITS.replace("RUNC", repr(shutil.which("runc"))))
        runtime.chmod(0o755)
        storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
        engine = 'runtime = "without-limits"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        runtimes = f'[engine.runtimes]\nwithout-limits = ["{runtime}"]\n'
        (folder / "storage.conf").write_text(storage)
        (folder / "containers.conf").write_text(
            f'[network]\nnetwork_backend = "netavark"\n[engine]\n{engine}{runtimes}'
        )
        (folder / "registries.conf").write_text('unqualified-search-registries = ["docker.io"]\n')
        self.env = {
            **os.environ,
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }

    def run(
        self, *command: str | Path, check: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; one that fails shows what it said."""
        done = subprocess.run(
            list(map(str, command)), env={**self.env, **(env or {})}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done

    def has(self, image: str) -> bool:
        """Return whether the image is in the store, or could be fetched from its registry."""
        if self.run("podman", "image", "exists", image, check=False).returncode == 0:
            return True
        return self.run("podman", "pull", "--quiet", image, check=False).returncode == 0

    def build(self, context: Path, image: str, options: Sequence[str]) -> None:
        """Build an image; what it begins from has to be in the store."""
        isolated = ("--isolation", "chroot", "--pull-never", "--format", "docker", "--layers")
        self.run("buildah", "bud", *isolated, "--tag", image, *options, context)

    def inspect(self, image: str) -> dict[str, Any]:
        """Return what podman knows of an image."""
        [known] = json.loads(self.run("podman", "image", "inspect", image).stdout)
        return dict(known)

    def make_stand_in(self, image: str) -> None:
        """Make a stand-in of an image, unless it is there or its registry can be reached."""
        if self.has(image):
            return
        if image == PYTHON_IMAGE:
            self._make_base()
            return
        [file] = (file for file in STAND_INS.glob("*.Dockerfile") if file.name.partition(".")[0] in image)
        self.build(STAND_INS, image, ["--file", str(file), "--build-arg", f"BASE={PYTHON_IMAGE}"])

    def pip_options(self, without: Collection[str] = ()) -> list[str]:
        """Return options of a build that give its pip the settings of this machine's, with the files that they name."""
        settings, mounted = {}, {"/etc/ssl/certs"}
        listed = self.run(sys.executable, "-m", "pip", "config", "list").stdout
        for name, value in re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE):
            if name in _OF_PIP and name not in without:
                settings[name] = value
                mounted |= {path for path in re.findall(r"/[\w./-]+", value) if Path(path).is_dir()}
        file = self.folder / "pip.conf"
        file.write_text("".join(["[global]\n", *(f"{name} = {value}\n" for name, value in settings.items())]))
        volumes = [f"{file}:/etc/pip.conf:ro", *(f"{path}:{path}:ro" for path in sorted(mounted))]
        return [option for volume in volumes for option in ("--volume", volume)]

    def _make_base(self) -> None:
        context = self.folder / "base"
        packages = "--include=ca-certificates,netbase,tzdata,python3.11,python3.11-venv,python3-venv"
        shutil.rmtree(context, ignore_errors=True)
        self.run("debootstrap", "--variant=minbase", packages, "bookworm", context / "root")
        for pattern in ("archives/*.deb", "*.bin", "../../lib/apt/lists/*_*"):
            for needless in context.glob(f"root/var/cache/apt/{pattern}"):
                needless.unlink()
        self.run("tar", "-C", context / "root", "--one-file-system", "-cf", context / "base.tar", ".")
        shutil.rmtree(context / "root")
        self.build(context, PYTHON_IMAGE, ["--file", str(STAND_INS / "python.Dockerfile")])
        shutil.rmtree(context)
