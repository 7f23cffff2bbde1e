"""Which teacher scores which prompt."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from stillhouse.errors import ConfigError, InputError
from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.teacher import Teacher
from stillhouse.training.on_policy.teachers.views import ViewBuilder
from stillhouse.training.on_policy.trajectories import SampledTrajectory
from stillhouse.types import Prompt, PromptMetadata

logger = logging.getLogger(__name__)

_SHOWN_VALUES: Final = 10
_MOST_LABELS: Final = 32
"""More of them would be a wall of charts."""


@dataclass(frozen=True, slots=True)
class Route:
    """A teacher with the prompts it is for."""

    name: str
    teacher: Teacher | None
    """None where its coefficient is 0: its prompts have no KL, and nobody scores them."""
    values: tuple[str, ...] = ()
    """Of what the config routes by; none stands for every prompt that no other teacher is for."""
    views: ViewBuilder | None = None
    """What the teacher reads, where there is a teacher."""


class TeacherRouter:
    """All teachers of a training; closed as one.

    Args:
        routes: the teachers; none for a training on rewards alone.
        route_by: `tag`, or a key of a prompt's metadata.
        unrouted: what becomes of a prompt that no teacher is for.

    Raises:
        ConfigError: two teachers are for the same prompts.
    """

    def __init__(
        self, routes: Sequence[Route], *, route_by: str = "tag", unrouted: Literal["error", "no_kl"] = "error"
    ) -> None:
        self._routes = tuple(routes)
        self._route_by = route_by
        self._unrouted = unrouted
        self._by_value: dict[str | None, Route] = {}
        for route in routes:
            for value in route.values or (None,):
                other = self._by_value.setdefault(value, route)
                if other is not route:
                    what = "prompts without a teacher of their own" if value is None else f"{route_by} {value!r}"
                    raise ConfigError(
                        f"teachers {other.name!r} and {route.name!r} are both for {what}; a prompt has one teacher. "
                        "Give them `routes` that differ"
                    )
        self.by_name: Mapping[str, Teacher] = {
            route.name: route.teacher for route in routes if route.teacher is not None
        }
        self._num_added: dict[str, int] = {}

    @property
    def max_context(self) -> int | None:
        """Most tokens of a trajectory that every teacher can read, with its longest hint once `check` has seen them."""
        known = [
            teacher.max_context - self._num_added.get(name, 0)
            for name, teacher in self.by_name.items()
            if teacher.max_context is not None
        ]
        return min(known, default=None)

    def route(self, metadata: PromptMetadata | None) -> str | None:
        """The value of a prompt that decides on its teacher; None where it has none."""
        if metadata is None:
            return None
        value = metadata.tag if self._route_by == "tag" else metadata.metadata.get(self._route_by)
        return None if value is None else str(value)

    def label(self, metadata: PromptMetadata | None) -> str | None:
        """The route as part of a metric's name, where MLflow takes letters, digits and a few signs."""
        route = self.route(metadata)
        return None if route is None else re.sub(r"[^\w. -]", "_", route)

    def labels(self, prompts: Iterable[Prompt], metadata: Mapping[str, PromptMetadata]) -> list[str]:
        """What figures are reported by; nothing where it does not tell prompts apart, or does too well."""
        found = {self.label(metadata.get(prompt.id)) for prompt in prompts}
        labels = sorted(label for label in found if label is not None)
        return labels if len(found) > 1 and len(labels) <= _MOST_LABELS else []

    def select(self, metadata: PromptMetadata | None) -> Teacher | None:
        """Who scores a prompt; None for nobody."""
        route = self._find(metadata)
        return None if route is None else route.teacher

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView | None:
        """What its teacher reads of a trajectory; None for its own tokens, or where there is nobody or nothing to read.

        Raises:
            InputError: the prompt does not have what the teacher's hint asks for.
            TrainingError: a teacher with tokens of its own cannot render the conversation.
        """
        route = self._find(metadata)
        if route is None or route.views is None or not any(trajectory.loss_mask):
            return None
        return route.views.view(trajectory, metadata)

    def check(self, prompts: Iterable[Prompt], metadata: Mapping[str, PromptMetadata]) -> None:
        """Every prompt has a teacher, and what the teacher's hint asks for. Warns of routes that no prompt has.

        Raises:
            InputError: one has not, unless the config trains such prompts on rewards alone; or none has.
        """
        seen: Counter[str | None] = Counter()
        for prompt in prompts:
            about = metadata.get(prompt.id)
            seen[self.route(about)] += 1
            route = self._find(about)
            if route is None:
                if self._routes and self._unrouted == "error":
                    raise InputError(self._nobody_for(prompt, about))
            elif route.views is not None:
                added = route.views.num_added(prompt.id, about)
                self._num_added[route.name] = max(added, self._num_added.get(route.name, 0))
        self._check_routes(seen)

    def close(self) -> None:
        """Closes all teachers."""
        for teacher in self.by_name.values():
            teacher.close()

    def _check_routes(self, seen: Counter[str | None]) -> None:
        shown = ", ".join(repr(value) for value, _ in seen.most_common(_SHOWN_VALUES))
        if self._routes and seen and None not in self._by_value and not seen.keys() & self._by_value.keys():
            raise InputError(
                f"none of the {seen.total()} prompts has a teacher: their {self._route_by} is {shown}, and teachers "
                f"are for these: {self._known()}. Mend `routes` or on_policy.route_by, or set kl_coef to 0"
            )
        for value, route in self._by_value.items():
            if value is not None and value not in seen:
                logger.warning(
                    "no prompt has the %s %r, which teacher %r is for; prompts have %s",
                    self._route_by,
                    value,
                    route.name,
                    shown,
                )

    def _known(self) -> str:
        return ", ".join(f"{route.name!r}: {', '.join(route.values)}" for route in self._routes)

    def _find(self, metadata: PromptMetadata | None) -> Route | None:
        value = self.route(metadata)
        return self._by_value.get(value) or self._by_value.get(None)

    def _nobody_for(self, prompt: Prompt, metadata: PromptMetadata | None) -> str:
        return (
            f"prompt {prompt.id} has no teacher: its {self._route_by} is {self.route(metadata)!r}, and teachers are "
            f"for these: {self._known()}. Give one of them that value in `routes`, leave out the routes of one for all "
            "others, or set on_policy.unrouted to `no_kl`, which trains such prompts on rewards alone"
        )
