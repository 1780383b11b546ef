import pytest
import torch

from dnformer.bench import ops
from dnformer.bench.ops import CASES, Settings
from dnformer.errors import BackendError, ConfigError

# the shape of test_contenders: each is compiled once
TINY = Settings(repeats=1, scale=1e-3, shape=(2, 4), memory=False)


def found(*names: str, settings: Settings = TINY) -> list[ops.Findings]:
    return list(ops.run(settings, names, threads=1, say=lambda text: None))


def impls(findings: ops.Findings, scope: str) -> set[str]:
    return {row.impl for row in findings.rows if row.scope == scope}


@pytest.mark.parametrize("case", ["layer-2x32", "layer-4x64"])
def test_layer_case_has_all_peers(case):
    (findings,) = found(case)
    peers = {"dnformer", "reference", "TransformerConv", "GATv2Conv", "GATConv"}
    assert impls(findings, "layer") == peers
    assert impls(findings, "floor") == {"floor"}
    assert {row.passes for row in findings.rows} == {"forward", "forward+backward"}
    ratio, reference, memory, edges = findings.targets
    assert ratio.at_least == {"layer-2x32": 6, "layer-4x64": 5}[case]
    assert reference.at_least == 10
    assert memory.met is edges.met is None
    (peer,) = (r for r in findings.rows if (r.impl, r.passes) == ("TransformerConv", ops.BOTH))
    assert ratio.found == peer.to_ours


def test_op_case_races_a_yardstick_where_one_is_given(tmp_path):
    (findings,) = found("op-4x64")
    assert impls(findings, "op") == {"dnformer", "reference"}
    assert impls(findings, "floor") == {"floor", "floor by edge"}
    assert impls(findings, "graph") == {"transpose"}
    assert findings.targets[0].met is None
    assert findings.targets[1].at_most == 3
    draft = tmp_path / "draft.py"
    draft.write_text(
        "build_index = lambda dst, src, num_nodes: None\n"
        "diff_attention = lambda q, k, v, lam, index: v + 0 * (q.sum() + k.sum() + lam.sum())\n"
    )
    (findings,) = found("op-4x64", settings=TINY._replace(yardstick=str(draft)))
    assert impls(findings, "op") == {"dnformer", "reference", "yardstick"}
    assert findings.targets[0].found is not None


@pytest.mark.parametrize("case", ["power-law", "block"])
def test_graph_case_has_operator_and_layers(case):
    (findings,) = found(case)
    assert impls(findings, "op") == {"dnformer", "reference"}
    assert len(impls(findings, "layer")) == 5


def test_scaling_case_gives_a_slope_for_each_series():
    (findings,) = found("scaling")
    edges = [row.num_edges for row in findings.rows if row.scope == "op"]
    assert edges == 2 * [100, 300, 1000, 3000, 10_000]
    nodes, degree = findings.targets
    assert (nodes.at_least, nodes.at_most) == (0.9, 1.1)
    assert degree.at_most is None


def test_star_case_compares_hubs_with_equal_edges():
    (findings,) = found("star")
    assert {row.num_edges for row in findings.rows} == {1000}
    assert [target.at_most for target in findings.targets] == [1.5] * 4


def test_modes_case_compares_two_softmaxes_with_one():
    (findings,) = found("modes")
    modes = {"diff, lambda edge", "diff, lambda head", "single", "single_wide"}
    assert impls(findings, "op") == impls(findings, "layer") == impls(findings, "floor") == modes
    assert [target.at_most for target in findings.targets] == [2.2] * 4


def test_unknown_case_names_the_nearest():
    with pytest.raises(ConfigError, match="no case 'layer-4x46'; did you mean 'layer-4x64'"):
        found("layer-4x46")


def test_wrong_settings_are_refused_before_anything_runs():
    said: list[str] = []
    for settings, error in (
        (Settings(yardstick="nowhere.py"), ConfigError),
        (Settings(device="tpu"), ConfigError),
    ):
        with pytest.raises(error):
            list(ops.run(settings, [], threads=1, say=said.append))
    assert said == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_gpu_without_one_is_refused():
    with pytest.raises(BackendError, match="no CUDA device"):
        found("gpu")
    with pytest.raises(BackendError, match="no CUDA device"):
        found("modes", settings=TINY._replace(device="cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_case_gives_a_share_of_the_copy_bandwidth():
    (findings,) = found("gpu")
    shares = [
        row.copy_share for row in findings.rows if (row.scope, row.impl) == ("op", "dnformer")
    ]
    assert len(shares) == 8
    assert all(shares)


def test_as_json_has_stable_keys():
    json = ops.as_json(found("star"))
    assert {"rows", "targets", "versions", "threads"} <= json.keys()
    row, target = json["rows"][0], json["targets"][0]
    assert {"case", "impl", "passes", "seconds", "low", "high", "to_ours", "to_floor",
            "extra_bytes", "bytes_per_edge_head"} <= row.keys()  # fmt: skip
    assert {"case", "name", "found", "at_least", "at_most", "met"} == target.keys()
    assert {"torch", "torch_geometric", "numba"} <= json["versions"].keys()


def test_every_case_says_what_it_is():
    assert set(CASES) == {
        "layer-2x32", "layer-4x64", "op-2x32", "op-4x64", "power-law", "block", "scaling", "star",
        "modes", "startup", "gpu",
    }  # fmt: skip


def test_setting_that_no_case_reads_warns(make_graph):
    said: list[str] = []
    uri = make_graph([(0, 1), (1, 0)]).uri
    ops.run(TINY._replace(graph=uri), ["modes"], threads=1, say=said.append)
    assert said == ["warning: --graph is ignored, only block and power-law read it"]
