"""How far another machine's clock is from this one's."""

from dnformer.errors import BackendError

# half of what stores allow a signature (S3: 15 minutes), and what tokens allow (5 minutes)
MOST_S = 300.0
# times are given in whole seconds, and clocks that are kept by NTP differ by less
_NOTE_S = 2.0
MEND = "set the clock of the one that is wrong by NTP (chrony, or systemd-timesyncd)"


def skew_s(there: float, begin: float, end: float) -> float:
    """Seconds by which a clock is ahead, at least; 0 where it fits.

    Args:
        there: what it said, in whole seconds or finer.
        begin: this machine's time before it was asked.
        end: and after it answered.
    """
    if there + 1 < begin:
        return there + 1 - begin
    return max(there - end, 0.0)


def worded(skew: float) -> str:
    """`skew` as a person reads it."""
    if abs(skew) <= _NOTE_S:
        return "as this machine's, within 2 s"
    return f"{abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"


def check_skew(skew: float) -> str:
    """What there is to say of a clock.

    Raises:
        BackendError: it is too far from this machine's.
    """
    if abs(skew) > MOST_S:
        raise BackendError(f"{worded(skew)}: {MEND}")
    return worded(skew)
