"""The command `export`."""

import json
from typing import Annotated

import typer

from dnformer.cli_common import Json, RunFolder, say, waiting
from dnformer.cli_storage import StorageOptions, configure_storage


def export(
    run: RunFolder,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder to write, local or a URI.")],
    program: Annotated[
        bool, typer.Option("--program", help="Write model.pt2 too, for torch.export.load.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an exported model at --out.")
    ] = False,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Write the best weights of a run as a folder of its own, with a model card."""
    reached = configure_storage(storage_options)
    with waiting("loading torch"):
        from dnformer import export as exporting

    done = exporting.export(
        run, out, program=program, overwrite=overwrite, reached=reached, say=say
    )
    if as_json:
        print(json.dumps({"uri": done.uri, "files": done.files, "metrics": done.about.metrics}))
        return
    print(f"{done.uri}: {done.about.parameters:,} parameters of epoch {done.about.best_epoch + 1}")
    for name, size in sorted(done.files.items()):
        print(f"  {name:18} {size:,} bytes")
    print(f'  open it: dnformer.load("{done.uri}")')
