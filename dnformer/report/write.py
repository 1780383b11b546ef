"""Makes the page of what the user named, and writes it, whole or not at all."""

from collections.abc import Sequence
from typing import NamedTuple

from dnformer import storage
from dnformer.errors import CheckpointError, ConfigError
from dnformer.report import comparison_page, reproduction_page, run_page, search_page
from dnformer.report.kinds import Kind, Options
from dnformer.report.page import Page
from dnformer.report.render import render

KINDS = (run_page.KIND, search_page.KIND, comparison_page.KIND, reproduction_page.KIND)


class Written(NamedTuple):
    """A report that was written.

    Attributes:
        report: its URI.
        subject: what it is of.
        sources: URIs of that.
        sections: ids of its sections.
        size: bytes.
    """

    report: str
    subject: str
    sources: list[str]
    sections: list[str]
    size: int


def write_report(uris: Sequence[str], out: str, options: Options) -> Written:
    """Writes the page of a run, of a search, or of several runs beside one another.

    Args:
        uris: their folders.
        out: the page's file.
        options: what it is asked for.

    Raises:
        ConfigError: what is named does not go into one page, or `out` is one of the folders.
        DNFormerError: a folder holds nothing to report on, or a file is damaged.
    """
    storage.configure(options.reached)
    out = storage.absolute(out)
    if out.endswith("/") or storage.list_names(out):
        raise ConfigError(f"--out {out} is a folder; name a file in it, as in {out}/report.html")
    page = build_page([storage.absolute(uri) for uri in uris], options)
    content = render(page).encode()
    storage.write_bytes(out, content)
    sections = [section.id for section in page.sections if section.blocks]
    return Written(out, page.subject, list(page.sources), sections, len(content))


def build_page(uris: Sequence[str], options: Options) -> Page:
    """The page of some folders; `write_report` says the rest."""
    kinds = [kind_of(uri) for uri in uris]
    if len(uris) == 1:
        return kinds[0].build(uris[0], options)
    for uri, kind in zip(uris, kinds, strict=True):
        if kind is not run_page.KIND:
            raise ConfigError(f"{uri} is a {kind.name}; only runs can be shown side by side")
    if len(set(uris)) < len(uris):
        raise ConfigError("a run stands twice; name different ones")
    return comparison_page.build_of(uris, options)


def kind_of(uri: str) -> Kind:
    """What the folder `uri` is.

    Raises:
        CheckpointError: nothing that can be reported on.
    """
    for kind in KINDS:
        if storage.exists(storage.join(uri, kind.file)):
            return kind
    raise CheckpointError(
        f"{uri}: no run and no search here; give the folder of one, storage_path/name"
    )
