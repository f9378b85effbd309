"""From gradients to exchanged totals, for every method and every engine."""
