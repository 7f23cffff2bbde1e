"""Asks OSV (https://osv.dev) whether a pinned package has a known vulnerability, by pip-audit; `make audit` runs it.

Leaves with 1 when there is one that `audit-ignored.txt` does not name. Where OSV cannot be reached it says that nothing
was audited and leaves with 0: a network that is away is no finding.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import httpx

ROOT: Final = Path(__file__).resolve().parents[1]
OSV: Final = "https://api.osv.dev/v1/query"
TIMEOUT_S: Final = 15


def main() -> int:
    """Audits and says what was found; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt", help="the pinned packages")
    parser.add_argument("--ignored", type=Path, default=ROOT / ".ci" / "audit-ignored.txt", help="ids and reasons")
    parser.add_argument("--service", default=OSV, help="address of OSV's query")
    given = parser.parse_args()
    ignored = read_ignored(given.ignored)
    if (reason := unreachable(given.service)) is not None:
        print(f"audit: NOT DONE, no package was checked: {given.service} cannot be reached ({reason})")
        return 0
    packages = audit(given.constraints, given.service, list(ignored))
    for line in (lines := findings(packages)):
        print(f"audit: {line}")
    beside = f", {len(ignored)} ids ignored by {given.ignored.name}" if ignored else ""
    print(f"audit: {len(packages)} packages checked, {len(lines)} findings{beside}")
    return 1 if lines or not packages else 0


def read_ignored(path: Path) -> dict[str, str]:
    """Ids of vulnerabilities that do not reach us, each with the reason on its line."""
    ignored = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.strip().partition(" ")
            if not reason.strip():
                sys.exit(f"audit: {path}: {name} has no reason; expected `ID why it does not reach us`")
            ignored[name] = reason.strip()
    return ignored


def unreachable(service: str) -> str | None:
    """What keeps the service from answering; None where it answers."""
    question = {"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "26.0"}
    try:
        httpx.post(service, json=question, timeout=TIMEOUT_S).raise_for_status()
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def audit(constraints: Path, service: str, ignored: list[str]) -> list[dict[str, Any]]:
    """What pip-audit says of each package."""
    options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", f"--timeout={TIMEOUT_S}"]
    command = [sys.executable, "-m", "pip_audit", "-r", str(constraints), "-s", "osv", "--osv-url", service, *options]
    asked = subprocess.run(
        [*command, *(f"--ignore-vuln={name}" for name in ignored)], capture_output=True, text=True, check=False
    )
    try:
        packages: list[dict[str, Any]] = json.loads(asked.stdout)["dependencies"]
    except ValueError:
        sys.exit(f"audit: pip-audit broke off:\n{asked.stderr.strip()}")
    return packages


def findings(packages: list[dict[str, Any]]) -> list[str]:
    """One line for each vulnerability, and for each package that could not be checked."""
    lines = []
    for package in packages:
        if "skip_reason" in package:
            lines.append(f"{package['name']}: not checked: {package['skip_reason']}")
        for found in package.get("vulns", []):
            mended = ", ".join(found["fix_versions"]) or "no release yet"
            names = "/".join([found["id"], *found["aliases"]])
            lines.append(f"{package['name']} {package['version']}: {names}, mended in {mended}: {found['description']}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
