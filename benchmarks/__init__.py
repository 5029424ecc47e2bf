"""Named benchmarks: `python -m benchmarks.run` prints each figure beside its target."""
