"""Bin packing: items of given sizes into as few bins of one capacity as is quickly found."""

from bisect import bisect_left, insort
from collections.abc import Sequence


def best_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Bins of indices into `sizes`, each with a sum of at most `capacity`; a larger item is alone in its bin.

    Items are taken from the largest to the smallest, equal ones in their order, and each goes where it leaves the least
    room. That needs at most 11/9 of the fewest bins possible, and 6/9 of a bin more (Dosa, Li, Han, Tuza 2013, for
    first fit decreasing, whose bound best fit decreasing shares: Johnson 1974). O(n log n) comparisons.
    """
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # what is left in a bin, and its number, ascending
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[index]
        place = bisect_left(rooms, (size, 0))
        if place < len(rooms):
            room, number = rooms.pop(place)
        else:
            room, number = capacity, len(bins)
            bins.append([])
        bins[number].append(index)
        if room > size:
            insort(rooms, (room - size, number))
    return bins
