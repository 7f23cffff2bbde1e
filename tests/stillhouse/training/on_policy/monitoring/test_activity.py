from typing import Any

from stillhouse.training.on_policy.monitoring.activity import Activity


class Shown:
    def __init__(self) -> None:
        self.lines: list[tuple[int, int | None, Any]] = []

    def update(self, stage: str, done: int, total: int | None, **facts: Any) -> None:
        self.lines.append((done, total, facts["doing"]))


def test_what_is_waited_for_takes_the_place_of_what_is_done_until_it_is_over() -> None:
    shown = Shown()
    activity = Activity(shown, "on_policy", 8)
    activity.begin(2, "sampling and scoring")
    activity.wait("waiting for the server")
    activity.wait(None)
    assert shown.lines == [
        (2, 8, "sampling and scoring"),
        (2, 8, "waiting for the server"),
        (2, 8, "sampling and scoring"),
    ]
