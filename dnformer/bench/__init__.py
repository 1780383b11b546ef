"""Measurements side by side in one process; what is worth keeping stands in LOG.md.

Nothing here is asserted: ratios are printed beside their targets.
"""
