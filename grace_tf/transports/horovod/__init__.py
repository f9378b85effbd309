"""The group of Horovod's workers, and its collectives."""
