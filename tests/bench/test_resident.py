import numpy as np
import pytest

from dnformer.bench.resident import countable, status_bytes


@pytest.mark.skipif(not countable(), reason="this system does not count it")
def test_status_bytes_counts_a_block_that_is_touched_and_remembers_it() -> None:
    size = 64 << 20
    before = status_bytes("VmRSS")
    block = np.ones(size, np.uint8)
    assert status_bytes("VmRSS") >= before + size * 0.9
    del block
    assert status_bytes("VmHWM") >= before + size * 0.9
