"""The errors a user of Stillhouse can meet.

    StillhouseError
    |-- ConfigError            a config, an override or an option is wrong; nothing was started (exit code 2)
    |-- InputError             a prompts file, a row or a dataset is wrong (exit code 1, as all below)
    |   `-- NothingKept            no row is left to train on: with more candidates there may be
    |-- StoreError             the store cannot be read or written
    |-- EndpointError          an endpoint cannot be used (unreachable, no such model or ability): the run stops
    |   |-- AuthenticationError    the key is missing or refused
    |   `-- QuotaError             the account is out of money or of its daily allowance
    |-- BudgetReached          the run's budget for the teacher is spent; all that was paid for is kept
    |-- FailureBudgetExceeded  too many items of a stage failed; all that finished is kept
    |-- NotApproved            a person rejected the dataset, or nobody approved it in time
    |-- TrainingError          a training process failed or diverged; the last good checkpoint is kept
    |   `-- TrainingKilled         it was killed from outside (out of memory, preempted): worth another try
    `-- TrackingError          MLflow cannot be reached; never ends a run

A class exists only if it is handled differently. The failure of one item of many (a rollout that timed out, a tool that
raised, a malformed row) is not an exception but a value: `stillhouse.types.ErrorRecord`.

Every message says what failed, which one, the value seen, the value expected, and what to do.
"""


class StillhouseError(Exception):
    """Root of the tree; its message is shown to the user without a traceback.

    `code` is the kind of error for programs and tests, as the words of a message may change. That of an error which
    `docs/troubleshooting.md` explains is its address there; others have the code of their class.
    """

    exit_code = 1
    code = "failed"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code


class ConfigError(StillhouseError):
    code = "config"
    exit_code = 2


class InputError(StillhouseError):
    code = "input"


class NothingKept(InputError):
    code = "nothing-kept"


class StoreError(StillhouseError):
    code = "store"


class EndpointError(StillhouseError):
    code = "endpoint"


class AuthenticationError(EndpointError):
    code = "authentication"


class QuotaError(EndpointError):
    code = "no-credit"


class BudgetReached(StillhouseError):
    code = "budget"


class FailureBudgetExceeded(StillhouseError):
    code = "failure-budget"


class NotApproved(StillhouseError):
    code = "not-approved"


class TrainingError(StillhouseError):
    code = "training"


class TrainingKilled(TrainingError):
    code = "training-killed"


class TrackingError(StillhouseError):
    code = "tracking"


class WrongSetting(ValueError):
    """A rule of the config is broken; the troubleshooting page explains its `code`."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code
