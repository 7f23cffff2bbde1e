"""Mistakes that people make on the command line and in a config: exit code 2, and what to type instead."""

from pathlib import Path

import pytest

from stillhouse.store.runs import RunRecord, write_run_record

CONFIG = "prompts: {source: prompts.jsonl}\nteacher: {model: some/model, base_url: 'http://127.0.0.1:9/v1'}\n"
MISTAKES = [
    # The verb, its argument, its options.
    ("distil good.yaml", "", "No such command 'distil'"),
    ("distill", "", "Missing argument 'CONFIG.yaml'"),
    ("distill god.yaml", "", "god.yaml: cannot be read: there is no such file. Did you mean good.yaml?"),
    ("distill folder", "", "folder: cannot be read: it is a folder. Expected a YAML file; those in it: folder/a.yaml"),
    ("distill prompts.jsonl", "", "stillhouse generate prompts.jsonl -m MODEL"),
    ("sft prompts.jsonl", "", "expected a config (.yaml), saw a file of prompts"),
    ("generate prompts.jsonl", "", "no teacher is named for prompts.jsonl. Add -m MODEL"),
    ("test prompts.jsonl", "", "no teacher is named for prompts.jsonl. Add -m MODEL"),
    ("generate absent.jsonl -m some/model", "", "INPUT absent.jsonl: there is no such file"),
    ("generate folder -m some/model", "", "INPUT folder: it is a folder"),
    ("generate prompts.jsonl -m embedded:teachr", "", "did you mean 'embedded:teacher'?"),
    ("generate prompts.jsonl -m embedded:prompts.jsonl", "", "expected 'embedded:teacher' or 'embedded:student'"),
    ("generate prompts.jsonl -m some/model -n 0", "", "Invalid value for '-n' / '--num'"),
    ("generate prompts.jsonl -m some/model -n some", "", "Invalid value for '-n' / '--num'"),
    ("generate prompts.jsonl -m some/model -e first", "", "expected row numbers from 0"),
    ("generate prompts.jsonl -m some/model -o rows.csv", "", "expected a name ending in .jsonl or .parquet"),
    ("generate prompts.jsonl -m some/model --temperature -1", "", "Invalid value for '--temperature'"),
    ("generate prompts.jsonl -m some/model --api-key-env sk-1", "", "the name of an environment variable"),
    ("convert rows.jsonl", "", "Missing option"),
    ("convert rows.jsonl -o prompts.jsonl", "", "--output prompts.jsonl is a file"),
    ("convert rows.jsonl -o out --from openai -t absent.py", "", "absent.py"),
    ("convert good.yaml -o out --from rnow-config", "", "--from rnow-config: good.yaml has the keys prompts, teacher"),
    ("convert rows.jsonl -o out --from csv", "", "csv"),
    ("export", "", "name where the rows go"),
    ("export -o out.jsonl --private", "", "--private is for a repository"),
    ("publish", "", "name where the student goes"),
    ("publish -o out --private", "", "--private is for a repository"),
    ("doctor --set sft.epochs=2", "", "sft.epochs = 2: unknown key"),
    ("serve ./absent", "", "'./absent' is not a folder"),
    ("serve embedded:student --api-key-env ABSENT_KEY", "", "ABSENT_KEY"),
    ("serve embedded:studnt", "", "did you mean 'embedded:student'?"),
    # Of a run, given one level too high.
    ("view store/reports", "", "Runs below it, the newest first: store/reports/20260101-000000"),
    ("view store", "", "Runs below it, the newest first: store/reports/20260101-000000"),
    ("export store/reports -o rows.jsonl", "", "Runs below it, the newest first: store/reports/20260101-000000"),
    ("publish store -o student", "", "expected the folder of a student or of a run's report. Runs below it"),
    ("view absent --store store", "", "no run of that name in store/reports"),
    # --set.
    ("distill good.yaml --set learning_rate=1e-4", "", "did you mean sft.learning_rate=1e-4"),
    ("distill good.yaml --set sft.learning_rate", "", "expected section.key=value"),
    ("distill good.yaml --set sft.epochs=2", "", "did you mean 'num_epochs'?"),
    ("distill good.yaml --set sft.num_epochs=[", "", "the value is not valid YAML"),
    ("distill good.yaml --set sft.num_epochs=many", "", "sft.num_epochs = 'many'"),
    ("distill good.yaml --set student.chat_template_kwargs.enable_thinking=false", "", "never reads 'enable_thinking'"),
    ("distill good.yaml --set student.model=embedded:studnt", "", "student.model: 'embedded:studnt'"),
    # The config.
    ("distill wrong.yaml", "prompts: {source: prompts.jsonl}\n", "wrong.yaml: no teacher is named for prompts.jsonl"),
    (
        "on-policy wrong.yaml",
        "prompts: {source: prompts.jsonl}\non_policy: {enabled: true}\n",
        "wrong.yaml: no teacher is named for prompts.jsonl",
    ),
    ("distill wrong.yaml", "learning_rate: 1.0e-4\n", "did you mean 'sft.learning_rate' or 'on_policy.learning_rate'?"),
    ("distill wrong.yaml", "sft: {lerning_rate: 1.0e-4}\n", "did you mean 'learning_rate'?"),
    ("distill wrong.yaml", "sft: {lora_rank: 8}\n", "did you mean 'student.lora_rank'?"),
    ("distill wrong.yaml", "teachr: {model: some/model}\n", "did you mean 'teacher'?"),
    ("distill wrong.yaml", "teacher: {model: a: b}\n", "not valid YAML: "),
    ("distill wrong.yaml", "sft:\n\tnum_epochs: 1\n", "indent by spaces"),
    ("distill wrong.yaml", "- sft\n", "expected sections such as `prompts:`"),
    ("distill wrong.yaml", "sft: {num_epochs: 0}\n", "sft.num_epochs = 0: expected at least 1"),
    ("distill wrong.yaml", "sft: {num_epochs: 1.5}\n", "sft.num_epochs = 1.5: expected a whole number"),
    ("distill wrong.yaml", "sft: {schedule: foo}\n", "did you mean 'sft.trainer.schedule' or"),
    (
        "distill wrong.yaml",
        "sft: {trainer: {schedule: foo}}\n",
        "sft.trainer.schedule = 'foo': expected 'const",
    ),
    ("distill wrong.yaml", "on_policy: {divergence: [{}]}\n", "expected algorithm `divergence`"),
    ("distill wrong.yaml", "sft: 5\n", "sft = 5: expected a mapping"),
    ("distill wrong.yaml", "prompts: {sources: [a.jsonl]}\n", "prompts.sources = ['a.jsonl']: expected a mapping"),
    ("distill wrong.yaml", "student: {parameters: full, merge: true}\n", "there is no adapter to merge"),
    ("distill wrong.yaml", "teacher: {model: 'embedded:teachr'}\n", "did you mean 'embedded:teacher'?"),
]


@pytest.mark.parametrize(("command", "config", "message"), MISTAKES, ids=[" ".join(case[:2]) for case in MISTAKES])
def test_a_mistake_ends_with_code_2_and_what_to_do(
    shell, tmp_path: Path, command: str, config: str, message: str
) -> None:
    (tmp_path / "good.yaml").write_text(CONFIG)
    (tmp_path / "wrong.yaml").write_text(config)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "What is 2 + 2?"}\n')
    (tmp_path / "rows.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    record = RunRecord("generate", "2026-01-01T00:00:00+00:00", None, None, "calm-otter", {"rollouts": []})
    write_run_record(tmp_path / "store/reports/20260101-000000", record)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.yaml").write_text(CONFIG)
    code, output = shell(*command.split())
    assert (code, message in " ".join(output.replace("│", " ").split())) == (2, True), output
    assert not any(word in output for word in ("Value error", "Traceback", "pydantic"))
    if "error[" in output:
        assert len(output.splitlines()) <= 2
        assert "nput should be" not in output
    assert not (tmp_path / "runs").exists()
