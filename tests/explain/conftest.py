"""The graph and the runs of the reports' tests: their ids and class names try to be HTML."""

from ..report.conftest import dataset, trained, values

__all__ = ["dataset", "trained", "values"]
