"""The lifeline: connections beside the collectives that report which worker is lost, and why."""
