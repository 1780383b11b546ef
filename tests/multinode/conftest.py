"""The drills' harness lies beside their scripts; where there can be no namespaces, tests skip."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs" / "drills"))


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where network namespaces can't be made, with the reason."""
    from harness.network import why_impossible

    reason = why_impossible()
    if reason is not None:
        pytest.skip(reason)
