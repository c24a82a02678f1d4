"""HTML as paragraphs, as browsers show it, but for menus and the readings of ruby. Block elements
divide them, and so do two line ends (``<br><br>``) and blank lines in ``<pre>``."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser, LexborNode

from .texts import clean, of_plain

# What a page is written with, in the place of its elements: where blocks, menus, headings, cells,
# links and raised text begin or end, what may part numbers (SIDE), and words, too (NEW).
BLOCK, MENU, HEAD, CELL, LINK, UNLINK, UP, DOWN, SIDE, NEW = "\1\2\3\4\5\6\7\x0e\x0f\x10"
_SIGNS = re.compile("[\\0-\\x08\\x0b\\x0e-\\x1f]")
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_BLOCKS = _HEADINGS | set(
    "address article aside blockquote body caption center dd details dialog dir div dl dt "
    "fieldset figcaption figure footer form header hgroup hr html legend li listing main menu nav "
    "ol optgroup option p plaintext pre search section summary table tbody tfoot thead tr ul "
    "xmp".split()
)
_UNSEEN = set(
    "annotation annotation-xml audio canvas datalist head iframe noembed noframes noscript object "
    "rp rt rtc script style svg template textarea title video".split()
)
_MENUS = {"menu", "nav", "select"}
_PLAIN = {"pre", "listing", "xmp", "plaintext"}
_SIDES = {"sub", "del", "s", "strike", "math", "mn", "mi"}
#: what is written before and behind an element
_AROUND = dict.fromkeys(_BLOCKS, (BLOCK, BLOCK)) | dict.fromkeys(_SIDES, (SIDE, SIDE))
_AROUND |= {"sup": (UP, DOWN), "ins": (NEW, SIDE), "mfrac": (NEW, SIDE), "br": ("\n", "")}
_AROUND |= {"td": (CELL, ""), "th": (CELL, ""), "msqrt": (f"{SIDE}\u221a", SIDE)}
#: what is written before the second part of a formula, and before the third
_FORMULAS = {"mfrac": "/", "msup": "^", "msub": "_", "msubsup": "_^"}
_MARKS = rf"[\d\s,;*\u2013-]+{DOWN}"  # such as those of footnotes
_ORDINAL = r"(?:st|nd|rd|th|te|er?|re|[oa\u00aa\u00ba]s?|\w{0,2}[e\u00e8]me|\W*)"
#: what parts numbers and words that would join: powers, footnotes, other raised text, the rest
_PARTED = {
    re.compile(rf"(?<!\d)10{UP}(?={_MARKS})"): "10^",
    re.compile(rf"(?<=[^\W\d_]{{3}}){UP}(?={_MARKS})"): " ",
    re.compile(rf"(?i)(?<=\d){UP}(?!{_ORDINAL}{DOWN}|{_MARKS})"): " ",
    re.compile(rf"(?<=\d)[{UP}{DOWN}{SIDE}{NEW}]+(?=\d)|(?<=\S)[{SIDE}{DOWN}]+{NEW}"): " ",
}
_BLANKS = re.compile(r"[ \t\n\f\r]+")
_PROSE = re.compile(r"(?s)\s*(?:\S+\s+){12}\S|\s*(?:\S+\s+){3}.*[.!?\u3002]\s*$")
_HEADING = 80  # characters of one that are shown
_GONE = re.compile(r"(?i)(?:^|[;{\s])display\s*:\s*none\b")
_VEILED = re.compile(r"(?i)(?:^|[;{\s])visibility\s*:\s*(?:hidden|collapse)\b")
_SHOWN = re.compile(r"(?i)(?:^|[;{\s])(?:display\s*:\s*(?!none)|visibility\s*:\s*visible)")
_DIVIDES = re.compile(r"(?i)(?:^|[;{\s])display\s*:\s*(?:block|flex|flow|grid|list-item|table)\b")
_RULES = r"(?:[^{}]*\{[^{}]*\})*"
_SCREEN = re.compile(rf"(?i)@media\s+(?:only\s+)?(?:screen|all)\s*\{{({_RULES})[^{{}}]*\}}")
_NO_RULES = re.compile(rf"(?s)/\*.*?(?:\*/|$)|@[^{{}};@]*\{{{_RULES}[^{{}}]*\}}")
_RULE = re.compile(r"(?:^|(?<=\}))([^{}:]+)(\{[^{}]*(?:display|visibility)[^{}]*)")
_CHARSET = re.compile(r"""(?i)charset\s*=\s*["']?\s*([^\s"';]+)""")
_NOSCRIPT = re.compile(r"(?is)<noscript\b.*?</noscript.")  # within a head, it would end it
_XML_ENCODING = re.compile(r"""\s*<\?xml[^>]*\bencoding\s*=\s*["']([\w.:-]+)""")


def declared_encodings(data: bytes) -> Iterator[str]:
    """The labels of the encoding that a page says it is in, where browsers heed them."""
    text = data[:100_000].decode("latin-1")
    for meta in LexborHTMLParser(text).css("meta"):
        own = {name.lower(): value or "" for name, value in meta.attributes.items()}
        if "charset" in own:
            yield own["charset"]
        elif own.get("http-equiv", "").lower() == "content-type":
            yield from _CHARSET.findall(own.get("content", ""))[:1]
    yield from _XML_ENCODING.findall(text)[:1]


def of_html(text: str, *, marks: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """The title, and paragraphs with the headings that they stand below. With `marks`, bars part
    the cells of a row, and items of lists have a dash or their number."""
    end = text.lower().rfind("</noscript") + 11  # what is never closed is never found
    tree = LexborHTMLParser(_NOSCRIPT.sub("", text[:end]) + text[end:])
    title = next((node.text() for node in tree.css("head > title")), "")
    found, place = [], ""
    for number, part in enumerate("".join(_written(tree, marks)).split(MENU)):
        is_menu, lines = number % 2, []
        for line in part.split(BLOCK):
            if HEAD in line:
                _, place, line = line.split(HEAD, 2)
            bare = re.sub(f"{LINK}[^{UNLINK}]*{UNLINK}", "", line)
            is_link = 2 * len(bare.strip()) < len(line.strip())
            line = re.sub(f"[{LINK}{UNLINK}]", "", line).lstrip(f" {CELL}")
            line = line.replace(CELL, " | " if marks else " ")
            for pattern, between in _PARTED.items():
                line = pattern.sub(between, line)
            lines.append((_SIGNS.sub("", line), place, is_link))
        # a menu has no sentences: one that is never closed may hold the page
        if not is_menu or any(not x and _PROSE.match(line) for line, _, x in lines):
            found += [(line, at) for line, at, is_link in lines if not (is_menu and is_link)]
    return title, [
        (part, at)
        for line, at in found
        for part in (of_plain(line) if "\n" in line else [line])
        if part.strip()
    ]


@dataclass
class _Open:
    """An element that is open, and what it hands down to its parts."""

    id: int = 0  # of its node
    tag: str = ""
    behind: str = ""  # what is written at its end
    unseen: bool = False
    veiled: bool = False  # parts of it may be visible
    plain: bool = False  # blanks and line ends are kept
    in_menu: bool = False
    linked: bool = False
    parts: int = 0  # elements in it
    number: int = 0  # of the last item of a list


def _written(tree: LexborHTMLParser, marks: bool) -> Iterator[str]:
    (hidden, blocks), opened = _styled(tree), [_Open()]
    for node in tree.root.traverse(include_text=True) if tree.root else ():
        parent = node.parent.mem_id if len(opened) > 1 else 0
        while opened[-1].id != parent:
            yield opened.pop().behind
        above = opened[-1]
        if node.tag == "-text" and not (above.unseen or above.veiled):
            text = _SIGNS.sub(" ", node.text_content)
            text = text if above.plain else _BLANKS.sub(" ", text)
            yield f"{LINK}{text}{UNLINK}" if above.linked else text
        elif not node.tag.startswith("-"):
            own = _opened(node, above, hidden)
            if not own.unseen:
                before, own.behind = _AROUND.get(own.tag, ("", ""))
                style = node.attributes.get("style") or ""
                if node.mem_id in blocks or _DIVIDES.search(style):
                    before, own.behind = BLOCK, BLOCK
                if own.in_menu > above.in_menu:
                    before, own.behind = MENU, MENU
                yield before + _before(node, own, above, marks)
            above.parts += 1
            opened.append(own)
    yield from (own.behind for own in reversed(opened))


def _opened(node: LexborNode, above: _Open, hidden: set[int]) -> _Open:
    tag, given = node.tag, node.attributes
    style = given.get("style") or ""
    unseen = "hidden" in given and given["hidden"] != "until-found"
    unseen = (unseen or node.mem_id in hidden) and not _SHOWN.search(style)
    unseen = unseen or tag in _UNSEEN or bool(_GONE.search(style))
    unseen = above.unseen or unseen or (tag == "dialog" and "open" not in given)
    return _Open(
        id=node.mem_id,
        tag=tag,
        unseen=unseen and tag not in ("html", "body"),  # which a script shows
        veiled=bool(_VEILED.search(style)) or (above.veiled and not _SHOWN.search(style)),
        plain=above.plain or tag in _PLAIN,
        in_menu=above.in_menu or tag in _MENUS,
        linked=above.linked or tag in ("a", "button"),
        number=int(given["start"]) - 1 if (given.get("start") or "").isdecimal() else 0,
    )


def _before(node: LexborNode, own: _Open, above: _Open, marks: bool) -> str:
    """What an element shows itself: its place, its number, its sign in a formula."""
    if own.tag in _HEADINGS:
        return f"{HEAD}{_SIGNS.sub('', clean(node.text())[:_HEADING])}{HEAD}"
    if own.tag == "li" and marks:
        above.number += 1
        return f"{above.number}. " if above.tag == "ol" else "- "
    return _FORMULAS.get(above.tag, "")[max(0, above.parts - 1) : above.parts]


def _styled(tree: LexborHTMLParser) -> tuple[set[int], set[int]]:
    """The nodes that the page's style hides and does not show, and those that it makes blocks."""
    hidden, shown, blocks = set(), set(), set()
    for style in tree.css("style"):
        if re.search(r"(?i)screen|all|^$", style.attributes.get("media") or ""):
            sheet = _NO_RULES.sub("", _SCREEN.sub(r"\1", style.text()))
            for selector, rules in _RULE.findall(sheet):
                with suppress(ValueError, RuntimeError):  # selectors that the library lacks
                    nodes = {node.mem_id for node in tree.css(selector.strip())}
                    hides = _GONE.search(rules) or _VEILED.search(rules)
                    (hidden if hides else shown).update(nodes)
                    blocks |= nodes if _DIVIDES.search(rules) else set()
    return hidden - shown, blocks
