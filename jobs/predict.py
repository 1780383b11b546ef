"""Predicts nodes with a trained run: the same under plain Python, `ray job submit` and a RayJob.

    python jobs/predict.py s3://bucket/runs/papers out=s3://bucket/predictions workers=4
    python jobs/predict.py predict.yaml embeddings=true

`dnformer predict --json` for scripts: one JSON object on stdout; what goes on is said on stderr.
"""

import sys

from dnformer.cli import main
from dnformer.cli_common import folder_job_arguments

if __name__ == "__main__":
    main([*folder_job_arguments("predict", sys.argv[1:])])
