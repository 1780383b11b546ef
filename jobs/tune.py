"""Searches for a run's settings: the same under plain Python, `ray job submit` and a RayJob.

    python jobs/tune.py jobs/configs/tune-cora.yaml
    python jobs/tune.py jobs/configs/tune-photo.yaml train.workers=2 storage_path=s3://bucket/runs
    python jobs/tune.py jobs/configs/photo.yaml --quick --trials=20 --repeat=10

`dnformer tune --json` for scripts: one JSON object on stdout; what goes on is said on stderr.
"""

import sys
from collections.abc import Iterator, Sequence

from dnformer.cli import main


def arguments(given: Sequence[str]) -> Iterator[str]:
    """`given`, a config and more, as the command line takes it: `path=value` is a setting."""
    yield "tune"
    yield from given[:1]
    for text in given[1:]:
        if not text.startswith("-"):
            yield "--set"
        yield text
    yield "--json"


if __name__ == "__main__":
    main([*arguments(sys.argv[1:])])
