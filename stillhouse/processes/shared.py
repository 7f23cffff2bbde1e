"""What users in one process share for as long as there are any."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    opened: ExitStack
    num_users: int = 0


@dataclass(slots=True, eq=False)
class Shared(Generic[T]):
    """Values by key, each opened for the first of the users that overlap and closed by the last. Thread-safe."""

    _entries: dict[Hashable, _Entry[T]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def used(self, key: Hashable, opening: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
        """Yield the value of `key`; the first user enters what `opening` returns for it."""
        with self._lock:
            if key not in self._entries:
                opened = ExitStack()
                self._entries[key] = _Entry(opened.enter_context(opening()), opened)
            entry = self._entries[key]
            entry.num_users += 1
        try:
            yield entry.value
        finally:
            with self._lock:
                entry.num_users -= 1
                if entry.num_users == 0:
                    del self._entries[key]
                    entry.opened.close()
