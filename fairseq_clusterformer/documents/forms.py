"""Files of every form as paragraphs, and which library reads each. A file's first bytes say what
it is, and its ending where they do not. A form that cannot be read is named; nothing is read as
text that is none."""

import codecs
import email
import email.policy
import io
import json
import mimetypes
import re
import zipfile
from contextlib import suppress
from pathlib import PurePath
from xml.etree import ElementTree

from markdown_it import MarkdownIt

from fairseq_clusterformer.errors import first_line

from .html import declared_encodings, of_html
from .pdf import of_pdf
from .texts import of_plain, paragraphs

Parsed = tuple[str, list[tuple[str, str]]]

_IS_HTML = re.compile(
    rb"(?i)(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*"
    rb"<(?:!doctype html|html|head|body|title|meta|script|style|iframe|h1|div|font|table|a|br?|p)"
    rb"[\s>]",
    re.DOTALL,
)
_IS_MAIL = re.compile(
    rb"(?i)(?:[!-9;-~]+:[^\n]*\n(?:[ \t][^\n]*\n)*)*(?:mime-version|content-transfer-encoding):"
)
_NO_TEXT = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_MAIL_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins as UTF-16's does
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: encodings that browsers read by other names, or by those of narrower ones
_READ_AS = {
    "cp1252": "ascii iso8859-1 iso88591 user-defined",
    "cp1254": "iso8859-9",
    "iso8859-8": "iso-8859-8-i logical visual",
    "cp874": "iso8859-11 tis-620",
    "cp932": "shift_jis cp31j",
    "cp949": "euc_kr ks_c_5601-1989",
    "gb18030": "gb2312 gbk gb_2312-80",
    "big5hkscs": "big5",
    "utf-8": "utf-16 utf-16-le utf-16-be ucs-2 unicode",
}
_OF_BROWSERS = {name: codec for codec, names in _READ_AS.items() for name in names.split()}
_KNOWN = re.compile(r"utf-8|cp\d+|iso8859-\d+|iso2022_jp|koi8-.|mac-.*|gb18030|big5hkscs|euc_jp")


class Unreadable(Exception):
    """Why a file cannot be read, without its name."""


def form_of(name: str, head: bytes) -> str | None:
    """What a file is, by its name and its first bytes or all: one of the forms that are read; or
    its kind, such as image/png, if it is no text; None: nothing that is known."""
    ending = PurePath(name).suffix.lower()[1:]
    named = next((form for form, (own, *_) in _FORMS.items() if ending in own.split()), None)
    for form, (_, first, _) in _FORMS.items():
        if first and (first in head if head.startswith(b"PK\3\4") else head.startswith(first)):
            return form
    if named not in ("Markdown", "HTML"):
        if _IS_HTML.match(head):
            return "HTML"
        if _IS_MAIL.match(head):
            return "e-mail"
    kinds = mimetypes.guess_type(PurePath(name).name) if _NO_TEXT.search(head) else ()
    return named or next(filter(None, reversed(kinds)), None)  # gzip before what is in it


def parse(name: str, data: bytes, encoding: str | None, main_text: bool) -> Parsed:
    """The title of a file, or "", and its paragraphs with their places: a heading above, "page 3"
    of a PDF, "" of a text. Raises Unreadable: a form that cannot be read, or a damaged file."""
    form = form_of(name, data) or "text"
    if form not in _FORMS:
        raise Unreadable(f"is {form}, not a document that can be read")
    try:
        title, texts = _FORMS[form][2](data, encoding, main_text)
    except (Unreadable, MemoryError):
        raise
    except ImportError as error:
        extra = 'pip install ".[documents]" in the clone'
        raise Unreadable(f"needs {error.name} to be read as {form}: {extra}") from None
    except Exception as error:  # libraries end in many kinds of them where a file is damaged
        if type(error).__name__ == "FileNotDecryptedError":
            raise Unreadable("needs a password") from None
        raise Unreadable(f"cannot be read as {form} ({first_line(error)[:200]})") from None
    found = paragraphs(texts)
    if not found:
        raise Unreadable("holds no text")
    return title, found


def _text(data: bytes, encoding: str | None, _main: bool) -> Parsed:
    return "", [(text, "") for text in of_plain(_decoded(data, encoding))]


def _markdown(data: bytes, encoding: str | None, *_: object) -> Parsed:
    text = _decoded(data, encoding)
    return of_html(MarkdownIt().enable(["table", "strikethrough"]).render(text), marks=True)


def _html(data: bytes, encoding: str | None, main_text: bool) -> Parsed:
    declared = encoding or next(filter(None, map(_codec, declared_encodings(data))), None)
    text = _decoded(data, encoding, declared)
    title, texts = of_html(text)
    if main_text:
        import trafilatura

        main = trafilatura.extract(text, output_format="html", include_comments=False)
        texts = of_html(main or "")[1]
    return title, texts


