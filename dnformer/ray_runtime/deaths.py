"""How a worker died, in one line, from the many that Ray says about it."""

import re

from dnformer.memory import MEND, oom_report


def named_death(text: str, before: int | None, after: int | None) -> str | None:
    """A short predicate, as in "was killed for memory: ...", or None where nobody died.

    Ray does not see which signal ended a process, nor who sent it; the kernel's count of kills
    tells those for memory, of processes on this host, from others.

    Args:
        text: what Ray raised.
        before: `memory.oom_kills` when the worker began.
        after: the same now.
    """
    line = " ".join(text.split())
    address = re.search(r"\bip: ([\w.:]+)", line)
    where = f" on {address[1]}" if address else ""
    if "its node has died" in line:
        node = f"its node {address[1]}" if address else "its node"
        return f"is lost: {node} is gone"
    if "due to the node running low on memory" in line:
        return f"was killed by Ray{where}, which saw the node run out of memory: {MEND}"
    code = re.search(r"exit code (\d+)", line)
    if code:
        return f"ended itself{where} with exit code {code[1]}"
    if "killed by `ray.kill`" in line or "references to the actor were removed" in line:
        return f"was ended by Ray{where}"
    if "its worker process has died" in line:
        report = oom_report(before, after)
        if report is not None:
            return f"was killed for memory{where}: {report}"
        return f"was killed{where}, or crashed"
    return None
