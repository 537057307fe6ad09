"""Benchmarks: ``python -m cirkit.bench`` times two implementations of one thing against each other.

On one thread, in float32, interleaved in one process, medians, and what both computed is compared. A ratio says more
than seconds do: both sides meet the same machine and whatever else it is doing.
"""
