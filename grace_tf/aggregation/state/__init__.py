"""The state of memories and compressors: slots, commits, files."""
