"""The contracts: compressor, memory, rounds, context, registry.  Nothing here communicates."""
