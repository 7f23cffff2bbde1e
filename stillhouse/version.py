"""The version of Stillhouse that runs."""

from importlib.metadata import PackageNotFoundError, version


def code_version() -> str:
    """The installed version; `uninstalled` where a checkout runs by PYTHONPATH alone."""
    try:
        return version("stillhouse")
    except PackageNotFoundError:
        return "uninstalled"
