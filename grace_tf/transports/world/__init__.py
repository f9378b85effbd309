"""The world of this process: which workers there are, which of them it is, and its data."""
