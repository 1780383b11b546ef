"""Searches for a run's settings: the same under plain Python, `ray job submit` and a RayJob.

    python jobs/tune.py jobs/configs/tune-cora.yaml
    python jobs/tune.py jobs/configs/tune-photo.yaml train.workers=2 storage_path=s3://bucket/runs
    python jobs/tune.py jobs/configs/photo.yaml --quick --trials=20 --repeat=10

`dnformer tune --json` for scripts: one JSON object on stdout; what goes on is said on stderr.
"""

import sys

from dnformer.cli import main
from dnformer.cli_common import job_arguments

if __name__ == "__main__":
    main([*job_arguments("tune", sys.argv[1:])])
