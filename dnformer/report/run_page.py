"""The page of one run."""

from pathlib import Path

import numpy as np
from torch import Tensor

from dnformer.data.graph import Graph
from dnformer.errors import CheckpointError, DataError
from dnformer.group import Group
from dnformer.inference.outputs import ExactOutputs
from dnformer.nn.node_model import NodeModel
from dnformer.prediction.computing import Room, Work, sampled_logits
from dnformer.report import of_classes, of_labels, of_numbers
from dnformer.report.attention import attention
from dnformer.report.kinds import Kind, Options
from dnformer.report.outcome import Outcome
from dnformer.report.page import Block, Facts, Page, Section, Words, seconds
from dnformer.report.runs import Run, open_run
from dnformer.report.settings import settings
from dnformer.report.training import learning, time_spent
from dnformer.training.loss_weights import target_of
from dnformer.training.objectives import main_metric, shown
from dnformer.training.scores import known_nodes
from dnformer.training.trained import Trained, open_trained

_OF_KIND = {
    "class": of_classes.blocks,
    "multilabel": of_labels.blocks,
    "regression": of_numbers.blocks,
}


def build(uri: str, options: Options) -> Page:
    """The page of the run in the folder `uri`.

    Raises:
        CheckpointError: there is no run, or a file of it is damaged.
        DataError: its dataset is not there any more.
    """
    run = open_run(uri, options.reached)
    trained, why = _trained(run, options)
    sections = [_summary(run, why), learning(run), time_spent(run)]
    if trained is not None:
        sections += _of_model(run, trained, options)
    sections.append(settings(run.config, {} if trained is None else trained.versions))
    facts = {"result": run.result, "finished": run.result is not None}
    return Page("run", run.name, [run.uri], sections, facts)


def _trained(run: Run, options: Options) -> tuple[Trained | None, str]:
    """The run's best model, or why there is none."""
    if options.metrics_only:
        return None, "What needs the model and its dataset was left out (--metrics-only)."
    try:
        return open_trained(run.uri, options.reached), ""
    except CheckpointError as error:
        if run.result is not None:
            raise CheckpointError(_without(error)) from None
        return None, f"Predictions and attention are missing: {error}."
    except DataError as error:
        raise DataError(_without(error)) from None


def _without(error: Exception) -> str:
    return f"{error}; or give --metrics-only, which needs neither model nor dataset"


def _summary(run: Run, why: str) -> Section:
    blocks: list[Block] = [_facts(run)]
    if run.result is None:
        blocks.append(
            Words(
                "The run has no result: it goes on, or it was stopped. What is shown is what there "
                "is up to now; the test nodes are not looked at.",
                notice=True,
            )
        )
    if why:
        blocks.append(Words(why, notice=True))
    return Section("summary", "Summary", blocks)


def _facts(run: Run) -> Facts:
    epochs, result = run.of_kind("epoch"), run.result
    main, rest = [], []
    if result is not None:
        metric = main_metric(result["test"])
        main = [
            (f"test {metric}", shown(metric, result["test"][metric])),
            (f"validation {metric}", shown(metric, result["val"][metric])),
        ]
        rest = [
            (f"{split} {name}", shown(name, result[split][name]))
            for split in ("test", "val")
            for name in result[split]
            if name != metric
        ]
        rest.append(("parameters", f"{result['parameters']:,}"))
    elif run.metrics("val") and epochs:
        metric = run.monitor.removeprefix("val/")
        best = next(r for r in epochs if r["epoch"] + 1 == run.best_epoch)
        main = [(f"best validation {metric}", shown(metric, best[run.monitor]))]
    done = epochs[-1]["epoch"] + 1 if epochs else 0
    main.append(("best epoch", f"{run.best_epoch or '–'} of {done}"))
    took = sum(record["seconds"] for record in epochs)
    rest += [
        ("training", seconds(took)),
        ("model", run.config.model.name),
        ("dataset", run.config.data.uri.rstrip("/").rpartition("/")[2]),
        ("dataset's fingerprint", run.fingerprint[:12]),
    ]
    return Facts("summary", main, rest)


def _of_model(run: Run, trained: Trained, options: Options) -> list[Section]:
    """What the model says of the nodes, and how it attends."""
    graph = trained.graph()
    model = trained.model()
    split = "val" if trained.result is None else "test"
    options.say(f"computing the outputs of the {split} nodes")
    nodes = graph.split(split)
    y = target_of(graph, nodes)
    known = known_nodes(y)
    nodes, y = nodes[known], y[known]
    out = _outputs(run, model, graph, nodes)
    degree = np.diff(graph.store.colptr)[nodes.numpy()]
    outcome = Outcome(graph, split, nodes.numpy(), out.double(), y, degree, trained.units)
    blocks: list[Block] = [Words(_said(run, outcome))]
    blocks += _OF_KIND[graph.target.kind](outcome)
    sections = [Section("predictions", "Predictions", blocks)]
    if trained.layerwise:
        options.say("measuring attention")
        sections.append(attention(model, graph, options.nodes))
    return sections


def _outputs(run: Run, model: NodeModel, graph: Graph, nodes: Tensor) -> Tensor:
    """Outputs `[S, K]` as the run is evaluated: with every neighbour, or sampled ones."""
    if run.config.eval.mode == "exact":
        return ExactOutputs(model, graph, Group())([nodes])[0]
    work = Work(model, run.config, graph, Group(), Room(0, Path()), _silent)
    return sampled_logits(work, nodes.numpy())


def _silent(done: int) -> None:
    pass


def _said(run: Run, outcome: Outcome) -> str:
    weights = "the best weights" if run.result is not None else "the best weights so far"
    neighbours = "every neighbour" if run.config.eval.mode == "exact" else "sampled neighbours"
    return (
        f"Of the {outcome.of} with a known {outcome.target.name}, by {weights}, with {neighbours}."
    )


KIND = Kind("run", "run.json", build)
