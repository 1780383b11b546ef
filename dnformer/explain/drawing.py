"""The neighbourhood of a node as rings of dots: one ring a hop, a node at most once in each.

Coordinates are those of an SVG picture whose centre is (0, 0), in its pixels.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dnformer.explain import words
from dnformer.explain.neighbours import Neighbour
from dnformer.explain.run import Explanation, Explanations, NodeFacts
from dnformer.report.page import Block, Plotly

_RING = 165.0  # least distance of two rings
_APART = 26.0  # of two dots in a ring, at least
_LABEL = 110.0  # room for names around the last ring
_LETTERS = 14
_COLOURS = 8  # that the page's style has


@dataclass(frozen=True)
class Line:
    """An edge, from the dot of a neighbour to the dot of the node that attends to it.

    Attributes:
        of: the dot that attends.
        kept: whether its mean weight is above 0.
        neighbour: its values.
        itself: whether both are the same node.
    """

    of: "Dot"
    kept: bool
    neighbour: Neighbour
    itself: bool

    @property
    def widths(self) -> str:
        """The mean weight and that of each head, for the page's script."""
        return ",".join(f"{value:.6g}" for value in (self.neighbour.w.mean, *self.neighbour.w.each))

    def path(self, end: "Dot") -> str:
        """The way from the dot `end`, bent so that it goes around the centre, as SVG has it."""
        start = self.of
        if start.ring == 0:
            return f"M{end.x:.1f} {end.y:.1f}L{start.x:.1f} {start.y:.1f}"
        turn = math.remainder(end.angle - start.angle, 2 * math.pi)
        middle = start.angle + turn / 2
        away = math.hypot(end.x, end.y) / 2 + math.hypot(start.x, start.y) / 2
        away *= 1 + abs(turn) / (2 * math.pi)
        bend = f"{away * math.cos(middle):.1f} {away * math.sin(middle):.1f}"
        return f"M{end.x:.1f} {end.y:.1f}Q{bend} {start.x:.1f} {start.y:.1f}"

    @property
    def says(self) -> str:
        """Who uses the neighbour, and how much it brings."""
        own = " (itself)" if self.itself else ""
        return (
            f"{'kept' if self.kept else 'subtracted'} by {self.of.name}{own}, share "
            f"{words.percent(self.neighbour.share)}, push {words.signed(self.neighbour.push)}"
        )

    @property
    def columns(self) -> list[str]:
        """Of `rows`."""
        return ["head", "w", "a1", *([] if self.neighbour.lam is None else ["a2", "lambda"])]

    @property
    def rows(self) -> list[list[str]]:
        """Its values in each head, and their means."""
        _, w, a1, a2, lam, *_ = self.neighbour
        others = [values for values in (a1, a2, lam) if values is not None]
        rows = [
            [
                f"{head + 1}",
                words.signed(w.each[head]),
                *(words.plain(v.each[head]) for v in others),
            ]
            for head in range(len(w.each))
        ]
        return [*rows, ["mean", words.signed(w.mean), *(words.plain(v.mean) for v in others)]]


@dataclass
class Dot:
    """A node in a ring.

    Attributes:
        id: of its element, unique on the page.
        ring: 0 for the node that is explained.
        facts: what is known of it.
        lines: to the dots of the ring inside that attend to it, the strongest first.
        kind: number of its label among the classes, from 0; None where there is none.
        angle: in radians, clockwise from the right.
        x: from the centre to the right.
        y: from the centre downwards.
    """

    id: str
    ring: int
    facts: NodeFacts
    kind: int | None
    lines: list[Line] = field(default_factory=list)
    angle: float = 0.0
    x: float = 0.0
    y: float = 0.0

    @property
    def colour(self) -> int | None:
        """Number of its colour in the page's style, from 1."""
        return None if self.kind is None else self.kind % _COLOURS + 1

    @property
    def name(self) -> str:
        """Its id, cut where it is long."""
        return words.short(self.facts.id, _LETTERS)

    @property
    def is_wrong(self) -> bool:
        """Whether the model says something else than its class label."""
        return self.kind is not None and self.facts.prediction != self.facts.label

    @property
    def says(self) -> str:
        """The dot in a sentence."""
        text = f"{words.short(self.facts.id)}, predicted {words.shown(self.facts.prediction)}, "
        text += f"label {words.shown(self.facts.label)}"
        for line in self.lines:
            text += (
                f"; {'kept' if line.kept else 'subtracted'} by {words.short(line.of.facts.id)}, "
                f"w {words.signed(line.neighbour.w.mean)}"
            )
        return text

    @property
    def details(self) -> list[tuple[str, str]]:
        """What is known of the node."""
        return [
            ("predicted", words.shown(self.facts.prediction)),
            ("label", words.shown(self.facts.label)),
            ("degree", f"{self.facts.degree:,}"),
            ("features", words.features(self.facts)),
        ]

    @property
    def flipped(self) -> bool:
        """Whether its name is written from the other side, so that it is not upside down."""
        return math.cos(self.angle) < 0

    @property
    def degrees(self) -> float:
        """The turn of its name."""
        return math.degrees(self.angle) - (180 if self.flipped else 0)


