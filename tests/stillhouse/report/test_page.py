import re
from collections import Counter
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.report import ReportData, SampleTrajectory, write_report
from stillhouse.report.page import overall_lines, render, tag_lines
from stillhouse.types import Message, ToolCall
from tests.stillhouse.report.html_page import Page


def test_a_whole_run_has_all_parts(full: ReportData) -> None:
    page = Page(render(full))
    assert {"evaluation", "training", "dataset", "stages", "trajectories", "appendix"} <= set(page.ids)
    assert page.tags["svg"] == 5
    assert "failure" not in page.ids
    assert page.links[:2] == [full.mlflow_url, full.prefect_url]
    assert "distill, demo.yaml" in page.texts
    assert "20 November 2026, 14:05 UTC" in page.texts


def test_nothing_is_fetched_from_anywhere(full: ReportData) -> None:
    html = render(full)
    page = Page(html)
    assert page.fetched == ["data:,"]
    assert page.tags["script"] == page.tags["iframe"] == page.tags["img"] == 0
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert set(re.findall(r"https?://[^\"<\s]*", html)) == {full.mlflow_url, full.prefect_url}


def test_ids_are_unique_and_every_reference_inside_a_picture_is_met(full: ReportData) -> None:
    html = render(full)
    ids = Page(html).ids
    assert [name for name, times in Counter(ids).items() if times > 1] == []
    references = re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', html)
    assert references
    assert {a or b for a, b in references} <= set(ids)


def test_the_evaluation_table_shows_figures_and_dashes_for_unknown_ones(full: ReportData) -> None:
    page = Page(render(full))
    assert page.row("After SFT")[1:4] == ["74.4\u202f%", "67.1\u201380.5\u202f%", "0.214"]
    assert page.row("Teacher")[3] == "\u2013"
    assert page.row("Base student")[7] == "\u2013"


def test_tokens_of_a_cache_hit_are_shown_but_not_in_the_sum(full: ReportData) -> None:
    page = Page(render(full))
    assert page.row("rollouts")[1:5] == ["cache hit", "0.3 s", "184,220", "51,030"]
    assert page.row("This run")[1:] == ["3 min 25 s", "71,300", "125,430", "$0.0204"]


def test_a_run_that_only_evaluated_shows_only_that(only_evaluation: ReportData) -> None:
    page = Page(render(only_evaluation))
    assert {"evaluation", "training", "dataset", "stages", "trajectories", "appendix", "failure"} & set(page.ids) == {
        "evaluation"
    }
    assert page.row("Teacher")[1:] == ["\u2013"] * 9
    assert "Prompt by prompt" not in " ".join(page.texts)


def test_a_run_without_a_kept_row_says_why_and_shows_the_funnel(no_kept_row: ReportData) -> None:
    page = Page(render(no_kept_row))
    assert no_kept_row.failure in page.texts
    assert page.tags["svg"] == 1
    assert "evaluation" not in page.ids


def test_a_bare_title_is_a_page(tmp_path: Path) -> None:
    path = write_report(tmp_path / "new" / "folder", ReportData(title="nothing yet"))
    assert path.name == "report.html"
    assert "nothing yet" in path.read_text(encoding="utf-8")


def test_markup_in_a_trajectory_is_text(full: ReportData) -> None:
    attack = "</div><script>document.title='owned'</script><img src=x onerror=alert(1)>"
    call: ToolCall = {"id": "c", "type": "function", "function": {"name": attack, "arguments": attack}}
    messages: list[Message] = [
        {"role": "user", "content": attack},
        {"role": "assistant", "content": attack, "reasoning_content": attack, "tool_calls": [call]},
    ]
    hostile = SampleTrajectory(messages=messages, stop_reason=attack, verified=None, stage="sft")
    page = Page(render(replace(full, title=attack, failure=attack, trajectories=[hostile], config={"a": attack})))
    assert page.tags["script"] == page.tags["img"] == 0
    assert page.handlers == []
    assert sum(attack in text for text in page.texts) >= 7


def test_a_link_that_would_run_a_script_is_not_one(full: ReportData) -> None:
    page = Page(render(replace(full, mlflow_url="javascript:alert(1)")))
    assert not any(link.startswith("javascript") for link in page.links)


def test_equal_data_makes_equal_bytes(full: ReportData) -> None:
    assert render(full) == render(full)


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="taken"):
        write_report(tmp_path / "taken", ReportData(title="t"))


def test_models_are_shown_beside_the_reference_by_metric_and_by_tag(full: ReportData) -> None:
    lines = overall_lines(full.comparison)
    shown = itemgetter("group", "model", "difference", "interval", "p", "sign")
    assert [shown(line) for line in lines] == [
        ("Accuracy", "base", "\u221261.9", "\u221269.0 to \u221254.8", "< 0.001", "wrong"),
        ("", "sft", "+1.3", "\u22121.8 to +4.4", "0.607", ""),
        ("", "on_policy", "+18.1", "+11.5 to +24.7", "< 0.001", "right"),
        ("Tokens", "base", "+12.4", "+9.2 to +15.6", "< 0.001", "wrong"),
        ("", "sft", "\u22120.3", "\u22122.4 to +1.8", "0.770", ""),
        ("", "on_policy", "\u22123.6", "\u22125.6 to \u22121.6", "< 0.001", "right"),
    ]
    by_tag = [("three_steps", "sft"), ("", "on_policy"), ("two_steps", "sft"), ("", "on_policy")]
    assert [(line["group"], line["model"]) for line in tag_lines(full.comparison)] == by_tag
    assert tag_lines([row for row in full.comparison if row["tag"] != "two_steps"]) == []
    html = render(full)
    assert "Prompt by prompt against the champion" in html
    assert "on_policy is the new champion." in html


def test_a_metric_on_which_no_model_differs_is_left_out_unless_it_is_accuracy(full: ReportData) -> None:
    same = {**full.comparison[0], "difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0, "gain": 0.0}
    (line,) = overall_lines([same, {**same, "metric": "truncated_share"}])
    assert itemgetter("group", "difference", "interval", "sign")(line) == ("Accuracy", "0.0", "0.0 to 0.0", "")


def test_a_suite_is_shown_as_a_share_also_where_no_model_differs(full: ReportData) -> None:
    same = {**full.comparison[0], "difference": 0.0, "low": 0.0, "high": 0.0, "gain": 0.0, "metric": "suite stock"}
    (line,) = overall_lines([{**same, "value": 0.958, "reference": 0.958}])
    assert itemgetter("group", "value", "difference")(line) == ("suite stock", "95.8\u202f%", "0.0")


def test_answers_to_one_prompt_stand_side_by_side_below_their_prompt(full: ReportData) -> None:
    first = full.trajectories[0]
    both = [replace(first, stage=name, prompt_id="p") for name in ("base", "teacher")]
    html = render(replace(full, trajectories=[*both, replace(first, stage="sft")]))
    assert html.count('class="trajectory group"') == 1
    assert html.count('<div class="column">') == 2
    assert html.count('<details class="trajectory">') == 1
    group = html[html.index('class="trajectory group"') : html.index('<details class="trajectory">')]
    assert group.count('<details class="message user"') == 1
