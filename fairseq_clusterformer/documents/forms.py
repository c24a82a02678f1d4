"""Files of every form as paragraphs: what a file is, and which library reads it.

A file's first bytes say what it is, and its ending where they do not. HTML is HTML whatever its
name. A form that cannot be read is named; nothing is read as text that is none.
"""

import codecs
import email
import email.policy
import io
import json
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from xml.etree import ElementTree

from markdown_it import MarkdownIt

from .pages import declared_encoding, of_html
from .pdf import of_pdf
from .texts import of_plain, paragraphs

Parsed = tuple[str, list[tuple[str, str]]]

#: each form's endings and first bytes; those with a reader first
_FORMS: dict[str, tuple[str, tuple[bytes, ...]]] = {
    "text": ("txt text", ()),
    "Markdown": ("md markdown", ()),
    "HTML": ("html htm xhtml xht", ()),
    "e-mail": ("eml mht mhtml", ()),
    "PDF": ("pdf", (b"%PDF-",)),
    "notebook": ("ipynb", ()),
    "RTF": ("rtf", (b"{\\rtf",)),
    "Word document": ("docx", ()),
    "Excel workbook": ("xlsx", ()),
    "e-book": ("epub", ()),
    "a picture": (
        "jpg jpeg png gif webp bmp tif tiff heic ico psd",
        (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*", b"BM"),
    ),
    "a sound or a film": (
        "mp3 wav ogg flac m4a mp4 mov avi mkv webm",
        (b"ID3", b"OggS", b"fLaC", b"RIFF", b"\x1aE\xdf\xa3"),
    ),
    "an archive": (
        "zip tar gz tgz bz2 xz 7z rar zst",
        (b"PK\3\4", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!"),
    ),
    "an Office file of an older form": ("doc xls ppt", (b"\xd0\xcf\x11\xe0",)),
    "a presentation": ("pptx odp key", ()),
    "an OpenDocument file": ("odt ods", ()),
    "a program": ("", (b"\x7fELF",)),
    "a database": ("", (b"SQLite format 3",)),
}
_OF_ARCHIVE = {  # by what stands in an archive
    b"mimetypeapplication/epub": "e-book",
    b"word/document.xml": "Word document",
    b"xl/workbook.xml": "Excel workbook",
    b"META-INF/container.xml": "e-book",
    b"ppt/presentation.xml": "a presentation",
    b"content.xml": "an OpenDocument file",
}
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
#: what browsers read by the names of encodings (WHATWG's Encoding Standard): a superset
_WIDER = {"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874"}
_WIDER |= {"tis-620": "cp874", "euc_kr": "cp949"}
_WIDER |= {"gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932"}
_WIDER |= {**dict.fromkeys(("utf-16", "utf-16-le", "utf-16-be"), "utf-8")}
#: its labels that Python does not know, beyond "x-" and "iso8859N"
_LABELS = {
    label: codec
    for codec, labels in {
        "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 x-unicode20utf8 unicodefffe "
        "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff",
        "iso8859-6": "csiso88596e csiso88596i iso-8859-6-e iso-8859-6-i",
        "iso8859-7": "sun_eu_greek",
        "iso8859-8": "csiso88598e csiso88598i iso-8859-8-e iso-8859-8-i logical visual",
        "iso8859-15": "csisolatin9",
        "koi8-r": "koi koi8",
        "koi8-u": "koi8-ru",
        "mac-roman": "csmacintosh mac",
        "mac-cyrillic": "x-mac-ukrainian",
        "cp874": "dos-874 windows-874",
        "cp1252": "x-user-defined",
        "gb18030": "csgb2312 gb_2312 gb_2312-80",
        "big5hkscs": "cn-big5 x-x-big5",
        "euc_jp": "cseucpkdfmtjapanese",
        "cp932": "windows-31j",
        "cp949": "cseuckr csksc56011987 iso-ir-149 ks_c_5601-1989 ksc_5601 windows-949",
    }.items()
    for label in labels.split()
}


class Unreadable(Exception):
    """Why a file cannot be read, without its name."""


def form_of(name: str, head: bytes) -> str | None:
    """What a file is, by its name and its first bytes or all: "text", "Markdown", "HTML",
    "e-mail", a form that a library reads, or what it is in words ("a picture"); None: nothing
    that is known."""
    ending = PurePath(name).suffix.lower()[1:]
    named = next((form for form, (own, _) in _FORMS.items() if ending in own.split()), None)
    first = (form for form, (_, own) in _FORMS.items() if own and head.startswith(own))
    form = next(first, None)
    if form == "an archive":
        usual = named if named in _OF_ARCHIVE.values() else form
        form = next((form for file, form in _OF_ARCHIVE.items() if file in head), usual)
    if form and (form in _READERS or _NO_TEXT.search(head)):
        return form
    if named in ("Markdown", "HTML"):
        return named
    if _IS_HTML.match(head):
        return "HTML"
    return "e-mail" if _IS_MAIL.match(head) else named


def parse(name: str, data: bytes, encoding: str | None, main_text: bool) -> Parsed:
    """The title of a file, or "", and its paragraphs with their places: a heading above, "page 3"
    of a PDF, "" of a text. Raises Unreadable: a form that cannot be read, or a damaged file."""
    form = form_of(name, data) or "text"
    if form not in _READERS:
        raise Unreadable(f"is {form}, not a document that can be read")
    try:
        title, texts = _READERS[form](data, encoding, main_text)
    except (Unreadable, MemoryError):
        raise
    except ImportError as error:
        extra = 'pip install ".[documents]" in the clone'
        raise Unreadable(f"needs {error.name} to be read as {form}: {extra}") from None
    except Exception as error:  # libraries end in many kinds of them where a file is damaged
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if type(error).__name__ == "FileNotDecryptedError":
            raise Unreadable("needs a password") from None
        raise Unreadable(f"cannot be read as {form} ({reason[:200]})") from None
    found = paragraphs(texts)
    if not found:
        raise Unreadable("holds no text")
    return title, found


def _text(data: bytes, encoding: str | None, _main: bool) -> Parsed:
    return "", [(text, "") for text in of_plain(_decoded(data, encoding))]


def _of_markdown(text: str) -> Parsed:
    """As the HTML that it stands for."""
    return of_html(MarkdownIt().enable(["table", "strikethrough"]).render(text), marks=True)


def _html(data: bytes, encoding: str | None, main_text: bool) -> Parsed:
    text = _decoded(data, encoding, None if encoding else _codec(*declared_encoding(data)))
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
        is_code = cell["cell_type"] == "code"
        found.append(f"~~~~~~\n{text}\n~~~~~~" if is_code else text)
        for out in cell.get("outputs", ()):
            shown = out.get("text", out.get("data", {}).get("text/plain", ""))
            found.append(f"~~~~~~\n{''.join(shown)}\n~~~~~~")
    return _of_markdown("\n\n".join(found))


def _word(data: bytes, *_: object) -> Parsed:
    import mammoth

    return of_html(mammoth.convert_to_html(io.BytesIO(data)).value, marks=True)


def _workbook(data: bytes, *_: object) -> Parsed:
    """Rows of all sheets, with bars between the cells."""
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
    """The chapters of an EPUB in their order."""
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


_READERS: dict[str, Callable[[bytes, str | None, bool], Parsed]] = {
    "text": _text,
    "Markdown": lambda data, encoding, _: _of_markdown(_decoded(data, encoding)),
    "HTML": _html,
    "PDF": lambda data, *_: of_pdf(data),
    "e-mail": _mail,
    "notebook": _notebook,
    "Word document": _word,
    "Excel workbook": _workbook,
    "RTF": _rich_text,
    "e-book": _book,
}


def _codec(*labels: str) -> str | None:
    """Python's name of the encoding that browsers read by the first label that they know; None: by
    none."""
    for label in (label.strip().lower() for label in labels):
        short = re.sub(r"^iso8859(\d+)$", r"iso8859-\1", label.removeprefix("x-"))
        for name in (label, short):
            with suppress(LookupError, ValueError):
                found = _LABELS.get(name) or codecs.lookup(name).name
                return _WIDER.get(found, found)
    return None


def _of_no_letter(error: UnicodeDecodeError) -> tuple[str, int]:
    """As browsers: a byte that its table lacks is a control character, else U+FFFD."""
    own = error.object[error.start : error.end]
    return "".join(map(chr, own)) if error.encoding == "charmap" else "\ufffd", error.end


codecs.register_error("as-browsers", _of_no_letter)


def _decoded(data: bytes, encoding: str | None, declared: str | None = None) -> str:
    """The text of a file, with line ends as Python has them and without a byte order mark. A page
    may hold a few bytes that are in no encoding."""
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
