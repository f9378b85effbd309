"""The training tasks of the benchmark: their data, models, losses and metrics."""
