"""Forks starts of runs on request, so that they find everything imported and compiled.

It reads requests as lines of JSON, and answers each when its start has ended: with 0, an exit
status, or minus the number of the signal that ended it.
"""

import contextlib
import json
import os
import signal
import sys
import traceback
from typing import Any

import torch
from start import start


def main() -> None:
    """Serves until the input ends; the first request trains here and is only for warming up."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        if request["here"]:
            start(request)
            answer = 0
        else:
            answer = _forked(request)
        print(json.dumps(answer), flush=True)


def _forked(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        try:
            start(request)
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not request["outlived"]:
        # workers whose start has died end with it
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return status


if __name__ == "__main__":
    main()
