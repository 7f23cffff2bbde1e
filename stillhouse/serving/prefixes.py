"""Which slot holds what: running rows in front, then slots whose finished sequence may still be continued."""

from collections.abc import Sequence

from stillhouse.serving.slots import SlotCache


class SlotTable:
    """Keeps the tokens of parked slots and finds the one a prompt continues.

    Slots 0..n-1 belong to the n running rows (the generator keeps them dense); slots from n on are parked or free.
    """

    def __init__(self, cache: SlotCache, max_slots: int) -> None:
        self._cache = cache
        self._max_slots = max_slots
        self._parked: dict[int, list[int]] = {}
        """Slot to the tokens whose keys and values it holds, longest parked first."""

    def reusable(self, prompt_ids: Sequence[int]) -> int:
        """Tokens of the prompt that some parked slot holds."""
        slot = self._match(prompt_ids)
        return 0 if slot is None else len(self._parked[slot])

    def take(self, slot: int, prompt_ids: Sequence[int]) -> int:
        """Readies `slot`, the first behind the running rows, for a prompt.

        Returns:
            How many of the prompt's first tokens it holds already.
        """
        self._cache.reserve(slot + 1, 1)
        match = self._match(prompt_ids)
        tokens = self._parked.pop(match) if match is not None else []
        if match is not None and match != slot:
            displaced = self._parked.pop(slot, [])
            self._cache.swap_slots(match, slot, max(len(tokens), len(displaced)))
            if displaced:
                self._parked[match] = displaced
        elif match is None:
            self._vacate(slot)
        return len(tokens)

    def park(self, slot: int, tokens: list[int]) -> None:
        """Notes that `slot`, just behind the running rows, holds these tokens of a finished sequence."""
        if tokens:
            self._parked[slot] = tokens

    def forget(self) -> None:
        """Drops all parked slots: their keys and values are no longer those of the weights."""
        self._parked.clear()

    def _match(self, prompt_ids: Sequence[int]) -> int | None:
        """The parked slot with the longest sequence that the prompt properly continues."""
        prompt = list(prompt_ids)
        matches = [
            slot for slot, held in self._parked.items() if len(held) < len(prompt) and held == prompt[: len(held)]
        ]
        return max(matches, key=lambda slot: len(self._parked[slot]), default=None)

    def _vacate(self, slot: int) -> None:
        """Moves what is parked in `slot` to a free slot, or in place of the slot parked longest."""
        if slot not in self._parked:
            return
        free = next((other for other in range(slot + 1, self._cache.num_slots) if other not in self._parked), None)
        target = free if free is not None else next(iter(self._parked))
        tokens = self._parked.pop(slot)
        if target != slot:
            self._parked[target] = tokens
            self._cache.copy_slot(slot, target, len(tokens))
