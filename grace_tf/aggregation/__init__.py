"""One step of training: gradients in, totals out; plans, state and consistency between workers."""
