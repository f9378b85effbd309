"""The contracts of compressors and memories, their registry and specs.  Nothing communicates."""
