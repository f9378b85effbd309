"""How "auto" chooses: what is traced (foresight.py, pruning.py), what is timed and decided
(trial.py), by whose clocks (tuner.py, agreement.py), and which methods are left for what they lose
(guard.py)."""
