"""The folder of predictions while they are made: part by part, each whole or not there at all.

`.predicting.json` says whose the parts are, and goes first. Each part has a note with its hash,
written after it; the manifest, put last, makes them predictions and ends the notes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from pydantic import Field, ValidationError

from dnformer import storage
from dnformer.data.parts import PartTable, write_part
from dnformer.errors import DataError
from dnformer.parsing import Section
from dnformer.prediction.results import NAME, File, Identity, Manifest, Predictions, parse_manifest

_MARKER, _PARTS, _NOTES = ".predicting.json", "parts", ".notes"


class Note(Section):
    """A part that is done."""

    file: File
    columns: dict[str, str] = Field(description="type of each column")
    sums: dict[str, list[float]] = Field(description="by split, what its metrics are made of")
    counts: dict[str, int] = Field(description="by split, nodes whose labels are known")


@final
class Folder:
    """The folder of one prediction.

    Args:
        uri: of the folder.
        identity: of what is written there.
        temp: local folder for what is put to a store; None: the system's.
    """

    def __init__(self, uri: str, identity: Identity, temp: Path | None = None) -> None:
        self.uri, self.identity, self._temp = storage.absolute(uri), identity, temp

    def begin(self, *, overwrite: bool) -> Predictions | None:
        """Makes the folder this prediction's; what is there of it stays.

        Args:
            overwrite: other predictions go.

        Returns:
            The predictions, where they are all there already.

        Raises:
            DataError: the folder holds other predictions, or something else.
        """
        manifest = storage.read_if_exists(self._at(NAME))
        marker = storage.read_if_exists(self._at(_MARKER))
        if manifest is None and marker is None:
            self._refuse_foreign()
        elif not overwrite and manifest is not None:
            found = parse_manifest(manifest, self.uri)
            self._refuse_other(found.identity)
            return Predictions(self.uri, found)
        elif not overwrite and marker is not None:
            self._refuse_other(_identity_in(marker, self.uri))
            storage.remove_unfinished(self.uri)
            return None
        else:
            # a manifest of something else is not ours to remove
            if manifest is not None:
                parse_manifest(manifest, self.uri)
            self._clear()
        content = self.identity.model_dump_json(indent=1).encode()
        storage.write_bytes(self._at(_MARKER), content)
        return None

    def _at(self, name: str) -> str:
        return storage.join(self.uri, name)

    def _refuse_foreign(self) -> None:
        # what a kill left of the marker itself is ours
        names = [n for n in storage.list_names(self.uri) if not n.startswith(f".{_MARKER}.")]
        if names:
            raise DataError(
                f"{self.uri} is not empty and holds no predictions (found {names[0]}); choose "
                "another --out"
            )

    def _refuse_other(self, found: Identity) -> None:
        mine, its = (each.model_dump() for each in (self.identity, found))
        differing = [
            f"{name} is {_short(mine[name])} here, {_short(its[name])} there"
            for name in mine
            if mine[name] != its[name]
        ]
        if differing:
            raise DataError(
                f"{self.uri} holds other predictions ({'; '.join(differing)}); choose another "
                "--out, or replace them with --overwrite"
            )

    def _clear(self) -> None:
        # the manifest first: without it nothing else counts; the marker last
        for name in (NAME, _NOTES, _PARTS, _MARKER):
            storage.remove(self._at(name))

    def done(self, numbers: Sequence[int]) -> dict[int, Note]:
        """The parts of `numbers` that are there and whole, by number."""
        there = set(storage.list_names(self._at(_NOTES)))
        notes = {n: self._note(n) for n in numbers if f"{n:05d}.json" in there}
        return {n: note for n, note in notes.items() if note is not None and self._is_whole(note)}

    def _note(self, number: int) -> Note | None:
        content = storage.read_if_exists(self._at(f"{_NOTES}/{number:05d}.json"))
        try:
            return None if content is None else Note.model_validate_json(content)
        except ValidationError:
            return None

    def _is_whole(self, note: Note) -> bool:
        uri = self._at(note.file.path)
        if not storage.exists(uri) or storage.size(uri) != note.file.bytes:
            return False
        if not storage.is_local(uri):  # put as one object, and checked when it is read
            return True
        with storage.fetched(uri) as path, path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == note.file.sha256

    def write(
        self, number: int, table: Any, row_bytes: int, sums: dict[str, tuple[list[float], int]]
    ) -> None:
        """Publishes part `number`: first its table, then its note.

        Args:
            number: from 0.
            table: an Arrow table.
            row_bytes: of a row, about.
            sums: by split, what its metrics are made of, and of how many nodes.
        """
        name = f"{_PARTS}/part-{number:05d}.parquet"
        part = write_part(self.uri, name, PartTable(table, row_bytes, ()), self._temp)
        note = Note(
            file=File(**part.model_dump()),
            columns={field.name: str(field.type) for field in table.schema},
            sums={split: values for split, (values, _) in sums.items()},
            counts={split: count for split, (_, count) in sums.items()},
        )
        content = note.model_dump_json().encode()
        storage.write_bytes(self._at(f"{_NOTES}/{number:05d}.json"), content)

    def publish(self, manifest: Manifest) -> Predictions:
        """Makes the parts that the manifest names the predictions."""
        content = manifest.model_dump_json(indent=1, exclude_none=True).encode()
        storage.write_bytes(self._at(NAME), content)
        kept = {file.path for file in manifest.files}
        for name in storage.list_names(self._at(_PARTS)):
            if f"{_PARTS}/{name}" not in kept:
                storage.remove(self._at(f"{_PARTS}/{name}"))
        for name in (_NOTES, _MARKER):
            storage.remove(self._at(name))
        return Predictions(self.uri, manifest)


def added(notes: Sequence[Note]) -> Iterator[tuple[str, list[float], int]]:
    """(split, sums, nodes) over all parts."""
    for split in dict.fromkeys(name for note in notes for name in note.sums):
        columns = zip(*(note.sums[split] for note in notes if split in note.sums), strict=True)
        yield split, [sum(column) for column in columns], sum(n.counts.get(split, 0) for n in notes)


def _identity_in(content: bytes, uri: str) -> Identity:
    try:
        return Identity.model_validate_json(content)
    except ValidationError:
        raise DataError(
            f"{uri}/{_MARKER} is damaged; start over with --overwrite, or choose another --out"
        ) from None


def _short(value: Any) -> str:
    text = ", ".join(value) or "none" if isinstance(value, list) else str(value)
    return text[:12] if len(text) == 64 else text
