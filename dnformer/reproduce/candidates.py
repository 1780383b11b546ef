"""Which settings a model gets on a dataset: the best of a few candidates, by validation alone.

The candidates stand in one file, as many for each model, and are compared on seeds that no table
uses. What is found is written as the config of the model and dataset.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from dnformer.config import RunConfig
from dnformer.errors import ConfigError
from dnformer.parsing import Section, parse, put_all, read_yaml

Settings = dict[str, Any]


class Candidates(Section):
    """The file of candidates; settings are values by dotted path, the later ones win."""

    seeds: list[int] = Field(min_length=1, description="splits and seeds of the comparison")
    every_run: Settings = Field({}, description="settings of every run")
    datasets: dict[str, Settings] = Field(description="settings of every run on a dataset")
    models: dict[str, dict[str, list[Settings]]] = Field(
        description="candidates by model and dataset"
    )

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        counts = {
            f"{model} on {dataset}": len(candidates)
            for model, of_model in self.models.items()
            for dataset, candidates in of_model.items()
        }
        if len(set(counts.values())) > 1:
            least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            raise ValueError(
                f"the budget is the same for all: {least} has {counts[least]} candidates, "
                f"{most} has {counts[most]}"
            )
        return self

    def variants(
        self, datasets: Sequence[str] | None = None, models: Sequence[str] | None = None
    ) -> dict[str, dict[str, RunConfig]]:
        """The runs of the comparison: by dataset, then by label, "MODEL NUMBER".

        Raises:
            ConfigError: there are no candidates of that name, or one is wrong.
        """
        for kind, asked, known in (
            ("model", models, self.models), ("dataset", datasets, self.datasets),
        ):  # fmt: skip
            for name in asked or ():
                if name not in known:
                    raise ConfigError(f"no candidates for {kind} {name}; for {', '.join(known)}")
        return {
            dataset: {
                label: config
                for model in models or self.models
                for label, config in self._labelled(model, dataset)
            }
            for dataset in datasets or self.datasets
        }

    def _labelled(self, model: str, dataset: str) -> Iterator[tuple[str, RunConfig]]:
        for number, own in enumerate(self.models[model].get(dataset, ()), start=1):
            label = f"{model} {number}"
            run = {"name": f"{dataset}-{model}", "data.uri": f"cache/{dataset}"}
            values = put_all({}, run | self.every_run | self.datasets[dataset] | own)
            yield label, parse(RunConfig, values, name=f"{label} on {dataset}")


def read_candidates(path: Path) -> Candidates:
    """The file of candidates.

    Raises:
        ConfigError: it is not there, or is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(Candidates, read_yaml(text, name=str(path)), name=str(path))
