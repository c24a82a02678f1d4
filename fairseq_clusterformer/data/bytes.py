"""Text as bytes: one readable symbol for each of the 256 byte values.

Printable ASCII stands for itself, every other byte (the space too, which separates symbols in
fairseq's files) for its two hex digits: ``"Hi you\\n"`` is ``H i <20> y o u <0A>``. The symbols
and their order never change, so all such data sets share one ``dict.txt``. They have one token per
byte and no ``</s>``: with ``--sample-break-mode none``, fairseq's ``loss`` is the number of bits
per byte.
"""

from functools import cache

_SYMBOLS = [chr(byte) if 0x21 <= byte <= 0x7E else f"<{byte:02X}>" for byte in range(256)]


def byte_symbols() -> list[str]:
    """Return the 256 symbols in dictionary order: ``byte_symbols()[value]`` is a byte's symbol."""
    return list(_SYMBOLS)


@cache
def letters_of_bytes() -> dict[str, int]:
    """The byte of each letter that stands for one, in byte-level models such as GPT-2's."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}
