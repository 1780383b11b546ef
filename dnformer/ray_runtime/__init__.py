"""The one door to Ray: `session` starts or joins a cluster, `workers` runs a function on it.

`workers` imports Ray, so import it inside a session, which sets Ray's environment first.
"""

from dnformer.ray_runtime.failures import failures
from dnformer.ray_runtime.session import Resources, session

__all__ = ["Resources", "failures", "session"]
