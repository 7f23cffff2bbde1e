"""Assigns each prompt its teacher."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from stillhouse.chat.rendering import Prefixes
from stillhouse.errors import ConfigError, InputError
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.training.on_policy.teachers.teacher import Teacher
from stillhouse.training.on_policy.teachers.views import Opening, ViewBuilder
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt, PromptMetadata, Sample

logger = logging.getLogger(__name__)

_SHOWN_VALUES: Final = 10
_MAX_LABELS: Final = 32
"""Routes that metrics are reported for; more would be too many charts to read."""


@dataclass(frozen=True, slots=True)
class Route:
    """A teacher and its prompts."""

    name: str
    teacher: Teacher | None
    """None if its coefficient is 0: its prompts are not scored and have no KL."""
    values: tuple[str, ...] = ()
    """Values of `route_by`; empty for all prompts that no other route takes."""
    views: ViewBuilder | None = None
    """Builds the teacher's input; None without a teacher."""


class TeacherRouter:
    """The teachers of a training, none for one on rewards alone; raises ConfigError if two have the same route."""

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
                    what = "prompts that no other teacher takes" if value is None else f"{route_by} {value!r}"
                    raise ConfigError(
                        f"teachers {other.name!r} and {route.name!r} are both for {what}; a prompt has one teacher. "
                        "Give them `routes` that differ"
                    )
        self.by_name: Mapping[str, Teacher] = {
            route.name: route.teacher for route in routes if route.teacher is not None
        }
        self._added_tokens: dict[str, int] = {}

    @property
    def max_context(self) -> int | None:
        """Return the longest trajectory that all teachers can read, as far as `check` has measured what each adds."""
        lengths = [
            teacher.max_context - self._added_tokens.get(name, 0)
            for name, teacher in self.by_name.items()
            if teacher.max_context is not None
        ]
        return min(lengths, default=None)

    @property
    def num_best(self) -> int:
        """Return how many of the student's most probable tokens the teachers score at each sampled one."""
        served = (teacher for teacher in self.by_name.values() if isinstance(teacher, ServedTeacher))
        return max((teacher.given.count for teacher in served if teacher.given is not None), default=0)

    def route(self, metadata: PromptMetadata | None) -> str | None:
        """Return the prompt's value of `route_by`; None if it has none."""
        if metadata is None:
            return None
        value = metadata.tag if self._route_by == "tag" else metadata.metadata.get(self._route_by)
        return None if value is None else str(value)

    def labels(self, prompts: Iterable[Prompt], metadata: Mapping[str, PromptMetadata]) -> list[str]:
        """Return the routes that metrics are reported by; none if all prompts share one or there are too many."""
        distinct = {self.route(metadata.get(prompt.id)) for prompt in prompts}
        labels = sorted(label for label in distinct if label is not None)
        return labels if len(distinct) > 1 and len(labels) <= _MAX_LABELS else []

    def select(self, metadata: PromptMetadata | None) -> Teacher | None:
        """Return the prompt's teacher, if any."""
        route = self._find(metadata)
        return None if route is None else route.teacher

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> Sample | None:
        """Return the teacher's input; None for the trajectory's own tokens, and without a teacher or sampled tokens.

        Raises as `ViewBuilder.view`.
        """
        route = self._find(metadata)
        if route is None or route.views is None or not any(trajectory.loss_mask):
            return None
        return route.views.view(trajectory, metadata)

    def check(
        self,
        prompts: Iterable[Prompt],
        metadata: Mapping[str, PromptMetadata],
        begin: Callable[[Prompt], Prefixes],
    ) -> None:
        """Check that every prompt has a teacher that can read it; warn of routes without prompts.

        `metadata` is by prompt id and may lack any; `begin` is what the trajectories of a prompt begin with.

        Raises:
            InputError: a prompt has no teacher and `unrouted` is `error`, no prompt has one, or metadata that a hint
                uses is missing.
            ConfigError: a teacher with its own template cannot read turns with calls, and tools are offered.
            TrainingError: the own template of its teacher does not fit a prompt.
        """
        seen: Counter[str | None] = Counter()
        openings: dict[str, list[Opening]] = {}
        for prompt in prompts:
            prompt_metadata = metadata.get(prompt.id)
            seen[self.route(prompt_metadata)] += 1
            route = self._find(prompt_metadata)
            if route is None:
                if self._routes and self._unrouted == "error":
                    raise InputError(
                        f"prompt {prompt.id} has no teacher: its {self._route_by} is {self.route(prompt_metadata)!r}, "
                        f"and teachers are for these: {self._routes_text()}. Give one of them that value in `routes`, "
                        "leave out the routes of one for all others, or set on_policy.unrouted to `no_kl`, which "
                        "trains such prompts on rewards alone"
                    )
            elif route.views is not None:
                opening = Opening(prompt.id, begin(prompt), prompt_metadata)
                openings.setdefault(route.name, []).append(opening)
        for route in self._routes:
            if route.views is not None:
                self._added_tokens[route.name] = route.views.added_tokens(openings.get(route.name, ()))
        self._check_routes(seen)

    def close(self) -> None:
        """Close all teachers."""
        for teacher in self.by_name.values():
            teacher.close()

    def _check_routes(self, seen: Counter[str | None]) -> None:
        shown = ", ".join(repr(value) for value, _ in seen.most_common(_SHOWN_VALUES))
        if self._routes and seen and None not in self._by_value and not seen.keys() & self._by_value.keys():
            raise InputError(
                f"none of the {seen.total()} prompts has a teacher: their {self._route_by} is {shown}, and teachers "
                f"are for these: {self._routes_text()}. Mend `routes` or on_policy.route_by, or set kl_coef to 0"
            )
        for value, route in self._by_value.items():
            if value is not None and value not in seen:
                which = (self._route_by, value, route.name, shown)
                logger.warning("no prompt has the %s %r of teacher %r; prompts have %s", *which)

    def _routes_text(self) -> str:
        return ", ".join(f"{route.name!r}: {', '.join(route.values)}" for route in self._routes)

    def _find(self, metadata: PromptMetadata | None) -> Route | None:
        value = self.route(metadata)
        return self._by_value.get(value) or self._by_value.get(None)
