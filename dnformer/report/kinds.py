"""What a report can be of: one kind of folder, one module that builds its page."""

from collections.abc import Callable
from typing import NamedTuple

from dnformer.config import StorageConfig
from dnformer.report.page import Page

NODES = 10_000


class Options(NamedTuple):
    """What a page is asked for.

    Attributes:
        nodes: of which attention is measured, at most.
        metrics_only: leaves out what needs the model and its dataset.
        reached: how stores are reached, beside what a config says.
        say: told what takes long.
    """

    nodes: int = NODES
    metrics_only: bool = False
    reached: StorageConfig = StorageConfig()
    say: Callable[[str], None] = print


class Kind(NamedTuple):
    """A kind of folder.

    Attributes:
        name: in words.
        file: what a folder of this kind holds.
        build: makes the page of one folder.
    """

    name: str
    file: str
    build: Callable[[str, Options], Page]
