"""Small files of other forms than text."""

import io
import json
import zipfile

NOTEBOOK = json.dumps(
    {
        "cells": [
            {"cell_type": "markdown", "source": ["# Towns\n", "Otto *rules*."]},
            {"cell_type": "code", "source": "# no heading", "outputs": [{"text": ["42\n"]}]},
        ]
    }
).encode()


def packed(files: dict[str, str]) -> bytes:
    """A zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return out.getvalue()


def book(folder: str) -> bytes:
    """An EPUB of two chapters, the second of which comes first in its package."""
    parts = "".join(f'<item id="{id_}" href="{id_}.xhtml"/>' for id_ in "ab")
    spine = '<spine><itemref idref="b"/><itemref idref="a"/></spine>'
    package = f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{parts}</manifest>{spine}'
    root = f'<rootfile full-path="{folder}c.opf"/>'
    return packed(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": f"<container><rootfiles>{root}</rootfiles></container>",
            f"{folder}c.opf": f"{package}</package>",
            f"{folder}a.xhtml": "<html><body><h1>Two</h1><p>Second.</p></body></html>",
            f"{folder}b.xhtml": "<html><body><h1>One</h1><p>First.</p></body></html>",
        }
    )


def word(text: str) -> bytes:
    """A docx of one paragraph."""
    open_xml = "http://schemas.openxmlformats.org"
    kind = f"{open_xml}/officeDocument/2006/relationships/officeDocument"
    link = f'<Relationship Id="r" Type="{kind}" Target="word/document.xml"/>'
    relations = f"{open_xml}/package/2006/relationships"
    main = f'xmlns:w="{open_xml}/wordprocessingml/2006/main"'
    body = f"<w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body>"
    types = f'xmlns="{open_xml}/package/2006/content-types"'
    return packed(
        {
            "[Content_Types].xml": f"<Types {types}/>",
            "_rels/.rels": f'<Relationships xmlns="{relations}">{link}</Relationships>',
            "word/document.xml": f"<w:document {main}>{body}</w:document>",
        }
    )
