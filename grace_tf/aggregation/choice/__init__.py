"""How "auto" chooses: what is timed and decided (trial.py), by whose clocks (tuner.py), and which
methods are left for what they lose (guard.py)."""
