import pytest
import torch

from dnformer.bench import contenders, graphs
from dnformer.bench.contenders import BOTH, FORWARD, Contender, Problem
from dnformer.errors import ConfigError

UNIFORM = Problem(graphs.uniform(12, 60), heads=2, width=4)
BLOCK = UNIFORM._replace(graph=UNIFORM.graph._replace(colptr=UNIFORM.graph.colptr[:8]))
BLOCK = BLOCK._replace(graph=BLOCK.graph._replace(row=BLOCK.graph.row[: BLOCK.graph.colptr[-1]]))
PROBLEMS = {
    "uniform": UNIFORM,
    "block": BLOCK,
    "head": UNIFORM._replace(lam="head"),
    "single": UNIFORM._replace(attention="single"),
    "single_wide": UNIFORM._replace(attention="single_wide"),
}


def results(contender: Contender, problem: Problem, passes: str) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)  # of the layers' parameters
    return contender.step(problem, passes)()


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize(
    ("ours", "definition"),
    [
        (contenders.OP, contenders.REFERENCE_OP),
        (contenders.LAYER, contenders.REFERENCE_LAYER),
    ],
    ids=["op", "layer"],
)
def test_ours_and_the_reference_compute_the_same(ours, definition, problem):
    found, expected = (results(c, problem, BOTH) for c in (ours, definition))
    assert len(found) == len(expected) > 3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        assert one.abs().sum() > 0  # nobody is spared a gradient
    (alone,) = results(ours, problem, FORWARD)
    torch.testing.assert_close(alone, found[0].detach())
    assert not alone.requires_grad


@pytest.mark.parametrize("problem", [UNIFORM, BLOCK], ids=["uniform", "block"])
@pytest.mark.parametrize("peer", contenders.PEERS, ids=lambda peer: peer.impl)
def test_peer_gives_as_many_outputs_and_gradients_of_all_parameters(peer, problem):
    out, grad_x, *grads = results(peer, problem, BOTH)
    assert out.shape == (problem.graph.num_dst, 8)
    assert grad_x.shape == (12, 8)
    assert all(grad is not None for grad in grads)


def test_floor_of_a_problem_reads_what_the_operator_needs():
    inputs = contenders.operands(BLOCK)
    topology, (q, k), v, lam, grad_out = inputs
    source = k[topology.row].sum() + v[topology.row].sum()
    target = q[topology.dst()].sum() + grad_out[topology.dst()].sum()
    forward, both = source + lam.w[topology.row].sum(), source + target
    for build in (contenders.floor_by_table, contenders.floor_by_edge):
        assert build(inputs, FORWARD)() == pytest.approx(forward.item(), rel=1e-4, abs=1e-3)
        assert build(inputs, BOTH)() == pytest.approx((forward + both).item(), rel=1e-4, abs=1e-3)


def test_read_bytes_are_those_of_the_rows():
    inputs = contenders.operands(UNIFORM)
    tables = [inputs.qk.k, inputs.v, inputs.lam.w]
    assert UNIFORM.read_bytes(FORWARD) == 60 * 4 * sum(t[0].numel() for t in tables)
    tables += [inputs.qk.k, inputs.v, inputs.qk.q, inputs.grad_out]
    assert UNIFORM.read_bytes(BOTH) == 60 * 4 * sum(t[0].numel() for t in tables)


def test_transpose_step_gives_edges_by_source():
    rowptr, edge, col = results(contenders.TRANSPOSE, BLOCK, "once a batch")
    topology = BLOCK.graph.topology("cpu")
    source = torch.repeat_interleave(torch.arange(12), rowptr.diff())
    assert topology.row[edge.long()].tolist() == source.tolist()
    assert topology.dst()[edge.long()].tolist() == col.tolist()


DRAFT = """
import torch

def build_index(dst, src, num_nodes):
    return dst, src

def diff_attention(q, k, v, lam, index):
    dst, src = index
    message = lam.unsqueeze(-1) * v[src] * (q[dst] * k[src]).sum(-1, keepdim=True)
    return torch.zeros_like(v).index_add(0, dst, message)
"""


def test_yardstick_is_loaded_from_its_file(tmp_path):
    (tmp_path / "draft.py").write_text(DRAFT)
    draft = contenders.yardstick(str(tmp_path / "draft.py"))
    assert (draft.impl, draft.scope) == ("yardstick", "op")
    shapes = [tuple(t.shape) for t in results(draft, UNIFORM, BOTH)]
    assert shapes == [(12, 2, 4), (12, 2, 8), (12, 2, 8), (12, 2, 4), (60, 2)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.py", None, "there is no such file"),
        ("draft.txt", DRAFT, "is no Python file"),
        ("draft.py", "def build_index(): pass", "has no function diff_attention"),
    ],
)
def test_yardstick_that_is_none(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        contenders.yardstick(str(tmp_path / name))
