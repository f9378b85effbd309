"""Measures single steps of an Aggregator from inside them, and reads what was measured."""
