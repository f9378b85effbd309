"""The contracts: compressor, memory, rounds, context; registry and specs.  Nothing communicates."""
