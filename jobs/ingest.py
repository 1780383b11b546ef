"""Makes a dataset: the same under plain Python, `ray job submit` and a RayJob.

    python jobs/ingest.py ingest.yaml out=s3://bucket/graph
    python jobs/ingest.py synthetic:sbm --nodes=10000 --out=cache/graph

`dnformer ingest --json` for scripts: one JSON object on stdout; what goes on is said on stderr.
"""

import sys

from dnformer.cli import main
from dnformer.cli_common import folder_job_arguments

if __name__ == "__main__":
    main([*folder_job_arguments("ingest", sys.argv[1:])])
