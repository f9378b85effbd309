"""How many words of the wire codes take."""


def packed_words(n: int, bits: int) -> int:
    """How many words hold n codes of b bits: bits * ceil(n / 32)."""
    return bits * -(-n // 32)
