"""The section on attention: how far each head tells neighbours apart, and what lambda is."""

from typing import cast

import numpy as np

from dnformer.analysis.contrast import FEWEST, Contrast, contrast_of, sampled_nodes
from dnformer.analysis.weights import attention_parts
from dnformer.data.graph import Graph
from dnformer.nn import DNFormer
from dnformer.nn.node_model import NodeModel
from dnformer.report.charts import axis, bars, line, named_axis
from dnformer.report.page import Block, Column, Figure, Section, Table, Words, count, number

# edges of the nodes that are looked at, at most
_EDGES = 4_000_000
_LAMBDA_BINS = 60
_MEASURES = (
    ("Common-mode ratio", "1 where a node's neighbours all weigh the same, 0 where they add up "
     "to nothing."),
    ("Contrast", "how far weights spread: their deviation times the number of neighbours."),
    ("Normalised entropy", "1 where all weights are as large, 0 where one has them all."),
)  # fmt: skip


def attention(model: NodeModel, graph: Graph, most_nodes: int) -> Section:
    """What is shown of a DNFormer; the cost is bounded by looking at some nodes.

    Args:
        model: trained.
        graph: its dataset.
        most_nodes: that are looked at.
    """
    nodes = sampled_nodes(graph, most_nodes, most_edges=_EDGES)
    everyone = len(nodes) == graph.num_nodes
    # without a selection all layers are computed in order, which is faster
    parts = attention_parts(cast(DNFormer, model), graph, None if everyone else nodes)
    found = contrast_of(parts)
    return Section("attention", "Attention", _blocks(found, len(nodes), graph.num_nodes))


def _blocks(found: Contrast, looked_at: int, of: int) -> list[Block]:
    of_nodes = f"all {of:,} nodes" if looked_at == of else f"{looked_at:,} of {of:,} nodes, drawn"
    measured = found.heads[0].nodes
    said = (
        f"Of {of_nodes}, the {measured:,} with at least {FEWEST} neighbours, self-loops included."
    )
    if not measured:
        return [Words(f"{said} There is nothing to measure.", notice=True)]
    differential = bool(found.lambdas)
    blocks: list[Block] = [Words(said)]
    blocks += [_measure(found, place, differential=differential) for place in range(3)]
    if not differential:
        return [*blocks, Words("The model has one softmax, so there is no lambda.")]
    return [*blocks, _histogram(found), _lambda_table(found)]


def _measure(found: Contrast, place: int, *, differential: bool) -> Figure:
    title, meaning = _MEASURES[place]
    heads = [f"L{row.layer} H{row.head}" for row in found.heads]
    first = [row.first[place] for row in found.heads]
    weights = [row.weights[place] for row in found.heads]
    x = range(len(heads))
    # by its mean over the heads of the last layer
    last = [at for at, row in enumerate(found.heads) if row.layer == found.heads[-1].layer]
    before, after = (float(np.mean([values[at] for at in last])) for values in (first, weights))
    if differential:
        traces = [bars("first softmax", x, first, number=5), bars("weights", x, weights, number=0)]
        says = f"In the last layer {after:.4g}, of the first softmax alone {before:.4g}. It is "
    else:
        traces, says = [bars("softmax", x, weights)], f"In the last layer {after:.4g}. It is "
    columns = [Column("layer", count), Column("head", count), Column("first softmax", number),
               Column("weights", number)]  # fmt: skip
    rows = [
        [row.layer, row.head, a, b] for row, a, b in zip(found.heads, first, weights, strict=True)
    ]
    return Figure(
        title=title,
        says=says + meaning,
        traces=traces,
        layout={
            "xaxis": named_axis(heads, "layer and head"), "yaxis": axis(title.lower()),
            "barmode": "group", "showlegend": differential,
        },
        table=Table(title.lower().replace(" ", "-"), f"{title} by layer and head", columns, rows),
        height=320,
    )  # fmt: skip


def _histogram(found: Contrast) -> Figure:
    traces, rows = [], []
    # up to the last bin that any layer has something in, some of them together
    last = max(int(np.flatnonzero(each.edges).max(initial=0)) for each in found.lambdas)
    merged = last // _LAMBDA_BINS + 1
    starts, width = np.arange(0, last + 1, merged), merged * found.lambdas[0].width
    for place, each in enumerate(found.lambdas):
        edges = np.add.reduceat(each.edges[: last + 1], starts)
        total = int(each.edges.sum()) + each.above
        x = (np.arange(len(starts) + 1) * width).tolist()
        y = [*(edges / total).tolist(), 0.0]
        steps = line(f"layer {each.layer}", x, y, number=place, dash=place)
        steps["mode"], steps["line"]["shape"] = "lines", "hv"
        traces.append(steps)
        rows += [[each.layer, a, int(n)] for a, n in zip(x, edges, strict=False) if n]
    above = sum(each.above for each in found.lambdas)
    more = f" {above:,} are above the last bin." if above else ""
    return Figure(
        title="Lambda",
        says=f"How often lambda has which value on the edges, in bins of {width:g}, all heads of a "
        f"layer together.{more}",
        traces=traces,
        layout={
            "xaxis": axis("lambda", rangemode="tozero"),
            "yaxis": axis("share of edges and heads", percent=True, rangemode="tozero"),
            "showlegend": True,
        },
        table=Table(
            "lambda", "Edges and heads by lambda",
            [Column("layer", count), Column("lambda from", number), Column("how many", count)],
            rows,
        ),
    )  # fmt: skip


def _lambda_table(found: Contrast) -> Table:
    rows = [[row.layer, row.head, *row.lam] for row in found.heads if row.lam is not None]
    names = ("mean", "standard deviation", "least", "greatest")
    columns = [Column("layer", count), Column("head", count), *(Column(n, number) for n in names)]
    return Table("lambda-heads", "Lambda of each head", columns, rows)
