"""The command line's `doctor`: what is well, what is not, and what helps."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnformer.cli_common import Json, say, waiting
from dnformer.cli_storage import StorageOptions, configure_storage

if TYPE_CHECKING:
    from dnformer.doctor import Check, Report

_GIB = 1 << 30


def doctor(
    address: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Look at a Ray head, too: its dashboard's address."),
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option("--storage", metavar="URI", help="Try a folder or bucket, too."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="Look at a run, too, and estimate what it takes."),
    ] = None,
    bench: Annotated[
        bool, typer.Option("--bench", help="Measure operator, sampler and storage (10 s).")
    ] = False,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Look at this machine, a store, a cluster or a run; exit code 0 if training would work."""
    with waiting("looking"):
        from dnformer.doctor import examine

        # a fault is to be told, not to be waited for
        reached = configure_storage(storage_options, retry_s=0)
        report = examine(
            address=address, uri=uri, config=config, reached=reached, bench=bench, say=say
        )
    if as_json:
        estimate = {} if report.estimate is None else {"estimate": report.estimate}
        print(json.dumps({"checks": [check._asdict() for check in report.checks]} | estimate))
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(1)


def _print(report: "Report") -> None:
    width = max(len(check.name) for check in report.checks)
    for group in report.groups:
        print(group.title)
        for check in group.checks:
            _print_check(check, width)
    if report.estimate is not None:
        print("estimate")
        for name, text in _estimate_lines(report.estimate).items():
            print(f"  {'':4}  {name:{width}}  {text}")
    failed = sum(not check.ok for check in report.checks)
    print(f"{failed} of {len(report.checks)} to mend" if failed else "training would work")


def _print_check(check: "Check", width: int) -> None:
    mark = "ok  " if check.ok else typer.style("FAIL", fg="red", bold=True)
    typer.echo(f"  {mark}  {check.name:{width}}  {check.found}")
    if check.mend:
        print(f"{'':{width + 10}}mend: {check.mend}")


def _estimate_lines(estimate: dict[str, Any]) -> dict[str, str]:
    parts = estimate["memory_bytes"].items()
    memory = ", ".join(f"{name} {_gib(size)}" for name, size in parts if size)
    on_gpu = estimate["gpu_memory_bytes"]
    gpu = f" and {_gib(on_gpu)} of its GPU" if on_gpu else ""
    lines = {
        "memory": f"{_gib(estimate['memory_per_worker_bytes'])} a worker{gpu}: {memory}",
        "store": f"{_gib(estimate['store_bytes'])} on each host's disk",
        "epoch": f"{estimate['train_nodes']:,} nodes train, {estimate['steps_per_epoch']:,} steps, "
        f"{estimate['edges_per_epoch']:,} sampled edges",
        "time": "not known",
        "basis": estimate["basis"],
    }
    if estimate["hours"] is not None:
        lines["time"] = (
            f"{estimate['seconds_per_epoch']:,.3g} s an epoch, at most {estimate['epochs']:,} of "
            f"them: {estimate['hours']:,.3g} h; {estimate['worker_hours']:,.3g} worker-hours, "
            f"{estimate['gpu_hours']:,.3g} GPU-hours"
        )
    return lines


def _gib(count: float) -> str:
    return f"{count / _GIB:,.2f} GiB"
