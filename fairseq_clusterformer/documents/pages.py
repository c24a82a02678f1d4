"""HTML as paragraphs, read as browsers read it: the parser follows the HTML standard.

Block elements divide paragraphs, and so do two line ends (``<br><br>``) and blank lines in
``<pre>``. What a browser does not show is not read, nor are menus and the readings of ruby.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from selectolax.lexbor import LexborHTMLParser, LexborNode

from .texts import clean, of_plain

_BLOCKS = set(
    "address article aside blockquote body caption center dd details dialog dir div dl dt "
    "fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li "
    "listing main menu nav ol optgroup option p plaintext pre search section summary table tbody "
    "tfoot thead tr ul xmp".split()
)
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_UNSEEN = set(
    "annotation annotation-xml audio canvas datalist head iframe noembed noframes noscript object "
    "rp rt rtc script style svg template textarea title video".split()
)
_MENUS = {"menu", "nav", "select"}
_APART = {"sup", "sub", "del", "ins", "s", "strike"}  # what stands in them is no part of a number
_BORDERS = _APART | {"mfrac", "math"}
_ORDINAL = re.compile(r"(?i)st|nd|rd|th|te|er?|re|[oa\u00aa\u00ba]s?|\w{0,2}[e\u00e8]me|\W*")
_MARKS = re.compile(r"[\d\s,;*\u2013-]+")  # of footnotes
#: between the first and the second part, and before the last
_FORMULAS = {"mfrac": "//", "msup": "^^", "msub": "__", "msubsup": "_^"}
_GONE = re.compile(r"(?i)(?:^|[;{\s])display\s*:\s*none\b")
_VEILED = re.compile(r"(?i)(?:^|[;{\s])visibility\s*:\s*(?:hidden|collapse)\b")
_BLOCK = re.compile(r"(?i)(?:^|[;{\s])display\s*:\s*(?:block|flex|flow|grid|list-item|table)\b")
_SHOWN = re.compile(r"(?i)(?:^|[;{\s])(?:display\s*:\s*(?!none)|visibility\s*:\s*visible)")
_SCREEN = r"(?i)@media\s+(?:only\s+)?(?:screen|all)\s*\{((?:[^{}]*\{[^{}]*\})*)[^{}]*\}"
_HEADING = 80  # characters of one that are shown
_CHARSET = re.compile(r"""(?i)charset\s*=\s*["']?\s*([^\s"';]+)""")
_XML_ENCODING = re.compile(r"""\s*<\?xml[^>]*\bencoding\s*=\s*["']([\w.:-]+)""")


def declared_encoding(data: bytes) -> Iterator[str]:
    """The labels of the encoding that a page says it is in, where browsers heed them: in a
    ``<meta>`` of its own, or in the declaration of XML."""
    text = data[:100_000].decode("latin-1")
    for meta in LexborHTMLParser(text).css("meta"):
        own = {name.lower(): value or "" for name, value in meta.attributes.items()}
        if "charset" in own:
            yield own["charset"]
        elif own.get("http-equiv", "").lower() == "content-type":
            yield from _CHARSET.findall(own.get("content", ""))[:1]
    if found := _XML_ENCODING.match(text):
        yield found[1]


def _without_noscript(text: str) -> str:
    """As a browser with scripts reads a page."""
    end = text.lower().rfind("</noscript") + 11  # what is never closed is never found
    return re.sub(r"(?is)<noscript\b.*?</noscript.", "", text[:end]) + text[end:]


class _Open(NamedTuple):
    """An element that is open, and what it hands down to its parts."""

    id: int  # of its node
    tag: str
    unseen: bool = False
    veiled: bool = False  # parts of it may be visible
    block: bool = False
    raised: bool = False
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
    tree = LexborHTMLParser(_without_noscript(text))
    title = next((node.text() for node in tree.css("head > title")), "")
    lines = [*_Lines(tree, marks).read(tree.root)]
    # a menu has no sentences: one that is never closed may hold the page
    pages = {0, *(line.menu for line in lines if line.is_prose)}
    found = [line for line in lines if line.menu in pages and not (line.menu and line.is_link)]
    return title, [(line.text, line.place) for line in found]


class _Lines:
    """Reads a tree, node by node."""

    def __init__(self, tree: LexborHTMLParser, marks: bool) -> None:
        (self._hidden, self._blocks), self._marks = _styled(tree), marks
        self._place = ""
        self._parts: list[str] = []
        self._bare = 0  # characters of them that are in no link
        self._menu, self._numbers = 0, {}
        self._border: set[str] = set()  # elements that ended or began here and part numbers

    def read(self, root: LexborNode | None) -> Iterator[_Line]:
        opened: list[_Open] = []
        for node in root.traverse(include_text=True) if root else ():
            parent = node.parent.mem_id if opened else 0
            while opened and opened[-1].id != parent:
                yield from self._end(opened.pop())
            above = opened[-1] if opened else _Open(0, "")
            if node.tag == "-text":
                if not (above.unseen or above.veiled):
                    self._add(node.text_content, above)
            elif not node.tag.startswith("-"):
                own = self._opened(node, above)
                if not own.unseen:
                    yield from self._begin(own, node, above)
                opened.append(own)
        for each in reversed(opened):
            yield from self._end(each)
        yield from self._flush()

    def _opened(self, node: LexborNode, above: _Open) -> _Open:
        tag, given = node.tag, node.attributes
        style = given.get("style") or ""
        hidden = "hidden" in given and given["hidden"] != "until-found"
        hidden = (hidden or node.mem_id in self._hidden) and not _SHOWN.search(style)
        hidden = hidden or tag in _UNSEEN or bool(_GONE.search(style))
        hidden = hidden or (tag == "dialog" and "open" not in given)
        veiled = bool(_VEILED.search(style)) or (above.veiled and not _SHOWN.search(style))
        is_page = tag in ("html", "body")  # a script shows them
        return _Open(
            id=node.mem_id,
            tag=tag,
            unseen=(above.unseen or hidden) and not is_page,
            veiled=veiled and not is_page,
            block=tag in _BLOCKS or node.mem_id in self._blocks or bool(_BLOCK.search(style)),
            raised=above.raised or tag == "sup",
            plain=above.plain or tag in ("pre", "listing", "xmp", "plaintext"),
            menu=above.menu or (node.mem_id if tag in _MENUS else 0),
            linked=above.linked or tag in ("a", "button"),
        )

    def _begin(self, own: _Open, node: LexborNode, above: _Open) -> Iterator[_Line]:
        tag = own.tag
        if own.block:
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
        if tag == "msqrt":
            self._parts.append("\u221a")
        parts = [*node.parent.iter()] if above.tag in _FORMULAS else [node]
        if node != parts[0]:
            self._parts.append(_FORMULAS[above.tag][node == parts[-1]])

    def _end(self, own: _Open) -> Iterator[_Line]:
        if own.unseen:
            return
        if own.block or own.id == own.menu:
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
        if above.raised and _MARKS.fullmatch(text):
            if re.search(r"(?<!\d)10$", before):
                return "^"
            joins |= bool(re.search(r"[^\W\d_]{3}$", before))  # longer than a unit: a footnote
        elif above.raised and before[-1:].isdigit():
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


def _styled(tree: LexborHTMLParser) -> tuple[set[int], set[int]]:
    """The nodes that a rule of the page's style hides, unless another one shows them, and those
    that it makes blocks."""
    hidden, shown, blocks = set(), set(), set()
    for style in tree.css("style"):
        if not re.search(r"(?i)screen|all|^$", style.attributes.get("media") or ""):
            continue
        sheet = re.sub(r"(?s)/\*.*?(?:\*/|$)", "", style.text())
        sheet = re.sub(_SCREEN, r"\1", sheet)
        sheet = re.sub(r"@[^{};@]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", sheet)
        for rule in sheet.split("}"):
            selector, _, rules = rule.partition("{")
            hides = bool(_GONE.search(rules) or _VEILED.search(rules))
            if ":" in selector or not (hides or re.search("display|visibility", rules)):
                continue
            try:
                nodes = {node.mem_id for node in tree.css(selector.strip())}
            except (ValueError, RuntimeError):  # selectors that the library does not know
                continue
            (hidden if hides else shown).update(nodes)
            blocks |= nodes if _BLOCK.search(rules) else set()
    return hidden - shown, blocks
