from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def poison() -> Iterator[None]:
    """Fills memory that is allocated and not set with NaN, and refuses what is not reproducible."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
