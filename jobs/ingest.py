"""Makes a dataset: the same under plain Python, `ray job submit` and a RayJob.

    python jobs/ingest.py ingest.yaml out=s3://bucket/graph
    python jobs/ingest.py synthetic:sbm --nodes=10000 --out=cache/graph

`dnformer ingest --json` for scripts: one JSON object on stdout; what goes on is said on stderr.
"""

import sys
from collections.abc import Iterator, Sequence

from dnformer.cli import main


def arguments(given: Sequence[str]) -> Iterator[str]:
    """`given`, a config or a source and more, as the command line takes it: `path=value` sets."""
    yield "ingest"
    for text in given:
        if text.endswith((".yaml", ".yml")) and "=" not in text:
            yield "--config"
        elif "=" in text and not text.startswith("-"):
            yield "--set"
        yield text
    yield "--json"


if __name__ == "__main__":
    main([*arguments(sys.argv[1:])])
