"""Drill: several needles in a haystack, found by differential attention and by one softmax.

    python jobs/drills/needles.py

A place of a sequence holds a word and a number. N of the words are needles, at random places among
filler; R of them are asked for at the end, and a model of two layers answers each with its number.
The two models have the same data, steps, seeds and, to 1 %, parameters. They differ in attention:
the Differential Transformer's, or softmax with twice the heads. All figures are means over seeds on
new sequences with 95 % t-intervals; differences are taken seed by seed. "On the needle" is the
share of a question's |attention| that the needle asked for gets, in the head where that is largest.
"""

import argparse
import json
import sys
from typing import Any, NamedTuple

import torch
from scipy import stats
from torch import Tensor, nn

from dnformer.nn.zoo.differential import (
    DifferentialAttention,
    SequenceBlock,
    softmax_maps,
    turned,
)

MODELS = ("differential", "softmax")
COLUMNS = (
    "N", "R", "attention", "accuracy %", "by depth, first to last quarter", "on the needle %",
    "on the other needles %",
)  # fmt: skip
DEPTHS = 4


class Task(NamedTuple):
    """What sequences look like.

    Attributes:
        needles: N.
        queries: R.
        length: places before the questions.
        keys: words that may be needles.
        numbers: that there are.
        filler: other words.
    """

    needles: int
    queries: int
    length: int = 32
    keys: int = 32
    numbers: int = 16
    filler: int = 64

    @property
    def words(self) -> int:
        """All words."""
        return self.keys + self.filler


class Sequences(NamedTuple):
    """A batch.

    Attributes:
        words: of each place `[B, T]`; the last R are asked for.
        numbers: of each place `[B, T]`; those asked for have `Task.numbers`, that is, none.
        answers: to the questions `[B, R]`.
        places: of the needles `[B, N]`, those asked for first.
    """

    words: Tensor
    numbers: Tensor
    answers: Tensor
    places: Tensor


def draw(task: Task, batch: int, generator: torch.Generator) -> Sequences:
    """Random sequences; filler has numbers too, so that a number alone tells no needle."""
    size = task.length + task.queries

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    def distinct(high: int, count: int) -> Tensor:
        return torch.rand(batch, high, generator=generator).argsort(1)[:, :count]

    words = task.keys + integers(task.filler, batch, size)
    numbers = integers(task.numbers, batch, size)
    keys, places = distinct(task.keys, task.needles), distinct(task.length, task.needles)
    words.scatter_(1, places, keys)
    words[:, task.length :] = keys[:, : task.queries]
    numbers[:, task.length :] = task.numbers
    return Sequences(words, numbers, numbers.gather(1, places[:, : task.queries]), places)


