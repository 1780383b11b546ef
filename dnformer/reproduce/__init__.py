"""The tables of the paper, run by run: what is asked, what is there, what is missing, and tables.

A finished run is a row of `runs.jsonl`. A row is known by what was computed (settings, dataset,
split, seed), so tables share rows, and a new sitting runs only what no row says yet.
"""

from dnformer.reproduce.best import write_best
from dnformer.reproduce.grid import Asked, Cell, cells_of
from dnformer.reproduce.rows import ROWS, Row, Rows
from dnformer.reproduce.run import Sitting, run_cells
from dnformer.reproduce.tables import markdown, summary

__all__ = [
    "ROWS", "Asked", "Cell", "Row", "Rows", "Sitting", "cells_of", "markdown", "run_cells",
    "summary", "write_best",
]  # fmt: skip
