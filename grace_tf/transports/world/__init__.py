"""The world of this process: all workers, its rank among them, and its share of the data."""
