"""The one door to Ray: starts or joins a cluster, and runs a function on a group of workers."""

from dnformer.ray_runtime.session import Resources, session
from dnformer.ray_runtime.workers import Report, run_workers

__all__ = ["Report", "Resources", "run_workers", "session"]
