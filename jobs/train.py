"""Trains a run: the same under plain Python, `ray job submit` and a RayJob.

    python jobs/train.py jobs/configs/demo.yaml train.workers=2 storage_path=s3://bucket/runs
    python jobs/train.py jobs/configs/demo.yaml --repeat=10

`dnformer train --json` for scripts: one JSON object on stdout; what goes on is said on stderr.
"""

import sys

from dnformer.cli import main
from dnformer.cli_common import job_arguments

if __name__ == "__main__":
    main([*job_arguments("train", sys.argv[1:])])
