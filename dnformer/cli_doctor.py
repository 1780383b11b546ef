"""The command line's `doctor`: what is well, what is not, and what helps."""

import json
from typing import Annotated

import typer

from dnformer.cli_common import Json, waiting
from dnformer.cli_storage import StorageOptions, configure_storage


def doctor(
    uri: Annotated[
        str | None,
        typer.Option(
            "--storage", metavar="URI", help="Try a folder or bucket instead of this machine."
        ),
    ] = None,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Look at this machine, or at a store: write, read, list, replace and remove a probe there."""
    with waiting("looking"):
        from dnformer.doctor import check_machine, check_storage

        # a fault is to be told, not to be waited for
        configure_storage(storage_options, retry_s=0)
        checks = check_machine() if uri is None else check_storage(uri)
    if as_json:
        print(json.dumps({"checks": [check._asdict() for check in checks]}))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:{width}}  {check.found}")
            if check.mend:
                print(f"{'':{width + 8}}mend: {check.mend}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
