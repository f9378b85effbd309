"""Connections beside the collectives: who is gone, and why."""
