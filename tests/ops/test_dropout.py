import math

import pytest
import torch

from dnformer.ops import Dropout
from dnformer.ops.dropout import keep_mask

WORD = 2**64


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def keep(seed: int, edge: int, head: int, *, num_heads: int, p: float) -> bool:
    """The contract in Python's own integers."""
    counter = edge * num_heads + head + 1
    bits = mix((mix(seed % WORD) + counter * 0x9E3779B97F4A7C15) % WORD) >> 40
    return bits >= math.ceil(p * 2**24)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63 - 1, -5])
@pytest.mark.parametrize(("num_heads", "p"), [(1, 0.5), (3, 0.1), (2, 0.9)])
def test_keep_mask_contract(seed: int, num_heads: int, p: float) -> None:
    found = keep_mask(Dropout(p, torch.tensor(seed)), num_edges=50, num_heads=num_heads)
    expected = [
        [keep(seed, edge, head, num_heads=num_heads, p=p) for head in range(num_heads)]
        for edge in range(50)
    ]
    assert found.tolist() == expected


def test_keep_mask_pinned() -> None:
    found = keep_mask(Dropout(0.5, torch.tensor(42)), num_edges=8, num_heads=2)
    assert found.int().tolist() == [
        [1, 0], [0, 0], [1, 0], [0, 0], [1, 0], [1, 1], [1, 0], [0, 1],
    ]  # fmt: skip


def test_keep_mask_leaves_seed() -> None:
    seed = torch.tensor(42)
    keep_mask(Dropout(0.5, seed), num_edges=3, num_heads=1)
    assert seed.item() == 42


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_keep_mask_rate(p: float) -> None:
    found = keep_mask(Dropout(p, torch.tensor(7)), num_edges=50_000, num_heads=4)
    # five standard errors; none at p = 0
    assert abs(found.double().mean().item() - (1 - p)) <= 5 * math.sqrt(p * (1 - p) / 200_000)
    by_head = found.double().mean(0)
    assert (by_head - (1 - p)).abs().max() <= 5 * math.sqrt(p * (1 - p) / 50_000)


def test_keep_mask_seeds_differ() -> None:
    masks = [
        keep_mask(Dropout(0.5, torch.tensor(seed)), num_edges=5000, num_heads=2)
        for seed in range(4)
    ]
    for a in range(4):
        for b in range(a):
            agree = (masks[a] == masks[b]).double().mean().item()
            assert abs(agree - 0.5) < 5 * math.sqrt(0.25 / 10_000)


def test_keep_mask_prefix() -> None:
    dropout = Dropout(0.3, torch.tensor(9))
    whole = keep_mask(dropout, num_edges=100, num_heads=2)
    assert torch.equal(keep_mask(dropout, num_edges=37, num_heads=2), whole[:37])
