"""What the tests read of a run with the package's own readers."""

from torch import Tensor

from dnformer.training.checkpoints import newest_checkpoint, read_checkpoint


def weights(run: str) -> dict[str, Tensor]:
    """All tensors of the newest checkpoint."""
    found = newest_checkpoint(run)
    assert found is not None
    return read_checkpoint(*found)[0]


def resumable_step(run: str) -> int:
    """The step from which a start would go on; 0 where there is no checkpoint."""
    found = newest_checkpoint(run)
    return 0 if found is None else int(read_checkpoint(*found)[1].state["steps_done"])
