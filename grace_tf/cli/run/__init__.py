"""How `grace_tf run` starts workers, shows what they print and ends them."""
