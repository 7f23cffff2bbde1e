"""Labels and their filters: each is declared in one module of this package, which is found by being there.

A declaration holds everything that the rest reads: the columns in the files, how they are computed from a trajectory's
texts, their figures in the report, the limits in `dataset.filters`, and why and when a row is dropped. What needs a
model, a file or other rows is computed by a labeller in `stillhouse.dataset`; its declaration stands here all the same.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from stillhouse.labels.declare import Filter, Label, Limit

_DECLARED: Final = [
    value
    for module in sorted(found.name for found in iter_modules(__path__))
    for value in vars(import_module(f"{__name__}.{module}")).values()
    if isinstance(value, Label)
]
LABELS: Final[tuple[Label, ...]] = tuple(sorted(_DECLARED, key=lambda label: label.place))
"""In the order of their columns."""
FILTERS: Final[tuple[Filter, ...]] = tuple(
    sorted((rule for label in LABELS for rule in label.filters), key=lambda rule: rule.place)
)
"""In the order of the funnel."""
LIMITS: Final[tuple[Limit, ...]] = tuple(dict.fromkeys(rule.limit for rule in FILTERS if rule.limit is not None))
"""The fields of `dataset.filters`, in the order of the funnel."""
ON_REQUEST: Final[tuple[str, ...]] = tuple(label.on_request for label in LABELS if label.on_request is not None)
"""Names of the labels that are measured only where a filter goes by them or `dataset.labels.measure` names them."""
