"""Runs the steps of an Aggregator; holds its plans and state; compares the workers."""
