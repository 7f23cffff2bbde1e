import threading

from stillhouse.tracking.metric_writer import MAX_BATCH, MetricPoint, MetricWriter


def points(first: int, count: int) -> list[MetricPoint]:
    return [MetricPoint("loss", 0.5, step, 0) for step in range(first, first + count)]


def test_points_leave_in_order_and_in_batches_that_one_request_holds() -> None:
    batches: list[list[MetricPoint]] = []
    writer = MetricWriter(batches.append)
    writer.put(points(0, 2 * MAX_BATCH + 7))
    writer.close()
    assert [point.step for batch in batches for point in batch] == list(range(2 * MAX_BATCH + 7))
    assert max(len(batch) for batch in batches) == MAX_BATCH


def test_a_slow_write_does_not_hold_up_the_next_point() -> None:
    release, entered = threading.Event(), threading.Event()
    written: list[MetricPoint] = []

    def write(batch: list[MetricPoint]) -> None:
        entered.set()
        assert release.wait(120)
        written.extend(batch)

    writer = MetricWriter(write)
    writer.put(points(0, 1))
    assert entered.wait(120)
    writer.put(points(1, 1))
    assert written == []
    release.set()
    writer.flush()
    assert [point.step for point in written] == [0, 1]
    writer.close()


def test_a_point_that_comes_after_the_end_is_not_lost() -> None:
    written: list[MetricPoint] = []
    writer = MetricWriter(written.extend)
    writer.close()
    writer.put(points(3, 1))
    assert [point.step for point in written] == [3]


def test_the_thread_ends_with_the_writer() -> None:
    before = threading.active_count()
    writer = MetricWriter(lambda batch: None)
    writer.put(points(0, 1))
    assert threading.active_count() == before + 1
    writer.close()
    assert threading.active_count() == before
