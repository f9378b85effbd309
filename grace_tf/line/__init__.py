"""The line: compresses gradients, exchanges them, and returns the aggregates; for every engine."""
