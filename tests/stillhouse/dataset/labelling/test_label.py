from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from stillhouse.config import ContaminationConfig, DatasetConfig, DuplicatesConfig, LabelsConfig, ToolsConfig
from stillhouse.dataset.labelling.label import Labelling, labelled_rows
from stillhouse.dataset.labelling.subject import Subject
from stillhouse.errors import ConfigError
from stillhouse.types import Trajectory

MakeTrajectory = Callable[..., Trajectory]
LABELS = """
from stillhouse.dataset import LabelArgs, label

@label
def worth(args: LabelArgs, messages: list) -> float:
    return {}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "labels.py"
    path.write_text(LABELS.format("0.5"))
    return path


def labelling(labels: LabelsConfig, **changes: object) -> Labelling:
    return Labelling.of(DatasetConfig(labels=labels, **changes), tools=ToolsConfig(), student="embedded:student")


def test_a_changed_file_is_read_again_by_a_process_that_knows_the_old_one(
    file: Path, make_trajectory: MakeTrajectory
) -> None:
    config = LabelsConfig(render=False, file=str(file))
    subjects = [Subject.of(make_trajectory(), None)]

    def worth() -> float:
        (row,) = labelled_rows(subjects, labelling(config))
        value: float = orjson.loads(row["scores"])["worth"]
        return value

    assert worth() == 0.5
    file.write_text(LABELS.format("0.125"))
    assert worth() == 0.125


def test_a_labelling_is_equal_wherever_the_rest_of_the_config_makes_no_difference(file: Path) -> None:
    config = LabelsConfig(file=str(file))
    same = labelling(config, validation_fraction=0.5, duplicates=DuplicatesConfig(threshold=0.5))
    assert same == labelling(config)
    assert labelling(config, duplicates=DuplicatesConfig(near=True)) != same
    other = Labelling.of(DatasetConfig(labels=config), tools=ToolsConfig(rewards_file="r.py"), student="nobody/knows")
    assert other.tools == ToolsConfig()
    assert other.contents["tokenizer"] == "nobody/knows"


def test_an_evaluation_set_is_known_by_what_it_holds(tmp_path: Path) -> None:
    exam = tmp_path / "exam.txt"
    exam.write_text("What is the sum of two and three apples in the basket?\n")
    sets = ContaminationConfig(sets={"exam": str(exam)})
    first = labelling(LabelsConfig(), contamination=sets)
    exam.write_text("Something else altogether.\n")
    assert labelling(LabelsConfig(), contamination=sets) != first


def test_a_file_that_is_missing_is_told_of_by_the_setting_that_names_it(
    tmp_path: Path, make_trajectory: MakeTrajectory
) -> None:
    missing = labelling(LabelsConfig(render=False, file=str(tmp_path / "absent.py")))
    with pytest.raises(ConfigError, match=r"absent\.py: no such file; dataset\.labels\.file must name"):
        labelled_rows([Subject.of(make_trajectory(), None)], missing)
