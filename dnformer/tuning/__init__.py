"""Search over a run's settings: Ray Tune runs the trials, our record says what happened."""
