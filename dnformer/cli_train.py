"""The commands `train` and `evaluate`."""

import json
from typing import Annotated, Any, Literal, Never

import typer

from dnformer import config as configs
from dnformer.cli_common import Ended, Json, RunFolder, Settings, waiting
from dnformer.cli_storage import StorageOptions, configure_storage
from dnformer.errors import ConfigError, Stopped


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="YAML of the run.")],
    settings: Settings = None,
    repeat: Annotated[
        int, typer.Option(min=1, help="Train this many times, with other seeds and splits.")
    ] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what the run holds.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only go on; refuse a run without checkpoint.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a run; the same command goes on where it was stopped."""
    if fresh and resume:
        raise ConfigError("--fresh forgets what --resume goes on from; give one of them")
    parsed = configs.load_config(config, settings or [])
    with waiting("loading torch"):
        from dnformer.cli_progress import training_progress
        from dnformer.training import launch

    start: Literal["any", "fresh", "resume"] = "fresh" if fresh else "resume" if resume else "any"
    try:
        with training_progress(parsed, repeats=repeat) as progress:
            if repeat > 1:
                result = launch.repeat(parsed, repeat, start=start, progress=progress)
            else:
                result = launch.train(parsed, start=start, progress=progress)
    except Stopped as stopped:
        _stop(str(stopped), stopped.exit_code)
    except KeyboardInterrupt as interrupt:
        _stop(str(interrupt) or "stopped", 130)
    _print_result(result, as_json)


def _stop(text: str, code: int) -> Never:
    raise Ended(f"{text}; the same command goes on from the last checkpoint", code)


def evaluate(
    run: RunFolder,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Validate and test the best weights of a run anew."""
    reached = configure_storage(storage_options)
    with waiting("loading torch"):
        from dnformer.training import launch
    with waiting("evaluating"):
        result = launch.evaluate(run, reached=reached)
    _print_result(result, as_json)


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    from dnformer.training.objectives import main_metric, shown

    metric = main_metric(result["test"])
    if "values" in result:
        mean, std, *each = (
            shown(metric, value) for value in (result["mean"], result["std"], *result["values"])
        )
        print(f"test {metric} {mean} ± {std} (mean ± std of {len(each)} runs)")
        print("  of each: " + ", ".join(each))
    else:
        print(f"test {metric} {shown(metric, result['test'][metric])} at the best validation")
        best, epochs = result["best_epoch"] + 1, result["epochs"]
        print(
            f"  validation {shown(metric, result['val'][metric])}, best epoch {best} of {epochs}, "
            f"{result['seconds']:.1f} s of training"
        )
    print(f"  files of the run: {result['run']}")
