"""Text as bytes: one readable symbol for each of the 256 byte values.

Printable ASCII stands for itself, every other byte (the space too, which separates symbols in
fairseq's files) for its two hex digits: ``"Hi you\\n"`` is ``H i <20> y o u <0A>``. The symbols
and their order never change, so all such data sets share one ``dict.txt``. They have one token per
byte and no ``</s>``: with ``--sample-break-mode none``, fairseq's ``loss`` is the number of bits
per byte.
"""

from collections.abc import Iterable

_SYMBOLS = tuple(chr(byte) if 0x21 <= byte <= 0x7E else f"<{byte:02X}>" for byte in range(256))
_VALUES = {symbol: byte for byte, symbol in enumerate(_SYMBOLS)}


def byte_symbols() -> list[str]:
    """Return the 256 symbols in dictionary order: ``byte_symbols()[value]`` is a byte's symbol."""
    return list(_SYMBOLS)


def encode(data: bytes) -> list[str]:
    """Return the symbol of each byte; for text, ``encode(text.encode("utf-8"))``."""
    return [_SYMBOLS[byte] for byte in data]


def decode(symbols: Iterable[str]) -> bytes:
    """Return the bytes that `symbols` stand for, which need not be whole characters. Raises
    ValueError: for what is no byte's symbol, such as fairseq's ``</s>`` and ``<unk>``."""
    try:
        return bytes(_VALUES[symbol] for symbol in symbols)
    except KeyError as error:
        raise ValueError(
            f"{error.args[0]!r} is no byte's symbol: those are the printable ASCII characters "
            "and <00> to <FF> for all other bytes"
        ) from None
