from collections.abc import Callable

import pytest

from stillhouse.verification.finding import Finding


@pytest.fixture(scope="session", autouse=True)
def jail(find: Callable[..., Finding]) -> None:
    """Skips what needs namespaces where the kernel gives none."""
    finding = find("python", "```python\npass\n```", "assert True")
    if finding.verified is None and "cannot be kept in a sandbox" in str(finding.note):
        pytest.skip(str(finding.note))
