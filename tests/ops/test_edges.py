import pytest
import torch

from dnformer.ops.edges import edge_dot, edge_hidden, edge_sum

from .helpers import close, grads

# 700 edges of 8 KiB each: three chunks
NUM_EDGES, WIDTH = 700, 1024
I_INDEX = torch.arange(NUM_EDGES) * 3 // NUM_EDGES
J_INDEX = torch.arange(NUM_EDGES) * 7 % 4


def rows(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def naive_sum(weight: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    message = weight.unsqueeze(-1) * y[J_INDEX]
    return message.new_zeros(3, *y.shape[1:]).index_add(0, I_INDEX, message)


ENTRIES = {
    "edge_dot": (
        lambda x, y: edge_dot(x, y, I_INDEX, J_INDEX),
        lambda x, y: (x[I_INDEX] * y[J_INDEX]).sum(-1),
        {"x": rows(3, 2, WIDTH // 2), "y": rows(4, 2, WIDTH // 2)},
    ),
    "edge_sum": (
        lambda weight, y: edge_sum(weight, y, I_INDEX, J_INDEX, 3),
        naive_sum,
        {"weight": rows(NUM_EDGES, 2), "y": rows(4, 2, WIDTH // 2)},
    ),
    "edge_hidden": (
        lambda u, w, weight: edge_hidden(u, w, weight, I_INDEX, J_INDEX),
        lambda u, w, weight: (u[I_INDEX] + w[J_INDEX]).relu() @ weight.T,
        {"u": rows(3, WIDTH), "w": rows(4, WIDTH), "weight": rows(2, WIDTH)},
    ),
}


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("entry", ENTRIES)
def test_edges_chunks(entry: str) -> None:
    ours, naive, inputs = ENTRIES[entry]
    out, found = grads(ours, inputs)
    expected, expected_grads = grads(naive, inputs)
    close(out, expected)
    for name, gradient in found.items():
        close(gradient, expected_grads[name])


@pytest.mark.parametrize("entry", ["edge_dot", "edge_sum"])
def test_edges_threads(entry: str) -> None:
    ours, _, inputs = ENTRIES[entry]
    inputs = {name: x.float() for name, x in inputs.items()}
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(grads(ours, inputs))
    for out, found in results[1:]:
        assert torch.equal(out, results[0][0])
        assert all(torch.equal(found[name], results[0][1][name]) for name in found)


def test_edges_strided_inputs() -> None:
    # a slice of the rows and of the width, as a trimmed layer gives it
    _, naive, inputs = ENTRIES["edge_dot"]
    wide = {name: torch.cat([x, x], dim=-1)[..., 5:21] for name, x in inputs.items()}
    out, found = grads(ENTRIES["edge_dot"][0], wide)
    close(out, naive(**wide))
    assert found["x"].shape == (3, 2, 16)
    strided = edge_dot(wide["x"], wide["y"], I_INDEX, J_INDEX)
    close(strided, out)
