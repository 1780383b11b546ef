"""The model card: what a reader should know before they use an exported model."""

from collections.abc import Iterator

from dnformer.export.about import CONFIG, PROGRAM, WEIGHTS, About
from dnformer.training.objectives import main_metric, shown

_KINDS = {
    "class": "one of {n} classes",
    "multilabel": "{n} yes/no labels",
    "regression": "{n} number(s)",
}
_MEANING = {
    "class": "scores of each class, whose softmax are probabilities",
    "multilabel": "scores of each label, whose sigmoid are probabilities",
    "regression": "numbers in standard deviations of the training nodes; `model.decide(out)` "
    "gives them in their own units",
}
# a card that lists more classes is not read
_SHOWN_CLASSES = 30


def card(about: About, *, with_program: bool) -> str:
    """The text of README.md, in Markdown."""
    parts = [_head(about), _data(about), _results(about), _use(about), _load(about)]
    if with_program:
        parts.append(_program(about))
    return "\n".join([*parts, _versions(about)])


def _head(about: About) -> str:
    model, target = about.run_config.model, about.target
    classes = ""
    if target.classes and len(target.classes) <= _SHOWN_CLASSES:
        classes = f": {', '.join(target.classes)}"
    return (
        f"# {about.name}\n\n"
        f"A node model `{model.name}` with {model.layers} layers of width {model.hidden} and "
        f"{about.parameters:,} parameters. It predicts "
        f"`{target.name}`, {_KINDS[target.kind].format(n=target.num_outputs)}{classes}.\n"
    )


def _data(about: About) -> str:
    data, split = about.dataset, about.run_config.data.split
    recipe = ", ".join(f"{k}: {v}" for k, v in split.recipe().items()) if split else "as ingested"
    attributes = ", ".join(data.edge_attr_names) or "none"
    return (
        "## Data\n\n"
        f"- dataset `{data.name}`, made from `{data.source}`\n"
        f"- {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_features:,} features; "
        f"edge attributes: {attributes}\n"
        f"- fingerprint `{data.fingerprint}`\n"
        f"- split: {recipe}, seed {about.run_config.data_seed}\n"
    )


def _results(about: About) -> str:
    epochs = f"Weights of epoch {about.best_epoch + 1} of {about.epochs}, the best at validation."
    if not about.metrics:
        return f"## Results\n\n{epochs} The run was not finished, so nothing was tested.\n"
    return "\n".join(["## Results", "", epochs, "", *_table(about.metrics), ""])


def _table(metrics: dict[str, dict[str, float]]) -> Iterator[str]:
    names = sorted(metrics["test"], key=lambda name: name != main_metric(metrics["test"]))
    yield "| metric | validation | test |"
    yield "|---|---|---|"
    for name in names:
        val = metrics["val"].get(name)
        yield f"| {name} | {'' if val is None else shown(name, val)} | " + (
            f"{shown(name, metrics['test'][name])} |"
        )


def _use(about: About) -> str:
    return (
        "## Intended use and limits\n\n"
        f"For nodes of graphs like the one it was trained on: {about.dataset.num_features:,} "
        "features with the same meaning, in the same order and scale, and edges that mean the "
        "same. The figures above are of that graph's own test nodes; on another graph, or once "
        "the data have drifted, they promise nothing. What stands in the labels and edges, "
        "biases too, is what the model has learnt. It has not been tested for decisions about "
        "people.\n"
    )


def _load(about: About) -> str:
    data = about.dataset
    attributes = f", edge_attr=edge_attr  [E, {len(data.edge_attr_names)}]"
    return (
        "## How to load it\n\n"
        "```python\n"
        "import dnformer\n\n"
        'model = dnformer.load("this/folder")   # evaluation mode; any fsspec URI\n'
        f"out = model(x, edge_index)             # x [N, {data.num_features}], edge_index [2, E]: "
        "source, destination\n"
        "```\n\n"
        f"`out` are {_MEANING[about.target.kind]}."
        + (f" It takes the edges' attributes too{attributes}." if data.edge_attr_names else "")
        + f"\n`{WEIGHTS}` is plain safetensors, which PyTorch reads by itself "
        f"(`safetensors.torch.load_file`); `{CONFIG}` holds what else there is to know.\n"
    )


def _program(about: About) -> str:
    takes = "x, edge_index" + (", edge_attr=edge_attr" if about.dataset.edge_attr_names else "")
    return (
        f"`{PROGRAM}` is the same model as a program, for any number of nodes and edges:\n\n"
        "```python\n"
        "import torch, dnformer.ops  # the operator\n\n"
        f'model = torch.export.load("this/folder/{PROGRAM}").module()\n'
        f"out = model({takes})\n"
        "```\n"
    )


def _versions(about: About) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    return f"Made by {about.created_by}, {versions}.\n"
