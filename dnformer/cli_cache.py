"""The command line's `cache`: what node-local stores are on this host, and how they go."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dnformer.data import local_stores
from dnformer.data.local_stores import LocalStore
from dnformer.errors import ConfigError, DataError

cache = typer.Typer(
    help="The stores that datasets were turned into on this host.", rich_markup_mode=None
)

Folder = Annotated[
    str | None, typer.Option("--dir", help="Folder of the stores (default: the user's own).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def _folder(given: str | None) -> Path:
    return Path(given).expanduser().resolve() if given else local_stores.default_folder()


@cache.command("ls")
def cache_ls(folder: Folder = None, as_json: Json = False) -> None:
    """List the stores on this host: size, last use, and what they were built from."""
    path = _folder(folder)
    stores = local_stores.list_stores(path)
    total = local_stores.total_bytes(path)
    if as_json:
        rows = [store._asdict() for store in stores]
        print(json.dumps({"folder": str(path), "bytes": total, "stores": rows}))
        return
    if sys.stdout.isatty():
        Console().print(_table(stores))
    else:
        for row in map(_row, stores):
            print("  ".join(row))
    print(f"{path}: {len(stores)} stores, {total / 2**20:,.1f} MiB")


def _table(stores: list[LocalStore]) -> Table:
    table = Table("fingerprint", "MiB", "last used", "in use", "dataset", "source", box=None)
    for store in stores:
        table.add_row(*_row(store))
    return table


def _row(store: LocalStore) -> tuple[str, ...]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(store.used_s))
    size, in_use = f"{store.bytes / 2**20:,.1f}", "yes" if store.in_use else "no"
    return store.fingerprint[:12], size, used, in_use, store.uri, store.source


@cache.command("rm")
def cache_rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="STORE", help="First digits of a fingerprint, or a dataset's URI."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All stores that no process has open.")
    ] = False,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Remove stores; a dataset's is built again when it is opened the next time."""
    if bool(names) == everything:
        raise ConfigError("cache rm takes stores, or --all; dnformer cache ls shows them")
    path = _folder(folder)
    stores = local_stores.list_stores(path)
    picked = stores if everything else local_stores.pick(stores, names or [])
    removed = [s for s in picked if local_stores.remove_store(path, s.fingerprint)]
    if everything:
        local_stores.remove_leftovers(path)
    kept = [store for store in picked if store not in removed]
    if as_json:
        facts = {"removed": [s.fingerprint for s in removed], "kept": [s.fingerprint for s in kept]}
        print(json.dumps(facts | {"bytes": sum(store.bytes for store in removed)}))
    else:
        for store in removed:
            print(f"removed {store.fingerprint[:12]} ({store.uri})")
        for store in kept if everything else []:
            print(f"kept {store.fingerprint[:12]} ({store.uri}): a process has it open")
    if kept and not everything:
        found = ", ".join(store.fingerprint[:12] for store in kept)
        raise DataError(f"a process has {found} open; stop it first (dnformer cache ls)")
