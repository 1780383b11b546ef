"""Training on graphs with noise edges: datasets and runs of their own, which go on after a kill."""

from collections.abc import Callable
from pathlib import Path

from dnformer import storage
from dnformer.analysis.findings import RATIOS, Findings, Subject, noise_scores
from dnformer.analysis.perturb import noise_edges, table_of
from dnformer.config import RunConfig
from dnformer.data.cache import write_cache
from dnformer.temporary import temporary_folder
from dnformer.training.launch import Progress, train


def train_noise_findings(
    subject: Subject, config: RunConfig, folder: str, say: Callable[[str], None]
) -> Findings:
    """The scores of models that are trained and tested on the graph with noise edges.

    Args:
        subject: the model that was trained without.
        config: of its run; all but the graph and the run's place is kept.
        folder: of the datasets and runs, local or a URI; a run that is finished there is taken.
        say: takes lines about what is going on.
    """
    scores = {0.0: subject.score()}
    with temporary_folder() as stores:
        for ratio in RATIOS:
            noisy = noise_edges(subject.graph, ratio, seed=subject.seed).graph
            name = f"noise-{ratio:g}"
            uri = storage.join(folder, f"graphs/{name}-seed-{subject.seed}")
            source = f"{subject.graph.uri} with {ratio:g} E noise edges"
            write_cache(table_of(noisy), uri, source=source)
            each = _on(config, uri, storage.join(folder, f"runs/{name}"), stores)
            say(f"training {each.name} with {ratio:g} · E noise edges")
            scores[ratio] = train(each, progress=Progress(say))["test"][subject.metric]
    return noise_scores("noise at training", subject, scores)


def _on(config: RunConfig, data: str, storage_path: str, stores: Path) -> RunConfig:
    """The run on another dataset and in another place."""
    update = {
        "storage_path": storage_path,
        "data": config.data.model_copy(update={"uri": data}),
        "cache": config.cache.model_copy(update={"dir": str(stores)}),
    }
    return config.model_copy(update=update)