@dataclass(frozen=True)
class Neighbourhood(Block):
    """The drawing of one explanation.

    Attributes:
        id: unique on the page.
        title: its heading.
        explanation: what is drawn.
        dots: all, ring by ring.
        rings: radius of each ring but the first.
        size: half of the width and of the height.
        heads: of the model.
        layers: (ring, what it is) for the choice of a layer.
        legend: (colour or None, number, class) of the labels that occur.
        last: the outermost ring, where names stand outside.
    """

    kind: ClassVar[str] = "neighbourhood"

    id: str
    title: str
    explanation: Explanation
    dots: list[Dot]
    rings: list[float]
    size: float
    heads: int
    layers: list[tuple[int, str]]
    legend: list[tuple[int | None, str, str]]
    last: int

    def numbers(self) -> dict[str, Any]:
        """The explanation."""
        return {self.id: self.explanation.as_dict()}

    def drawing(self) -> dict[str, Plotly]:
        """Nothing for plotly.js."""
        return {}


def neighbourhood(found: Explanation, explained: Explanations, id_: str) -> Neighbourhood:
    """The drawing of an explanation; `id_` is unique on the page."""
    classes = list(found.values) if explained.kind == "class" else []
    rings = _rings(found, classes, id_)
    radius = _place(rings)
    dots = [dot for ring in rings for dot in ring.values()]
    return Neighbourhood(
        id=id_,
        title=f"Neighbourhood of {words.short(found.facts[found.node].id)}",
        explanation=found,
        dots=dots,
        rings=[radius * number for number in range(1, len(rings))],
        size=radius * (len(rings) - 1) + _LABEL,
        heads=explained.heads,
        layers=[(hop.number, f"layer {hop.layer}, hop {hop.number}") for hop in found.hops],
        legend=_legend(dots, classes),
        last=len(rings) - 1,
    )


def _rings(found: Explanation, classes: list[str], id_: str) -> list[dict[int, Dot]]:
    """The dots of each ring by node, each with its lines."""

    def dot(node: int, ring: int) -> Dot:
        facts = found.facts[node]
        kind = classes.index(facts.label) if facts.label in classes else None
        return Dot(f"{id_}-{ring}-{node}", ring, facts, kind)

    rings = [{found.node: dot(found.node, 0)}]
    for hop in found.hops:
        ring: dict[int, Dot] = {}
        for attended in hop.nodes:
            for neighbour in attended.shown:
                node = neighbour.node
                at = ring.setdefault(node, dot(node, hop.number))
                kept, itself = neighbour.w.mean > 0, node == attended.node
                at.lines.append(Line(rings[-1][attended.node], kept, neighbour, itself))
        rings.append(ring)
    for ring in rings:
        for at in ring.values():
            at.lines.sort(key=lambda line: -abs(line.neighbour.w.mean))
    return rings


def _place(rings: list[dict[int, Dot]]) -> float:
    """Gives each dot its place, near the one that attends to it most; the rings' distance."""
    dots = [dot for ring in rings for dot in ring.values()]
    under: dict[str, list[Dot]] = {dot.id: [] for dot in dots}
    for dot in dots[1:]:
        under[dot.lines[0].of.id].append(dot)
    room: dict[str, float] = {}
    # from the outside, so that a dot has room for all that hangs on it
    for dot in reversed(dots):
        least = 2.0 if dot.ring < len(rings) - 1 else 1.0
        room[dot.id] = max(least, sum(room[each.id] for each in under[dot.id]))
    centre = dots[0]
    turn = 2 * math.pi / room[centre.id]
    radius = max(_RING, _APART / (turn * max(len(rings) - 1, 1)))
    begin = {centre.id: -math.pi / 2}
    for dot in dots:
        at = begin[dot.id]
        for each in under[dot.id]:
            begin[each.id] = at
            each.angle = at + room[each.id] * turn / 2
            each.x = radius * each.ring * math.cos(each.angle)
            each.y = radius * each.ring * math.sin(each.angle)
            at += room[each.id] * turn
    return radius


def _legend(dots: list[Dot], classes: list[str]) -> list[tuple[int | None, str, str]]:
    if not classes:
        return []
    there = {dot.kind: dot.colour for dot in dots}
    legend: list[tuple[int | None, str, str]] = [
        (there[number], str(number), words.short(f"class {name}" if name == str(number) else name))
        for number, name in enumerate(classes)
        if number in there
    ]
    return legend + ([(None, "", "no label")] if None in there else [])
