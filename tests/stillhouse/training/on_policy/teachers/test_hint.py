from pathlib import Path

import pytest

from stillhouse.errors import ConfigError
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.types import PromptMetadata

ESCAPES = [
    "{{ cycler.__init__.__globals__.os.popen('touch %s').read() }}",
    "{{ self.__init__.__globals__.__builtins__.__import__('os').system('touch %s') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() and cycler['__init__']['__globals__'].os.system('touch %s') }}",
    "{{ (lipsum|attr('__globals__'))['os'].system('touch %s') }}",
    "{{ '{0.__init__.__globals__[os]}'.format(cycler) }}%s",
]


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_hint_runs_no_commands(escape: str, tmp_path: Path) -> None:
    hint = Hint(escape % (tmp_path / "touched"), "t")
    with pytest.raises(ConfigError, match=r"teacher 't' .*sandbox"):
        hint.text("p", PromptMetadata("p", "42", None, None, {}))
    assert list(tmp_path.iterdir()) == []


def test_a_hint_changes_no_metadata() -> None:
    metadata = PromptMetadata("p", "42", None, None, {"steps": ["one"]})
    with pytest.raises(ConfigError, match="sandbox"):
        Hint("{{ steps.append('two') }}", "t").text("p", metadata)
    assert metadata.metadata == {"steps": ["one"]}
