from benchmarks.gpu.environment import Import, check_imports, report


def test_the_check_finds_everything_that_the_plan_itself_needs() -> None:
    imports = check_imports()
    assert [attempt for attempt in imports if attempt.error is not None and attempt.needed_for is None] == []
    assert {attempt.module for attempt in imports} >= {"benchmarks.gpu.parts.sft", "trl", "bitsandbytes"}


def test_the_report_names_what_a_missing_package_leaves_out() -> None:
    needed = Import("benchmarks.gpu.parts.sft", "ModuleNotFoundError: No module named 'orjson'")
    text = report([needed, Import("trl", "ModuleNotFoundError: No module named 'trl'", "TRL's rows")])
    assert "No module named 'orjson' (THE PLAN CANNOT RUN)" in text
    assert "No module named 'trl' (left out: TRL's rows)" in text
    assert text.endswith("install benchmarks/gpu/requirements.txt")
