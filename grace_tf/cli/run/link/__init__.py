"""How `grace_tf run --link` makes the workers of one machine exchange over emulated links."""
