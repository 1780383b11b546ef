"""Measures of attention on literal small cases, and the identities that they keep."""

import math

import pytest
import torch

from dnformer.analysis.contrast import measures
from dnformer.analysis.measures import (
    auc_each,
    common_mode_energy,
    kept,
    label_lift,
    outliers,
    relative_weight,
    share_on,
    with_enough_neighbours,
)
from dnformer.analysis.weights import LayerAttention
from dnformer.errors import DataError
from dnformer.ops import Topology

# destinations with 2, 3 and 4 neighbours
TOPOLOGY = Topology(torch.tensor([0, 2, 5, 9]), torch.tensor([1, 2, 0, 1, 2, 0, 1, 2, 0]))


def softmax_of(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.softmax(0) for part in logits.split([2, 3, 4])])


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def random_logits(seed: int) -> torch.Tensor:
    return torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_energy_of_a_softmax_is_one_over_n():
    energy = common_mode_energy(TOPOLOGY, softmax_of(random_logits(0)))
    torch.testing.assert_close(energy, column(1 / 2, 1 / 3, 1 / 4).expand(-1, 2))


@pytest.mark.parametrize("lam", [0.2, 1.0, 1.7])
def test_a_constant_lambda_leaves_its_share_of_the_energy(lam):
    a1, a2 = softmax_of(random_logits(1)), softmax_of(random_logits(2))
    before, after = (common_mode_energy(TOPOLOGY, w) for w in (a1, a1 - lam * a2))
    torch.testing.assert_close(after, (1 - lam) ** 2 * before, rtol=0, atol=1e-15)


def test_equal_weights_have_ratio_and_entropy_1_and_no_contrast():
    equal = softmax_of(torch.zeros(9, 2, dtype=torch.float64))
    found = measures(TOPOLOGY, equal)
    one = torch.ones(3, 2, dtype=torch.float64)
    torch.testing.assert_close(found.common_mode, one)
    torch.testing.assert_close(found.entropy, one)
    torch.testing.assert_close(found.contrast, 0 * one)


def test_label_lift_by_hand():
    # |w| on the own class: 0.2 of 0.8, all of it, 0.5 of 1; neighbours of it: 1/2, 1, 2/4
    weights = column(0.2, -0.6, 0.1, 0.1, 0.1, 0.25, 0.25, 0.25, -0.25)
    same = torch.tensor([True, False, True, True, True, True, False, True, False])
    torch.testing.assert_close(label_lift(TOPOLOGY, weights, same), column(-0.25, 0.0, 0.0))


def test_label_lift_is_0_on_average_over_all_orders_of_the_labels():
    # of one node with three neighbours, one of which has its class
    topology, weights = Topology(torch.tensor([0, 3]), torch.arange(3)), column(0.7, 0.5, -0.2)
    lifts = [label_lift(topology, weights, torch.arange(3) == at) for at in range(3)]
    assert lifts[0].item() == pytest.approx(0.5 - 1 / 3)
    assert sum(lifts).item() == pytest.approx(0, abs=1e-15)


def test_label_lift_of_equal_weights_is_0():
    same = torch.tensor([True, False, False, True, False, True, True, True, False])
    equal = softmax_of(torch.zeros(9, 1, dtype=torch.float64))
    torch.testing.assert_close(label_lift(TOPOLOGY, equal, same), column(0, 0, 0))


def test_share_counts_what_is_subtracted_too():
    weights = column(0.5, -0.5, 0.2, 0.2, -0.6, 1, 0, 0, 0)
    some = torch.tensor([False, True, False, False, True, False, True, True, True])
    torch.testing.assert_close(share_on(TOPOLOGY, weights, some), column(0.5, 0.6, 0))


def test_relative_weight_counts_hubs_as_any_node():
    # equal within each node, so 1 wherever they are; the plain means would be 0.5 against 0.25
    equal = softmax_of(torch.zeros(9, 1, dtype=torch.float64))
    some = torch.zeros(9, dtype=torch.bool)
    some[0] = some[6] = True
    assert relative_weight(TOPOLOGY, equal, some).item() == pytest.approx(1)
    weights = column(0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.7, 0.1, 0.1)
    assert relative_weight(TOPOLOGY, weights, some).item() == pytest.approx((1.8 + 2.8) / 2)
    assert relative_weight(TOPOLOGY, weights, some & False).isnan().all()


def test_kept_edges_stay_with_their_destinations():
    some = torch.tensor([False, False, True, False, True, True, True, True, False])
    found = kept(TOPOLOGY, some)
    assert found.colptr.tolist() == [0, 0, 2, 5]
    assert found.row.tolist() == [0, 2, 0, 1, 2]


def attention(topology: Topology) -> LayerAttention:
    w = torch.arange(topology.num_edges, dtype=torch.float64).unsqueeze(-1)
    return LayerAttention(1, torch.tensor([4, 5, 6]), topology, w, None, None, w, s1=w)


def test_nodes_with_few_neighbours_are_left_out():
    found = with_enough_neighbours(attention(TOPOLOGY))
    assert found.nodes.tolist() == [5, 6]
    assert found.topology.colptr.tolist() == [0, 3, 7]
    assert found.topology.row.tolist() == TOPOLOGY.row[2:].tolist()
    for values in (found.w, found.a1, found.s1):
        assert values.squeeze(-1).tolist() == list(range(2, 9))
    assert found.lam is None


def test_a_graph_in_which_none_has_enough_is_refused():
    topology = Topology(torch.tensor([0, 2, 4, 4]), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DataError, match="no node has 3 neighbours"):
        with_enough_neighbours(attention(topology))


def test_auc_of_each_head():
    values = torch.tensor([[0.1, 0.3], [0.2, 0.3], [0.3, 0.3], [0.4, 0.3]])
    positive = torch.tensor([False, False, True, True])
    assert auc_each(values, positive).tolist() == [1, 0.5]
    assert auc_each(values, ~positive).tolist() == [0, 0.5]
    assert auc_each(values, positive | True).isnan().all()


def test_outliers_by_hand():
    found = outliers(torch.tensor([[-12.0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 0]]))
    assert (found.top_1, found.top_10) == (12, 2)
    plus_minus = outliers(torch.tensor([1.0, -1, 1, -1]))
    assert plus_minus == (1, 1, 1)
    assert math.isnan(outliers(torch.ones(3)).kurtosis)


def test_kurtosis_of_a_normal_sample_is_3():
    sample = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    assert outliers(sample).kurtosis == pytest.approx(3, abs=0.1)
