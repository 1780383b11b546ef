"""An explanation as tables and sentences, for the terminal and for a page."""

from collections.abc import Sequence
from typing import Any

from dnformer.explain.neighbours import Attended, Heads, Hop, Neighbour
from dnformer.explain.run import Explanation, Explanations, NodeFacts
from dnformer.report.page import Column, Row, Table, count

_MEANS = 5  # probabilities that are named
_FEATURES = 3  # that stand in a table
_LONGEST = 60
# would be 0.000
_SMALL = 5e-4

MEASURES = (
    ("w", "the weight of the neighbour's values, a1 - lambda · a2, as a mean over the heads: above "
     "0 the neighbour is kept, below 0 it is subtracted"),
    ("a1, a2, lambda", "both softmaxes over all neighbours, and how much of the second one is "
     "taken away; means over the heads"),
    ("share", "the part that the neighbour's term makes up of what attention gives the node, along "
     "that; over all neighbours the shares add up to 100 %"),
    ("push", "how the term moves the score, to first order: the gradient of the score by what "
     "attention gives, times the term. Over all neighbours of a node the pushes add up to that of "
     "its attention. It tells what the term does where everything else stays as it is, not what "
     "the model would say without the edge"),
)  # fmt: skip


def shown(value: Any) -> str:
    """A label or a prediction."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def signed(value: float) -> str:
    """A number with its sign, three digits after the point, or one digit of a smaller one."""
    small = 0 < abs(value) < _SMALL
    return (f"{value:+.0e}" if small else f"{value:+.3f}").replace("-", "−")


def plain(value: float) -> str:
    """A number without a sign."""
    return f"{value:.3f}"


def percent(value: float) -> str:
    """A share, which may be below 0."""
    return f"{100 * value:+.1f} %".replace("-", "−")


def features(facts: NodeFacts, most: int | None = None) -> str:
    """A node's largest features, by number; at most so many."""
    named = ", ".join(f"{number}: {value:.3g}" for number, value in facts.features[:most])
    more = facts.num_features - len(facts.features[:most])
    return (named or "all 0") + (f", and {more:,} more" if more else "")


_COLUMNS = (
    Column("neighbour"), Column("of"), Column("side"), Column("w", signed), Column("a1", plain),
    Column("a2", plain), Column("lambda", plain), Column("w by head"), Column("share", percent),
    Column("push", signed), Column("predicted"), Column("label"), Column("degree", count),
    Column("features"),
)  # fmt: skip


def summary(found: Explanation, kind: str) -> list[tuple[str, str]]:
    """What is known of the node, and what the model says."""
    own = found.facts[found.node]
    facts = [("predicted", shown(own.prediction)), ("label", shown(own.label))]
    if kind != "regression":
        likeliest = sorted(found.values.items(), key=lambda each: -each[1])
        listed = [f"{name} {100 * value:.2f} %" for name, value in likeliest[:_MEANS]]
        more = len(likeliest) - len(listed)
        facts.append(("probabilities", ", ".join(listed) + (f", and {more} more" if more else "")))
    if kind == "regression":
        facts.append(("score", found.score.name))
    else:
        facts.append(("score", f"{found.score.name}, {signed(found.score.value)}"))
    return [*facts, ("degree", count(own.degree)), ("features", features(own))]


def title(found: Explanation, explained: Explanations, hop: Hop) -> str:
    """What a hop is."""
    own = _name(found, found.node)
    if hop.number == 1:
        what = f"what node {own} attends to"
    else:
        left = f"; {hop.left_out:,} more are not followed" if hop.left_out else ""
        strongest = "its strongest neighbours" if hop.number == 2 else "the strongest of those"
        what = f"node {own}, what {strongest} attend to{left}"
    return f"Hop {hop.number}, layer {hop.layer} of {explained.layers}: {what}"


def hop_table(found: Explanation, explained: Explanations, hop: Hop, id_: str) -> Table:
    """The neighbours of a hop, those of each node together, and how many are not shown."""
    rows: Sequence[Row] = [row for each in hop.nodes for row in _rows(found, each)]
    columns: Sequence[Column] = _COLUMNS
    # what says nothing is left out: one node's neighbours, or no second softmax
    if hop.number == 1:
        columns, rows = _without("of", columns, rows)
    if all(neighbour.lam is None for each in hop.nodes for neighbour in each.shown):
        for name in ("a2", "lambda"):
            columns, rows = _without(name, columns, rows)
    return Table(id_, title(found, explained, hop), columns, rows)


def _without(
    name: str, columns: Sequence[Column], rows: Sequence[Row]
) -> tuple[list[Column], list[Row]]:
    place = [column.name for column in columns].index(name)
    return [*columns[:place], *columns[place + 1 :]], [
        [*row[:place], *row[place + 1 :]] for row in rows
    ]


def _rows(found: Explanation, attended: Attended) -> list[list[Any]]:
    rows, of = [], _name(found, attended.node)
    for side, word in ((attended.kept, "kept"), (attended.subtracted, "subtracted")):
        rows += [_row(found, attended.node, neighbour, word) for neighbour in side.shown]
        if side.left_out:
            name = f"{side.left_out:,} more, w in all"
            rows.append(_filled([name, of, word, side.weight_left_out]))
    return rows or [_filled(["no neighbour", of])]


def _filled(row: list[Any]) -> list[Any]:
    return row + [None] * (len(_COLUMNS) - len(row))


def _row(found: Explanation, node: int, neighbour: Neighbour, word: str) -> list[Any]:
    facts = found.facts[neighbour.node]
    name = _name(found, neighbour.node) + (" (itself)" if neighbour.node == node else "")
    by_head = " ".join(map(signed, neighbour.w.each))
    return [
        name, _name(found, node), word, neighbour.w.mean, neighbour.a1.mean, _mean(neighbour.a2),
        _mean(neighbour.lam), by_head, neighbour.share, neighbour.push, shown(facts.prediction),
        shown(facts.label), facts.degree, features(facts, _FEATURES),
    ]  # fmt: skip


def _mean(heads: Heads | None) -> float | None:
    return None if heads is None else heads.mean


def _name(found: Explanation, node: int) -> str:
    return short(found.facts[node].id)


def short(text: Any, longest: int = _LONGEST) -> str:
    """A user's text on one line, cut where it is long."""
    line = "".join(sign if sign.isprintable() else " " for sign in str(text))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def verdict(found: Explanation, hop: Hop) -> str:
    """A sentence on the neighbours of the node itself."""
    (own,) = hop.nodes
    towards = sum(neighbour.push > 0 for neighbour in own.shown)
    return (
        f"{_counted(own.kept.total)} kept and {own.subtracted.total:,} subtracted. Of the "
        f"{len(own.shown)} shown, {towards} push the {found.score.name} up. All neighbours "
        f"together, shown or not, push it by {signed(own.push)}, to first order."
    )


def _counted(number: int) -> str:
    return f"{number:,} neighbour was" if number == 1 else f"{number:,} neighbours were"
