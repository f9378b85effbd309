"""The native libraries, and what operations accept and return."""
