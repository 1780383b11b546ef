"""Explanations as one page that works offline: a drawing of each, with its tables."""

from dnformer import storage
from dnformer.errors import ConfigError
from dnformer.explain import words
from dnformer.explain.drawing import neighbourhood
from dnformer.explain.run import Explanation, Explanations
from dnformer.report.page import Block, Column, Facts, Page, Section, Table, Words
from dnformer.report.render import render

_MEASURES = [Column("column"), Column("what it is")]


def page(explained: Explanations) -> Page:
    """What the page of some explanations shows."""
    names = [words.short(found.facts[found.node].id) for found in explained.nodes]
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    sections = [
        Section(f"node-{number}", f"Node {name}", _blocks(explained, found, number))
        for number, (name, found) in enumerate(zip(names, explained.nodes, strict=True), start=1)
    ]
    measures = Table("measures", "The columns of the tables", _MEASURES, words.MEASURES)
    return Page(
        subject="explanation",
        title=f"Neighbours of {'nodes' if len(names) > 1 else 'node'} {listed}",
        sources=[explained.run, explained.data],
        sections=[*sections, Section("measures", "How to read this", [measures])],
        facts={"kind": explained.kind, "layers": explained.layers, "heads": explained.heads,
               "top": explained.top},
    )  # fmt: skip


def write_page(explained: Explanations, uri: str) -> None:
    """Writes the page as one file, at what `page_place` gave."""
    storage.write_bytes(uri, render(page(explained), own="dnformer.explain").encode())


def page_place(uri: str) -> str:
    """Where a page that is asked for at `uri`, local or any fsspec URI, goes.

    Raises:
        ConfigError: a folder is there.
    """
    uri = storage.absolute(uri)
    if uri.endswith("/") or storage.list_names(uri):
        raise ConfigError(f"--html {uri} is a folder; name a file in it, as in {uri}/explain.html")
    return uri


def _blocks(explained: Explanations, found: Explanation, number: int) -> list[Block]:
    facts = words.summary(found, explained.kind)
    return [
        Facts(f"facts-{number}", facts[:2], facts[2:]),
        Words(words.verdict(found, found.hops[0])),
        neighbourhood(found, explained, f"drawing-{number}"),
        *(
            words.hop_table(found, explained, hop, f"node-{number}-hop-{hop.number}")
            for hop in found.hops
        ),
    ]