def _mail(data: bytes, encoding: str | None, main_text: bool) -> Parsed:
    """An e-mail, or a page that a browser saved as one."""
    message = email.message_from_bytes(data, policy=email.policy.default)
    heads = [(f"{name}: {message[name]}", "") for name in _MAIL_HEADERS if message[name]]
    body = message.get_body(("html", "plain"))
    if body is None:
        raise Unreadable("is an e-mail without a text")
    read = _html if body.get_content_type() == "text/html" else _text
    own = encoding or _codec(body.get_content_charset() or "")
    _, texts = read(body.get_payload(decode=True), own, main_text)
    is_page = message.get_content_type() == "multipart/related"
    return str(message["Subject"] or ""), texts if is_page else heads + texts


def _notebook(data: bytes, *_: object) -> Parsed:
    """Its cells as Markdown, and what the code printed."""
    found = []
    for cell in json.loads(data)["cells"]:
        text = "".join(cell["source"])
        found.append(f"~~~~~~\n{text}\n~~~~~~" if cell["cell_type"] == "code" else text)
        for out in cell.get("outputs", ()):
            shown = out.get("text", out.get("data", {}).get("text/plain", ""))
            found.append(f"~~~~~~\n{''.join(shown)}\n~~~~~~")
    return _markdown("\n\n".join(found).replace("\0", "").encode(errors="ignore"), "utf-8")


def _word(data: bytes, *_: object) -> Parsed:
    import mammoth

    return of_html(mammoth.convert_to_html(io.BytesIO(data)).value, marks=True)


def _workbook(data: bytes, *_: object) -> Parsed:
    import openpyxl

    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    return "", [
        (" | ".join(str(cell) for cell in row if cell is not None), sheet.title)
        for sheet in book.worksheets
        for row in sheet.iter_rows(values_only=True)
    ]


def _rich_text(data: bytes, *_: object) -> Parsed:
    from striprtf.striprtf import rtf_to_text

    return "", [(line, "") for line in rtf_to_text(data.decode("latin-1")).split("\n")]


def _book(data: bytes, encoding: str | None, main_text: bool) -> Parsed:
    with zipfile.ZipFile(io.BytesIO(data)) as book:
        packed = ElementTree.fromstring(book.read("META-INF/container.xml")).find(".//{*}rootfile")
        where = PurePath(packed.attrib["full-path"])
        package = ElementTree.fromstring(book.read(str(where)))
        files = {each.attrib["id"]: each.attrib["href"] for each in package.findall(".//{*}item")}
        title = package.findtext(".//{http://purl.org/dc/elements/1.1/}title") or ""
        texts = []
        for chapter in package.findall(".//{*}itemref"):
            page = book.read(str(where.parent / files[chapter.attrib["idref"]]))
            texts += _html(page, encoding, main_text)[1]
    return title, texts


#: each form's endings; its first bytes, or those in an archive; its reader
_FORMS = {
    "text": ("txt text", b"", _text),
    "Markdown": ("md markdown", b"", _markdown),
    "HTML": ("html htm xhtml xht", b"", _html),
    "e-mail": ("eml mht mhtml", b"", _mail),
    "PDF": ("pdf", b"%PDF-", lambda data, *_: of_pdf(data)),
    "notebook": ("ipynb", b"", _notebook),
    "RTF": ("rtf", b"{\\rtf", _rich_text),
    "Word document": ("docx", b"word/document.xml", _word),
    "Excel workbook": ("xlsx", b"xl/workbook.xml", _workbook),
    "e-book": ("epub", b"META-INF/container.xml", _book),
}


def _codec(label: str) -> str | None:
    """Python's name of the encoding that browsers read by a label; None: nobody knows it."""
    label = label.strip().lower().removeprefix("x-").replace("windows-", "cp")
    with suppress(LookupError, ValueError):
        name = codecs.lookup(_OF_BROWSERS.get(label, label)).name
        name = _OF_BROWSERS.get(name, name)
        return name if _KNOWN.fullmatch(name) else None
    return None


def _of_no_letter(error: UnicodeDecodeError) -> tuple[str, int]:
    """As browsers: a byte that its table lacks is a control character, else U+FFFD."""
    own = error.object[error.start : error.end]
    return "".join(map(chr, own)) if error.encoding == "charmap" else "\ufffd", error.end


codecs.register_error("as-browsers", _of_no_letter)


def _decoded(data: bytes, encoding: str | None, declared: str | None = None) -> str:
    """The text of a file; a page may hold a few bytes that are in no encoding."""
    marked = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    used = encoding or marked or declared or "utf-8"
    is_strict = not declared or bool(encoding or marked)
    try:
        text = data.decode(used, "strict" if is_strict else "as-browsers").removeprefix("\ufeff")
        text.encode()  # some encodings know halves of characters
        if not is_strict and text.count("\ufffd") > len(text) / 1000:
            data.decode(used)
    except UnicodeError as error:
        if _NO_TEXT.search(data):
            raise Unreadable("is of a form that is not known, and no text") from None
        at = f" (byte {error.start:,})" if isinstance(error, UnicodeDecodeError) else ""
        remedy = "choose another encoding (--encoding NAME)"
        raise Unreadable(f"is not in {used}{at}: {remedy}") from None
    if "\0" in text:
        raise Unreadable(f"holds the character NUL, so it is no text in {used}")
    return text.replace("\r\n", "\n").replace("\r", "\n")
