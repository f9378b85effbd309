"""Comparisons between workers: plans, first values, weights during training."""
