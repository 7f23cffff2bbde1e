"""Gives a user's file that imports `rnow` our names for it, while no package of that name is installed."""

import importlib
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Final

_PACKAGE: Final = "rnow"
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "rnow.core": ("RewardArgs", "ToolArgs", "get_response", "llm_judge", "reward", "tool"),
    "rnow.core.llm_judge": ("llm_judge",),
    "rnow.core.reward": ("RewardArgs", "reward"),
    "rnow.core.tool": ("tool",),
    "rnow.models": ("RewardArgs", "ToolArgs", "get_response"),
}


def offer_rnow() -> None:
    """Let `import rnow` find our names where nothing else of that name is found."""
    if _OFFER not in sys.meta_path:
        sys.meta_path.append(_OFFER)


def rnow_hint(error: BaseException) -> str:
    """Return what to add to the message of a failed import of rnow's; empty for other errors."""
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] != _PACKAGE:
        return ""
    offered = "; ".join(f"{module}: {', '.join(names)}" for module, names in _MODULES.items())
    return f". Of rnow, Stillhouse offers {offered}. The rest needs the package itself"


def is_rnow_installed() -> bool:
    """Return whether a file got the package `rnow` itself, whose decorators Stillhouse does not know."""
    module = sys.modules.get(_PACKAGE)
    return module is not None and not isinstance(module.__loader__, _Offer)


class _Offer(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if fullname == _PACKAGE else None

    def exec_module(self, module: ModuleType) -> None:
        names = vars(importlib.import_module("stillhouse.tools.rnow.names"))
        # All at once: importing `rnow.core.tool` later would put that module where `rnow.core` has the function `tool`.
        for name, offered in _MODULES.items():
            made = sys.modules[name] = ModuleType(name)
            made.__path__ = []
            made.__dict__.update({key: names[key] for key in offered})
        module.__dict__.update(core=sys.modules["rnow.core"], models=sys.modules["rnow.models"])


_OFFER: Final = _Offer()
