"""Every error that DNFormer raises on purpose.

    DNFormerError
    ├── ConfigError        a setting is unknown, out of range or contradicts another
    ├── DataError          a table, a cache or a file of indices is not what it must be
    ├── CheckpointError    a run or a checkpoint is foreign, damaged or in use
    │   └── InUseError     another start that is alive writes there; it may end soon
    ├── BackendError       a kernel, a device or a library is missing
    ├── TrainError         a run that started could not go on
    │   └── LostError      its workers were lost; another start may have more luck
    └── Stopped            a run was told to stop, and saved its state

The message says what was found, what is allowed and what to do.
The command line prints it as one line; `exit_code` is its exit status.
"""

from typing import ClassVar


class DNFormerError(Exception):
    """The base of all: catch this to catch everything we raise on purpose."""

    exit_code: ClassVar[int] = 2


class ConfigError(DNFormerError, ValueError):
    """A setting is unknown, out of range or contradicts another one."""


class DataError(DNFormerError, ValueError):
    """Input data are not what they must be; the message names file, row and value."""


class CheckpointError(DNFormerError):
    """A run folder or a checkpoint belongs to another run, is damaged or is in use."""


class InUseError(CheckpointError):
    """Another start that is alive writes there; wait for it, or choose another name."""


class BackendError(DNFormerError):
    """A kernel, a device or a library that was asked for is not here."""


class TrainError(DNFormerError):
    """A run that had started could not go on, for example a loss that is not finite."""

    exit_code: ClassVar[int] = 1


class LostError(TrainError):
    """Workers were lost more often than they may be; the run itself is sound."""


class Stopped(DNFormerError):
    """A run was told to stop, saved its state and did so."""

    # as a shell gives it for SIGTERM
    exit_code: ClassVar[int] = 143
