"""The commands of grace_tf's command line, one module each."""