class SoftmaxAttention(nn.Module):
    """Causal softmax attention with rotary positions, without biases."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(channels, channels, bias=False) for _ in range(4)
        )
        for linear in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] to the same."""
        q, k, v = (
            turned(self._heads(self.query(x))),
            turned(self._heads(self.key(x))),
            self.value(x),
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, self._heads(v), is_causal=True)
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return out

    def maps(self, x: Tensor) -> Tensor:
        """[B, H, T, T]."""
        q, k = turned(self._heads(self.query(x))), turned(self._heads(self.key(x)))
        return softmax_maps(q, k, causal=True)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Model(nn.Module):
    """Word and number of each place, added up; two blocks; the numbers' scores."""

    def __init__(self, kind: str, task: Task, channels: int = 48, heads: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(task.words, channels)
        self.numbers = nn.Embedding(task.numbers + 1, channels)
        blocks = []
        for depth in (1, 2):
            attention: nn.Module = (
                DifferentialAttention(channels, heads, depth=depth, causal=True, rotary=True)
                if kind == "differential"
                else SoftmaxAttention(channels, 2 * heads)
            )
            blocks.append(SequenceBlock(attention, channels))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(channels, eps=1e-5)
        self.head = nn.Linear(channels, task.numbers, bias=False)

    def forward(self, given: Sequences) -> Tensor:
        """Scores `[B, R, numbers]`."""
        h = self.words(given.words) + self.numbers(given.numbers)
        for block in self.blocks:
            h = block(h)
        scores: Tensor = self.head(self.norm(h[:, -given.answers.shape[1] :]))
        return scores

    def maps(self, given: Sequences) -> Tensor:
        """Attention `[layers, B, H, R, T]` of the questions."""
        h, found = self.words(given.words) + self.numbers(given.numbers), []
        for block in self.blocks:
            found.append(block.attention.maps(block.norm1(h))[:, :, -given.answers.shape[1] :])
            h = block(h)
        return torch.stack(found)


class Found(NamedTuple):
    """What one trained model does, as shares of 1."""

    accuracy: float
    by_depth: list[float]
    on_needle: float
    on_others: float


def trained(kind: str, task: Task, seed: int, *, steps: int, batch: int) -> Model:
    """A model after so many steps on new sequences; both kinds see the same ones."""
    torch.manual_seed(seed)
    model, generator = Model(kind, task), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        given = draw(task, batch, generator)
        loss = nn.functional.cross_entropy(model(given).flatten(0, 1), given.answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def measured(model: Model, task: Task, *, sequences: int) -> Found:
    """On sequences that no model was trained on."""
    given = draw(task, sequences, torch.Generator().manual_seed(10**6))
    right = (model(given).argmax(2) == given.answers).float()
    quarter = given.places[:, : task.queries] * DEPTHS // task.length
    # magnitudes: differential weights may be negative
    maps = model.maps(given).abs()
    maps = maps / maps.sum(-1, keepdim=True)
    index = given.places[:, None, None].expand(*maps.shape[:-1], -1)
    on_each = maps.gather(-1, index)  # [layers, B, H, R, N]
    on_all = on_each.sum(-1).mean((1, 3))  # [layers, H]
    on_it = on_each.diagonal(dim1=3, dim2=4).mean((1, 3))
    best = int(on_it.argmax())
    return Found(
        float(right.mean()),
        [float(right[quarter == depth].mean()) for depth in range(DEPTHS)],
        float(on_it.flatten()[best]),
        float((on_all - on_it).flatten()[best]),
    )


def interval(values: list[float]) -> dict[str, float]:
    """Mean and half the width of its 95 % t-interval; 0 of one value."""
    found = torch.tensor(values, dtype=torch.float64)
    if len(values) < 2:
        return {"mean": float(found.mean()), "half": 0.0}
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return {"mean": float(found.mean()), "half": quantile * float(found.std()) / len(values) ** 0.5}


def compared(task: Task, seeds: int, *, steps: int, batch: int) -> list[dict[str, Any]]:
    """A row for each model, and one for the differences."""
    found = {
        kind: [
            measured(trained(kind, task, seed, steps=steps, batch=batch), task, sequences=1000)
            for seed in range(seeds)
        ]
        for kind in MODELS
    }
    rows = [{"attention": kind} | _figures(found[kind]) for kind in MODELS]
    first, second = (found[kind] for kind in MODELS)
    rows.append({"attention": "difference"} | _figures([
        Found(
            a.accuracy - b.accuracy,
            [x - y for x, y in zip(a.by_depth, b.by_depth, strict=True)],
            a.on_needle - b.on_needle,
            a.on_others - b.on_others,
        )
        for a, b in zip(first, second, strict=True)
    ]))  # fmt: skip
    return [{"needles": task.needles, "queries": task.queries} | row for row in rows]


def _figures(found: list[Found]) -> dict[str, Any]:
    return {
        "accuracy": interval([one.accuracy for one in found]),
        "by_depth": [
            sum(part) / len(part) for part in zip(*(one.by_depth for one in found), strict=True)
        ],
        "on_needle": interval([one.on_needle for one in found]),
        "on_others": interval([one.on_others for one in found]),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown, in percent."""

    def cell(value: dict[str, float]) -> str:
        return f"{100 * value['mean']:.1f} ± {100 * value['half']:.1f}"

    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for row in rows:
        depths = ", ".join(f"{100 * part:.0f}" for part in row["by_depth"])
        lines.append((
            str(row["needles"]), str(row["queries"]), row["attention"], cell(row["accuracy"]),
            depths, cell(row["on_needle"]), cell(row["on_others"]),
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Trains and measures all models and prints a Markdown table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["2,1", "6,3"], metavar="N,R")
    parser.add_argument("--length", type=int, default=32, help="places before the questions")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600, help="of training")
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    rows = []
    for one in given.tasks:
        needles, queries = map(int, one.split(","))
        task = Task(needles, queries, length=given.length)
        rows += compared(task, given.seeds, steps=given.steps, batch=given.batch)
        print(f"N = {needles}, R = {queries} done", file=sys.stderr, flush=True)
    sizes = {kind: sum(p.numel() for p in Model(kind, task).parameters()) for kind in MODELS}
    settings = {"length": given.length, "seeds": given.seeds, "steps": given.steps}
    print(json.dumps({"rows": rows, "parameters": sizes} | settings) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
