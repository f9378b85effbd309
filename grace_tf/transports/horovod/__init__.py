"""Horovod's workers and collectives."""
