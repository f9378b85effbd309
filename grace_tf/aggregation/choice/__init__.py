"""How "auto" chooses a method.

foresight.py and pruning.py select the methods that a step contains.  trial.py says which of them
each step takes, and decides by their times.  tuner.py measures the times, and agreement.py makes
them equal on all workers.  guard.py excludes methods whose error is too large.
"""
