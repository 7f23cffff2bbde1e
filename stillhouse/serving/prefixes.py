"""Which slot holds what: running rows in front, then slots whose finished sequence may still be continued."""

from collections.abc import Sequence

from stillhouse.serving.slots import SlotCache


class SlotTable:
    """Keeps the tokens of parked slots and finds the one a prompt continues.

    Slots 0..n-1 belong to the n running rows (the generator keeps them dense); slots from n on are parked or free.
    """

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._parked: dict[int, list[int]] = {}
        """Slot to the tokens whose keys and values it holds, longest parked first."""

    def reusable(self, prompt_ids: Sequence[int], running: Sequence[Sequence[int]] = ()) -> int:
        """Tokens of the prompt that some slot holds; `running` are the prompts of slots 0, 1, ..."""
        return self._best(prompt_ids, running)[1]

    def take(self, slot: int, prompt_ids: Sequence[int], running: Sequence[Sequence[int]] = ()) -> int:
        """Readies `slot`, the first behind the running rows, for a prompt.

        A parked sequence that the prompt continues is taken over; one that goes another way, or still runs, is copied
        as far as it agrees. The last token of a prompt is never taken, since what follows it is asked for.

        Args:
            slot: becomes the prompt's.
            prompt_ids: the prompt.
            running: prompts of the running rows by slot, none of them changed since their keys and values were made.

        Returns:
            How many of the prompt's first tokens it holds already.
        """
        self._cache.reserve(slot + 1, 1)
        match, num_held = self._best(prompt_ids, running)
        if match is not None and len(self._parked.get(match, ())) == num_held:
            self._take_over(match, slot)
        elif match == slot:
            del self._parked[slot]
        else:
            self.vacate(slot)
            # What was parked may have moved, or given way.
            match, num_held = self._best(prompt_ids, running)
            if match is not None:
                self._cache.copy_slots([match], [slot], num_held)
        return num_held

    def park(self, slot: int, tokens: list[int]) -> None:
        """Notes that `slot`, just behind the running rows, holds these tokens of a finished sequence."""
        if tokens:
            self._parked[slot] = tokens

    def forget(self) -> None:
        """Drops all parked slots: their keys and values are no longer those of the weights."""
        self._parked.clear()

    def _best(self, prompt_ids: Sequence[int], running: Sequence[Sequence[int]]) -> tuple[int | None, int]:
        """The slot that holds most of the prompt's first tokens, and how many; (None, 0) where none holds any.

        Only sequences that the prompt continues, or that continue the prompt, are found.
        """
        prompt = list(prompt_ids)
        best: tuple[int | None, int] = (None, 0)
        for slot, held in (*self._parked.items(), *enumerate(running)):
            length = min(len(held), len(prompt) - 1)
            if length > best[1] and held[length - 1] == prompt[length - 1] and list(held[:length]) == prompt[:length]:
                best = slot, length
        return best

    def _take_over(self, match: int, slot: int) -> None:
        """Brings a parked sequence to `slot`; what is parked there takes its place."""
        tokens = self._parked.pop(match)
        if match != slot:
            displaced = self._parked.pop(slot, [])
            self._cache.swap_slots(match, slot, max(len(tokens), len(displaced)))
            if displaced:
                self._parked[match] = displaced

    def vacate(self, slot: int) -> None:
        """Moves what is parked in `slot` to a free slot, or in place of the slot parked longest."""
        if slot not in self._parked:
            return
        free = next((other for other in range(slot + 1, self._cache.num_slots) if other not in self._parked), None)
        target = free if free is not None else next(iter(self._parked))
        tokens = self._parked.pop(slot)
        if target != slot:
            self._parked[target] = tokens
            self._cache.copy_slots([slot], [target], len(tokens))
