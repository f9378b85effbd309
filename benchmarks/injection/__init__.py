"""The faults that benchmarks/faults.py injects: their kinds, their runs, and what must follow."""
