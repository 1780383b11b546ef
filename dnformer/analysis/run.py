"""Analyses runs repeat by repeat, each beside its twins."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dnformer import storage
from dnformer.analysis.compare import Judged, Row, compare, judge, plain
from dnformer.analysis.contrast import Lambdas
from dnformer.analysis.findings import (
    Findings,
    Subject,
    attention_findings,
    distractor_findings,
    lambda_spread,
    noise_findings,
    quantised_findings,
)
from dnformer.analysis.opened import Opened, common, find, open_subject
from dnformer.analysis.train_noise import train_noise_findings
from dnformer.config import StorageConfig
from dnformer.errors import ConfigError
from dnformer.training.objectives import METRICS

_MEASURED: tuple[tuple[str, Callable[[Subject], Findings]], ...] = (
    ("attention", attention_findings),
    ("quantised logits", quantised_findings),
    ("noise edges", noise_findings),
    ("distractors", distractor_findings),
)


class Asked(NamedTuple):
    """What is to be analysed.

    Attributes:
        run: folder of a run, or of its repeats.
        against: of its twins, trained on the same data.
        most_nodes: nodes whose attention is looked at, drawn evenly; None: all.
        train_noise: folder of runs on noisy graphs, which are then trained, too; None: not.
        reached: how stores are reached.
    """

    run: str
    against: Sequence[str] = ()
    most_nodes: int | None = None
    train_noise: str | None = None
    reached: StorageConfig = StorageConfig()


class Analysis(NamedTuple):
    """What was found.

    Attributes:
        run: the run.
        twins: what it was compared with.
        repeats: numbers of the repeats that all have.
        rows: all numbers.
        claims: what they say of the papers' claims.
        metric: the score.
        nodes: whose attention was looked at.
        num_nodes: of the graph.
        lambdas: how lambda is spread in each layer of the run's first repeat.
    """

    run: Opened
    twins: list[Opened]
    repeats: list[int]
    rows: list[Row]
    claims: list[Judged]
    metric: str
    nodes: int
    num_nodes: int
    lambdas: list[Lambdas]

    @property
    def percent(self) -> bool:
        """Whether the score is a share, which is shown in per cent."""
        return METRICS[self.metric].percent

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        uris = [twin.uri for twin in self.twins]
        return {
            "run": self.run.uri,
            "against": uris,
            "repeats": self.repeats,
            "metric": self.metric,
            "nodes": self.nodes,
            "num_nodes": self.num_nodes,
            "rows": plain(self.rows, uris),
            "claims": [
                {
                    "claim": found.claim.text,
                    **found.claim.key._asdict(),
                    "against": None if found.twin is None else uris[found.twin],
                    "of": found.claim.of,
                    "mean": found.found[0],
                    "low": found.found.low,
                    "high": found.found.high,
                    "verdict": found.verdict,
                }
                for found in self.claims
            ],
        }


def analyse(asked: Asked, say: Callable[[str], None]) -> Analysis:
    """Measures a run and its twins, repeat by repeat.

    Args:
        asked: what is to be analysed.
        say: takes lines about what is going on.

    Raises:
        DNFormerError: a folder holds no finished DNFormer, or two runs are no pair.
    """
    storage.configure(asked.reached)
    run, *twins = runs = [find(uri) for uri in (asked.run, *asked.against)]
    if len({each.uri for each in runs}) < len(runs):
        raise ConfigError("a run stands twice; name different ones")
    repeats = common(runs)
    found: list[list[Findings]] = [[] for _ in runs]
    for number in repeats:
        for each, findings in zip(runs, found, strict=True):
            findings.append(_measure(each.repeats[number], asked, say))
    rows = compare(found[0], found[1:])
    first, _ = open_subject(run.repeats[repeats[0]], asked.reached, most_nodes=asked.most_nodes)
    return Analysis(
        run, twins, repeats, rows, judge(rows), first.metric, len(first.nodes),
        first.graph.num_nodes, lambda_spread(first),
    )  # fmt: skip


def _measure(uri: str, asked: Asked, say: Callable[[str], None]) -> Findings:
    subject, config = open_subject(uri, asked.reached, most_nodes=asked.most_nodes)
    findings: Findings = {}
    for what, measure in _MEASURED:
        say(f"{config.name}: {what}")
        findings |= measure(subject)
    if asked.train_noise is not None:
        findings |= train_noise_findings(subject, config, asked.train_noise, say)
    return findings
