"""The benchmark that others can cite: accuracy by step, step time by link, time to accuracy."""
