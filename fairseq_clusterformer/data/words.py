"""What a word is, where words have vectors."""

import regex

# In scripts that put no blanks between words, each letter stands for itself.
_LETTER = (
    r"[[\p{L}\p{M}\p{N}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]"
)
_WORD = regex.compile(rf"(?V1){_LETTER}+|\S")
_JOINS = regex.compile(rf"(?V1){_LETTER}")


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, and every other visible character."""
    return _WORD.findall(text)


def joins(character: str) -> bool:
    """Whether a character belongs to one word with such characters before and behind it."""
    return _JOINS.fullmatch(character) is not None
