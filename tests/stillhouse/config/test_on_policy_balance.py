from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import OnPolicyConfig

NEAR = [{"name": name, "model": "embedded:teacher", "routes": [name]} for name in ("maths", "code")]


def config(**settings: Any) -> OnPolicyConfig:
    return OnPolicyConfig.model_validate(settings)


@pytest.mark.parametrize("num_teachers", [0, 1])
def test_a_balance_of_fewer_than_two_teachers_is_refused(num_teachers: int) -> None:
    with pytest.raises(ValidationError, match=f"of which there are {num_teachers}; expected two or more"):
        config(balance="teachers", teachers=NEAR[:num_teachers])
    assert config(balance="teachers", teachers=NEAR, divergence=[{}]).balance == "teachers"
