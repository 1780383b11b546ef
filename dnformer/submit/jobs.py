"""What can be done to a cluster's jobs: start or attach, follow, stop, list."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from dnformer.errors import BackendError, ConfigError
from dnformer.submit import package
from dnformer.submit.cluster import Cluster, client, faults
from dnformer.submit.job import Job, JobState, decide, state_of

_POLL_S = 0.5
# what a start takes on the head that has room for it; a job may wait for longer
_SETTLE_S = 30.0
# while following, a head that does not answer may come back
_PATIENCE_S = 120.0


@final
class Jobs:
    """The jobs of a cluster.

    Args:
        cluster: that answers.
        ray: its `JobSubmissionClient`; None: made anew.
    """

    def __init__(self, cluster: Cluster, *, ray: Any = None) -> None:
        self.cluster = cluster
        self._ray = client(cluster) if ray is None else ray

    def state(self, id: str) -> JobState:
        """The state of a job.

        Raises:
            ConfigError: there is no such job.
        """
        with faults(self.cluster.address):
            try:
                return state_of(self._ray.get_job_info(id))
            except RuntimeError as error:
                if "404" not in str(error):
                    raise
        raise ConfigError(
            f"{self.cluster.address} knows no job {id}; dnformer list shows those it knows"
        )

    def all(self) -> list[JobState]:
        """All jobs that were submitted, the newest first."""
        with faults(self.cluster.address):
            found = [each for each in self._ray.list_jobs() if each.submission_id]
        return sorted(map(state_of, found), key=lambda job: job.started or 0, reverse=True)

    def submit(self, job: Job, say: Callable[[str], None]) -> tuple[JobState, bool]:
        """Starts `job`, unless it is there.

        Returns:
            Its state, once the head has begun with it, and whether it was there.

        Raises:
            ConfigError: it is running with other settings, or too large.
        """
        decided = decide(job, self.all())
        if isinstance(decided, JobState):
            return decided, True
        with tempfile.TemporaryDirectory(prefix="dnformer-submit-") as folder:
            shipped = package.stage(job, Path(folder), auth_mode=self.cluster.auth_mode)
            say(f"shipping {shipped.summary}")
            there = self._send(decided, job, shipped)
        return (self.state(decided), True) if there else (self._settled(decided), False)

    def _send(self, id: str, job: Job, shipped: package.Shipped) -> bool:
        """Submits it; whether another submit was faster."""
        with faults(self.cluster.address):
            try:
                self._ray.submit_job(
                    entrypoint=shipped.entrypoint,
                    submission_id=id,
                    runtime_env=shipped.environment,
                    metadata=job.metadata,
                )
            except RuntimeError as error:
                if f"{id} already exists" not in str(error):
                    raise
                return True
        return False

    def _settled(self, id: str) -> JobState:
        """The state of a new job after the head's own checks of it."""
        end = time.monotonic() + _SETTLE_S
        while (state := self.state(id)).status == "pending" and time.monotonic() < end:
            time.sleep(_POLL_S)
        if state.status == "running":
            time.sleep(2 * _POLL_S)
            state = self.state(id)
        return state

    def logs(self, id: str) -> str:
        """All that a job has said so far."""
        self.state(id)
        with faults(self.cluster.address):
            return str(self._ray.get_job_logs(id))

    def follow(self, id: str, write: Callable[[str], None]) -> JobState:
        """Writes what a job says until it has ended, also over a connection that breaks.

        Returns:
            Its last state.

        Raises:
            BackendError: the head has not answered for long.
        """
        self.state(id)
        shown, silent_since = 0, None
        while True:
            shown = asyncio.run(self._tail(id, write, shown))
            try:
                state = self.state(id)
            except BackendError:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > _PATIENCE_S:
                    raise
            else:
                silent_since = None
                if not state.live:
                    return state
            time.sleep(_POLL_S)

    async def _tail(self, id: str, write: Callable[[str], None], shown: int) -> int:
        """Writes a log from its character `shown` on, until it ends or breaks; what was shown."""
        from aiohttp import ClientError

        seen = 0
        try:
            async for text in self._ray.tail_job_logs(id):
                new = text[max(shown - seen, 0) :]
                seen += len(text)
                if new:
                    write(new)
                    shown = seen
        except (ClientError, OSError, RuntimeError):
            # the caller asks for the job's state, and begins anew if it has not ended
            pass
        return shown

    def stop(self, id: str, *, wait_s: float = 130.0) -> tuple[JobState, bool]:
        """Tells a job to stop and waits for it: a run saves its state first.

        Returns:
            Its last state, and whether it was told.
        """
        before = self.state(id)
        if not before.live:
            return before, False
        with faults(self.cluster.address):
            self._ray.stop_job(id)
        end = time.monotonic() + wait_s
        while (state := self.state(id)).live and time.monotonic() < end:
            time.sleep(_POLL_S)
        return state, True
