import pytest
import torch

from dnformer.bench.floor import (
    backward_reads,
    by_edge,
    by_table,
    forward_reads,
    source_reads,
)

HEADS, WIDTH, HIDDEN = 2, 3, 5


def whole_numbers(*size: int) -> torch.Tensor:
    """float32 whose sums are exact, in any order."""
    return torch.randint(-8, 9, size, generator=torch.Generator().manual_seed(0)).float()


@pytest.fixture(params=[0, 1, 7, 64], ids="E={}".format)
def row(request) -> torch.Tensor:
    return torch.randint(6, (request.param,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("floor", [by_table, by_edge])
def test_floor_reads_every_row_of_every_edge(floor, row, threads):
    torch.set_num_threads(threads)
    k, q = whole_numbers(6, HEADS, 2 * WIDTH), whole_numbers(6, HEADS, 2 * WIDTH)
    v, grad = whole_numbers(6, HEADS, WIDTH), whole_numbers(6, HEADS, WIDTH)
    w = whole_numbers(6, HIDDEN)
    col = row.flip(0).int()
    forward = floor([forward_reads(row, k, v, w)])
    assert forward() == k[row].sum() + v[row].sum() + w[row].sum()
    both = floor([backward_reads(row, k, v), source_reads(col, q, grad)])
    assert both() == k[row].sum() + v[row].sum() + q[col].sum() + grad[col].sum()
    assert both() == both()


@pytest.mark.parametrize("floor", [by_table, by_edge])
def test_floor_without_lambda_reads_no_hidden_rows(floor, row):
    k, v = whole_numbers(6, HEADS, WIDTH), whole_numbers(6, HEADS, WIDTH)
    step = floor([forward_reads(row, k, v, torch.empty(6, 0))])
    assert step() == k[row].sum() + v[row].sum()
