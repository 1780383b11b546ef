"""What is said of measured numbers: estimates, paired differences and verdicts on claims."""

import pytest

from dnformer.analysis.compare import CLAIMS, Claim, compare, judge
from dnformer.analysis.findings import EVERYWHERE, Key

RATIO = Key("attention", "common-mode ratio", EVERYWHERE)
AUC = Key("lambda", "AUC for edges within a class", EVERYWHERE)


def findings(key: Key, *values: float) -> list[dict[Key, float]]:
    return [{key: value} for value in values]


def test_rows_have_means_intervals_and_paired_differences():
    twin = findings(RATIO, 0.5, 0.7, 0.9)
    (row,) = compare(findings(RATIO, 0.4, 0.6, 0.8), [twin])
    assert row.run.mean == pytest.approx(0.6)
    assert row.run[1:3] == (pytest.approx(0.4), pytest.approx(0.8))
    (beside,) = row.against
    assert beside.twin.values == [0.5, 0.7, 0.9]
    for value in beside.difference[:3]:
        assert value == pytest.approx(-0.1)
    assert beside.difference.num_pairs == 3


def test_a_single_run_has_no_interval():
    (row,) = compare(findings(RATIO, 0.4), [findings(RATIO, 0.5)])
    assert row.run == (0.4, None, None, [0.4])
    assert row.against[0].difference.mean_difference == pytest.approx(-0.1)
    assert [found.verdict for found in judge([row])] == ["one run: no interval"]


def test_a_twin_without_lambda_is_no_reason_to_leave_it_out():
    (row,) = compare(findings(AUC, 0.6, 0.7), [findings(RATIO, 1, 1), findings(AUC, 0.5, 0.5)])
    assert row.against[0] is None
    assert row.against[1].twin.mean == 0.5


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.4, 0.6, 0.8), "holds"),
        ((0.6, 0.8, 1.0), "the opposite"),
        ((0.4, 0.7, 1.0), "not shown"),
        ((0.5, 0.7, 0.9), "not shown"),
    ],
)
def test_a_difference_is_shown_where_its_interval_leaves_out_the_bound(values, verdict):
    rows = compare(findings(RATIO, *values), [findings(RATIO, 0.5, 0.7, 0.9)])
    (found,) = judge(rows)
    assert (found.claim.text, found.twin, found.verdict) == (
        "Less common mode than one softmax", 0, verdict,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.6, 0.7), "holds"), ((0.3, 0.4), "holds"), ((0.4, 0.6), "not shown")],
)
def test_an_auc_other_than_one_half_tells(values, verdict):
    (found,) = judge(compare(findings(AUC, *values), []))
    assert found.verdict == verdict
    assert found.twin is None


def test_each_twin_is_judged():
    twins = [findings(RATIO, 0.5, 0.6), findings(RATIO, 0.1, 0.2)]
    found = judge(compare(findings(RATIO, 0.3, 0.4), twins))
    assert [(each.twin, each.verdict) for each in found] == [(0, "holds"), (1, "the opposite")]


def test_claims_are_about_different_things():
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)
    assert all(isinstance(claim, Claim) for claim in CLAIMS)
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS)
