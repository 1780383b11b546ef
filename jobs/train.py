"""Trains a run: the same under plain Python, `ray job submit` and a RayJob.

    python jobs/train.py jobs/configs/demo.yaml train.workers=2 storage_path=s3://bucket/runs

Prints one JSON object on stdout; what goes on meanwhile is said on stderr.
"""

import json
import sys

from dnformer.config import load_config
from dnformer.errors import DNFormerError
from dnformer.train.launch import Progress, train


def say(text: object) -> None:
    """Prints a line of the log."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Runs the script; returns its exit code."""
    if len(sys.argv) < 2:
        say("usage: train.py CONFIG.yaml [path=value ...]")
        return 2
    try:
        config = load_config(sys.argv[1], sys.argv[2:])
        result = train(config, progress=Progress(say, say))
    except DNFormerError as error:
        say(f"error: {error}")
        return error.exit_code
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
