from dnformer.bench.startup import measure

SAYS = "import os, sys; print('first\\nin', os.environ['NUMBA_CACHE_DIR'], file=sys.stderr)"


def test_measure_times_processes_and_repeats_what_the_first_call_says():
    programs = {"nothing": "pass", "slow": "pass", "sleep, cached": "import time; time.sleep(0.5)"}
    rows, targets = measure("startup", repeats=1, programs=programs, first=SAYS)
    assert [row.impl for row in rows] == [*programs, "op, first call ever"]
    assert rows[-1].note.startswith("says: in /")
    (target,) = targets
    assert target.name == "sleep, cached, seconds over nothing"
    assert target.found > 0.2
    assert target.met
