"""The command line of grace_tf, one module per command."""
