"""What `grace_tf bench` measures."""
