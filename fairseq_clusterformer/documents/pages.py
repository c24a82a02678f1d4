"""HTML as paragraphs, read as browsers read it: the parser follows the HTML standard.

Block elements divide paragraphs, and so do two line ends (``<br><br>``) and blank lines in
``<pre>``. What a browser does not show is not read, nor are menus and the readings of ruby.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .texts import clean, of_plain

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_BLOCKS = set(
    "address article aside blockquote body caption center dd details dialog dir div dl dt "
    "fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li "
    "main menu nav ol optgroup option p pre search section summary table tbody tfoot thead tr "
    "ul".split()
)
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_UNSEEN = set(
    "annotation annotation-xml audio canvas datalist head iframe noembed noframes noscript object "
    "rp rt rtc script style svg template textarea title video".split()
)
_MENUS = {"menu", "nav", "select"}
_APART = {"sup", "sub", "del", "ins", "s", "strike"}  # what stands in them is no part of a number
_BORDERS = _APART | {"mfrac", "math"}
_ORDINAL = re.compile(r"(?i)st|nd|rd|th|te|er?|re|[oa]s?|\w{0,2}[e\u00e8]me|\W*")
_FORMULAS = {"mfrac": "/", "msup": "^", "msub": "_"}  # between their two parts
_HIDDEN = re.compile(
    r"(?i)(?:^|[;{\s])(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\b"
)
_HEADING = 80  # characters of one that are shown


def _without_noscript(text: str) -> str:
    """As a browser with scripts reads a page."""
    end = text.lower().rfind("</noscript") + 11  # what is never closed is never found
    return re.sub(r"(?is)<noscript\b.*?</noscript.", "", text[:end]) + text[end:]


class _Open(NamedTuple):
    """An element that is open, and what it hands down to its parts."""

    id: int  # of its node
    tag: str
    unseen: bool = False
    plain: bool = False  # blanks and line ends are kept
    menu: int = 0  # the node of a menu around it, 0: none
    linked: bool = False


class _Line(NamedTuple):
    text: str
    place: str
    menu: int
    is_link: bool
    is_prose: bool  # a sentence, or a long text


def of_html(text: str, *, marks: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """The title, and paragraphs with the headings that they stand below.

    Args:
        marks: bars part the cells of a row, and items of lists have a dash or their number.
    """
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(_without_noscript(text))
    title = next((node.text() for node in tree.css("head > title")), "")
    lines = [*_Lines(tree, marks).read(tree.root)]
    # a menu has no sentences: one that is never closed may hold the page
    pages = {0, *(line.menu for line in lines if line.is_prose)}
    found = [line for line in lines if line.menu in pages and not (line.menu and line.is_link)]
    return title, [(line.text, line.place) for line in found]


class _Lines:
    """Reads a tree, node by node."""

    def __init__(self, tree: "LexborHTMLParser", marks: bool) -> None:
        self._hidden, self._marks = set(_hidden_by_style(tree)), marks
        self._place = self._heading = ""
        self._parts: list[str] = []
        self._bare = 0  # characters of them that are in no link
        self._menu, self._numbers = 0, {}
        self._border: set[str] = set()  # elements that ended or began here and part numbers

    def read(self, root: "LexborNode | None") -> Iterator[_Line]:
        opened: list[_Open] = []
        for node in root.traverse(include_text=True) if root else ():
            parent = node.parent.mem_id if opened else 0
            while opened and opened[-1].id != parent:
                yield from self._end(opened.pop())
            above = opened[-1] if opened else _Open(0, "")
            if node.tag == "-text":
                if not above.unseen:
                    self._add(node.text_content, above)
            elif not node.tag.startswith("-"):
                own = self._opened(node, above)
                if not own.unseen:
                    yield from self._begin(own, node, above)
                opened.append(own)
        for each in reversed(opened):
            yield from self._end(each)
        yield from self._flush()

    def _opened(self, node: "LexborNode", above: _Open) -> _Open:
        tag, given = node.tag, node.attributes
        unseen = above.unseen or tag in _UNSEEN or node.mem_id in self._hidden
        unseen = unseen or ("hidden" in given and given["hidden"] != "until-found")
        unseen = unseen or bool(_HIDDEN.search(given.get("style") or ""))
        unseen = unseen or (tag == "dialog" and "open" not in given)
        unseen = unseen and tag not in ("html", "body")  # a script shows them
        menu = above.menu or (node.mem_id if tag in _MENUS else 0)
        plain = above.plain or tag in ("pre", "listing", "xmp", "plaintext")
        return _Open(node.mem_id, tag, unseen, plain, menu, above.linked or tag in ("a", "button"))

    def _begin(self, own: _Open, node: "LexborNode", above: _Open) -> Iterator[_Line]:
        tag = own.tag
        if tag in _BLOCKS:
            yield from self._flush()
            self._menu = own.menu
            if tag in _HEADINGS:
                self._place = clean(node.text())[:_HEADING]
            if tag == "ol" and (node.attributes.get("start") or "").isdecimal():
                self._numbers[own.id] = int(node.attributes["start"]) - 1
            if tag == "li" and self._marks:
                self._numbers[above.id] = self._numbers.get(above.id, 0) + 1
                self._parts.append(f"{self._numbers[above.id]}. " if above.tag == "ol" else "- ")
        elif tag == "br":
            self._parts.append("\n")
        elif tag in ("td", "th"):
            is_first = not any(part.strip() for part in self._parts)
            self._parts.append(" | " if self._marks and not is_first else " ")
        elif tag in _APART or tag.startswith("m"):
            self._border.add(tag)
        if above.tag in _FORMULAS and node.prev is not None:
            self._parts.append(_FORMULAS[above.tag])

    def _end(self, own: _Open) -> Iterator[_Line]:
        if own.unseen:
            return
        if own.tag in _BLOCKS:
            yield from self._flush()
            self._menu = own.menu if own.menu != own.id else 0
        elif own.tag in _APART or own.tag.startswith("m"):
            self._border.add(own.tag)

    def _add(self, text: str, above: _Open) -> None:
        text = text if above.plain else re.sub(r"[ \t\n\f\r]+", " ", text)
        if not text:
            return
        if self._border:
            self._parts.append(self._between(text, above))
            self._border = set()
        self._parts.append(text)
        if not above.linked:
            self._bare += len(text.strip())

    def _between(self, text: str, above: _Open) -> str:
        """What parts a text from the one before, where numbers or words would join."""
        before, first = "".join(self._parts[-4:])[-12:], text[0]
        joins = before[-1:].isdigit() and first.isdigit()
        joins |= bool({"ins", "mfrac"} & self._border) and len(self._border & _BORDERS) > 1
        if above.tag == "sup" and text.strip().isdigit():
            if re.search(r"(?<!\d)10$", before):
                return "^"
            joins |= bool(re.search(r"[^\W\d_]{3}$", before))  # longer than a unit: a footnote
        elif above.tag == "sup" and before[-1:].isdigit():
            joins |= not _ORDINAL.fullmatch(text.strip())
        return " " if joins and not before[-1:].isspace() else ""

    def _flush(self) -> Iterator[_Line]:
        text, bare = "".join(self._parts), self._bare
        self._parts, self._bare, self._border = [], 0, set()
        words, is_link = len(text.split()), 2 * bare < len(text.strip())
        ends = words > 3 and text.rstrip()[-1:] in (".", "!", "?", "\u3002")
        is_prose = not is_link and (words > 12 or ends)
        for part in of_plain(text) if "\n" in text else [text]:
            if part.strip():
                yield _Line(part, self._place, self._menu, is_link, is_prose)


def _hidden_by_style(tree: "LexborHTMLParser") -> Iterable[int]:
    """The nodes that a rule of the page's style hides, unless another one shows them."""
    hidden: set[int] = set()
    shown: set[int] = set()
    for style in tree.css("style"):
        sheet = re.sub(r"(?s)/\*.*?(?:\*/|$)", "", style.text())
        sheet = re.sub(r"@[^{};@]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", sheet)
        for rule in sheet.split("}"):
            selector, _, rules = rule.partition("{")
            hides = bool(_HIDDEN.search("{" + rules))
            if ":" in selector or not (hides or re.search("display|visibility", rules)):
                continue
            try:
                nodes = {node.mem_id for node in tree.css(selector.strip())}
            except (ValueError, RuntimeError):  # selectors that the library does not know
                continue
            (hidden if hides else shown).update(nodes)
    return hidden - shown
