"""Public checks for compressors, ours and yours."""
