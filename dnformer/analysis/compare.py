"""What was found of a run beside its twins: means over repeats, paired differences, and claims.

The claims are those of the papers, as bounds on what was measured. One is shown where a 95 %
bootstrap interval lies beyond its bound.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dnformer.analysis.findings import AREA, EVERYWHERE, Findings, Key, ratio_place
from dnformer.tuning.results import Paired, paired

Verdict = Literal["holds", "the opposite", "not shown", "one run: no interval"]


class Estimate(NamedTuple):
    """The mean over repeats, and its 95 % bootstrap interval; None of a single one."""

    mean: float
    low: float | None
    high: float | None
    values: list[float]


class Beside(NamedTuple):
    """A twin's number, and by how much the run's is above it, repeat by repeat."""

    twin: Estimate
    difference: Paired


class Row(NamedTuple):
    """One number of a run and its twins; None where a twin has no such thing, as lambda."""

    key: Key
    run: Estimate
    against: list[Beside | None]


def compare(run: Sequence[Findings], twins: Sequence[Sequence[Findings]]) -> list[Row]:
    """All rows; the findings are repeat by repeat, equally many of each."""
    rows = []
    for key in run[0]:
        values = [each[key] for each in run]
        against = [
            _beside(values, [each[key] for each in twin]) if key in twin[0] else None
            for twin in twins
        ]
        rows.append(Row(key, _estimate(values), against))
    return rows


def _estimate(values: list[float]) -> Estimate:
    mean, low, high, *_ = paired([0.0] * len(values), values)
    return Estimate(mean, low, high, values)


def _beside(values: list[float], twin: list[float]) -> Beside:
    return Beside(_estimate(twin), paired(twin, values))


class Claim(NamedTuple):
    """Something that a paper says, as a bound.

    Attributes:
        text: in words.
        key: what is looked at.
        of: the run's own number, or its difference from a twin.
        side: where the number is beyond the bound: "below", "above", or not "at" it.
        bound: of it.
    """

    text: str
    key: Key
    of: Literal["run", "difference"]
    side: Literal["below", "above", "not at"]
    bound: float = 0.0


def _attention(name: str) -> Key:
    return Key("attention", name, EVERYWHERE)


CLAIMS = (
    Claim(
        "The subtraction takes away common-mode energy",
        _attention("common-mode energy, share of the first softmax's (median)"), "run", "below", 1,
    ),
    Claim("Less common mode than one softmax", _attention("common-mode ratio"), "difference",
          "below"),
    Claim("More contrast than one softmax", _attention("contrast"), "difference", "above"),
    Claim("Lower entropy than one softmax", _attention("normalised entropy"), "difference",
          "below"),
    Claim("More attention on the own class than by one softmax", _attention("label lift"),
          "difference", "above"),
    Claim("Lambda tells edges within a class from others",
          Key("lambda", "AUC for edges within a class", EVERYWHERE), "run", "not at", 0.5),
    Claim("Lambda differs between edges (deviation over mean above 0.1)",
          Key("lambda", "standard deviation over mean", EVERYWHERE), "run", "above", 0.1),
    Claim("Smaller outliers among attention logits",
          Key("outliers", "logits, largest", EVERYWHERE), "difference", "below"),
    Claim("Smaller outliers among hidden states",
          Key("outliers", "hidden states, largest", EVERYWHERE), "difference", "below"),
    Claim("Logits of 6 bits cost at most 0.2 points", Key("quantised", "cost", "6 bits"),
          "run", "below", 0.002),
    Claim("Logits of 4 bits cost less than with one softmax",
          Key("quantised", "cost", "4 bits"), "difference", "below"),
    Claim("A noise edge weighs less than a true one (E noise edges)",
          Key("noise at test", "weight of a noise edge over a true one", ratio_place(1)), "run",
          "below", 1),
    Claim("Noise edges at test cost less than with one softmax",
          Key("noise at test", "cost", AREA), "difference", "below"),
    Claim("Noise edges at training cost less than with one softmax",
          Key("noise at training", "cost", AREA), "difference", "below"),
    *(
        Claim(f"Less attention on {count} distractors than by one softmax",
              Key("distractors", "share of attention", f"{count} a node, {EVERYWHERE}"),
              "difference", "below")
        for count in (4, 16, 64)
    ),
)  # fmt: skip


class Judged(NamedTuple):
    """What came out of a claim.

    Attributes:
        claim: it.
        twin: number of the twin that it is about; None: the run's own number.
        found: what was measured.
        verdict: in words.
    """

    claim: Claim
    twin: int | None
    found: Estimate | Paired
    verdict: Verdict


def judge(rows: Sequence[Row]) -> list[Judged]:
    """Each claim about which something was measured."""
    by_key = {row.key: row for row in rows}
    return [found for claim in CLAIMS for found in _judge(claim, by_key)]


def _judge(claim: Claim, rows: Mapping[Key, Row]) -> Iterator[Judged]:
    row = rows.get(claim.key)
    if row is None:
        return
    if claim.of == "run":
        yield _judged(claim, None, row.run)
        return
    for number, beside in enumerate(row.against):
        if beside is not None:
            yield _judged(claim, number, beside.difference)


def _judged(claim: Claim, twin: int | None, found: Estimate | Paired) -> Judged:
    return Judged(claim, twin, found, _verdict(claim, found.low, found.high))


def _verdict(claim: Claim, low: float | None, high: float | None) -> Verdict:
    if low is None or high is None:
        return "one run: no interval"
    below, above = high < claim.bound, low > claim.bound
    if claim.side == "not at":
        return "holds" if below or above else "not shown"
    if below or above:
        return "holds" if below == (claim.side == "below") else "the opposite"
    return "not shown"


def plain(rows: Sequence[Row], twins: Sequence[str]) -> list[dict[str, Any]]:
    """The rows as plain values, twins by their URI."""
    return [
        {
            **row.key._asdict(),
            "run": row.run._asdict(),
            "against": {
                uri: None
                if beside is None
                else beside.twin._asdict() | {"difference": beside.difference._asdict()}
                for uri, beside in zip(twins, row.against, strict=True)
            },
        }
        for row in rows
    ]
