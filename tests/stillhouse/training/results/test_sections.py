from stillhouse.training.results.sections import MetricSummary, summarize_metrics


def test_the_best_value_is_one_of_the_trained_student() -> None:
    rows = [{"step": step, "metrics": {"sft/validation_loss": loss}} for step, loss in ((0, 1.0), (2, 3.0), (4, 2.0))]
    assert summarize_metrics([*rows, {"step": 6, "metrics": {"sft/validation_loss": 2.5}}]) == [
        MetricSummary("sft/validation_loss", first=1.0, best=2.0, best_step=4, last=2.5)
    ]


def test_a_value_known_at_the_start_alone_is_the_best() -> None:
    rows = [{"step": 0, "metrics": {"sft/validation_loss": 1.0, "sft/epoch": 0.0, "sft/grad_norm": 2.0}}]
    assert summarize_metrics(rows) == [
        MetricSummary("sft/validation_loss", 1.0, 1.0, 0, 1.0),
        MetricSummary("sft/grad_norm", 2.0, None, None, 2.0),
    ]
