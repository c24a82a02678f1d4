"""PDF documents that the tests write themselves."""

import io
from collections.abc import Mapping

import pypdf
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def pdf(
    *pages: str, title: str = "", letters: Mapping[str, str] | None = None, column: int = 250
) -> bytes:
    """A PDF document with these pages; each line of a text is a line of its page. A tab within
    a line leads to the next column, so many points to the right.

    Args:
        letters: what some letters stand for, as UTF-16 in hexadecimal digits.
    """
    writer = pypdf.PdfWriter()
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({NameObject(k): NameObject(v) for k, v in font.items()})
    if letters:
        pairs = "\n".join(f"<{ord(letter):02X}> <{code}>" for letter, code in letters.items())
        stream = DecodedStreamObject()
        codes = "begincmap 1 begincodespacerange <00> <FF> endcodespacerange"
        lines = f"{codes}\n{len(letters)} beginbfchar\n{pairs}\nendbfchar endcmap"
        stream.set_data(lines.encode())
        font[NameObject("/ToUnicode")] = writer._add_object(stream)
    fonts = DictionaryObject({NameObject("/F1"): font})
    for text in pages:
        shown = (line.replace("\t", f") Tj {column} 0 Td (") for line in text.splitlines())
        moved = (f"({line}) Tj {-column * line.count(') Tj ')} -16 Td " for line in shown)
        lines = "".join(moved)
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 72 700 Td {lines}ET".encode())
        page = writer.add_blank_page(595, 842)
        page[NameObject("/Contents")] = writer._add_object(stream)
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    if title:
        writer.add_metadata({"/Title": title})
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()
