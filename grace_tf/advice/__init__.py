"""Is compression worth it?  Numbers come in, advice goes out.

Nothing here imports TensorFlow, measures, prints, or knows where the numbers come from.
"""
