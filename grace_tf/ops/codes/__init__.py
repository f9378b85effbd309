"""Codes of few bits, by other rules than uniform steps."""
