"""Files as paragraphs: text, HTML and PDF, encodings, and what is named when it is neither."""

import io
import os
import sys
import time
from pathlib import Path

import pypdf
import pytest

from fairseq_clusterformer.documents import forms, sources
from fairseq_clusterformer.documents import pdf as pdf_text
from fairseq_clusterformer.documents.passages import stems
from fairseq_clusterformer.documents.sources import Source, read_source, read_sources, text_source
from fairseq_clusterformer.errors import UserError
from tests.documents.books import NOTEBOOK, book, word
from tests.documents.papers import pdf

BOM = "\ufeff"
MAIL = b"""From: Ada <a@x>
Subject: =?utf-8?q?The_caf=C3=A9?=
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: quoted-printable

The caf=C3=A9 opens at ni=
ne.
"""
READ_MAIL = ("From: Ada <a@x>", "Subject: The caf\u00e9", "The caf\u00e9 opens at nine.")
PARTS = b"""From: Ada <a@x>
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=B

--B
Content-Type: text/html; charset=iso-8859-1
Content-Transfer-Encoding: base64

PHA+k090dG+UIHJ1bGVzLg==
--B
Content-Type: application/pdf
Content-Disposition: attachment

x
--B--
"""


def source_of(content: bytes | str, name: str, encoding: str | None = None) -> Source:
    """A file of this name that holds this."""
    content = content.encode() if isinstance(content, str) else content
    return read_source(Path(name), encoding, data=content)


def texts_of(*given: bytes | str) -> list[str]:
    """The paragraphs of a file."""
    return [*source_of(*given).paragraphs]


def refused(name: str, content: bytes, encoding: str | None = None) -> str:
    """The one line that names the file and what is allowed."""
    with pytest.raises(UserError) as caught:
        source_of(content, name, encoding)
    line = str(caught.value)
    assert line.startswith(f"--document is {name}: ")
    assert "; allowed: a file of text" in line
    assert "\n" not in line
    return line


class TestText:
    def test_blank_lines_divide_paragraphs(self, tmp_path):
        path = tmp_path / "my notes.txt"
        path.write_bytes(
            b"\n\nOne  li\xc2\xad\r\nne,\r\nand\tthe next.\n \t\nThe second.\n\n\nThe \f third.\n"
        )
        source = read_source(path)
        assert source.paragraphs == ("One line, and the next.", "The second.", "The", "third.")
        assert (source.title, source.name) == ("my notes", str(path))

    @pytest.mark.parametrize(
        ("text", "paragraphs"),
        [
            ("A word.\nTwo!\n\u201cThree.\u201d", 3),
            ("A word.\nTwo!", 1),
            ("A line that is broken\nMr. Otto wrote it.\nThree.", 1),
            (f"{'word ' * 30}\nTwo", 2),
        ],
    )
    def test_lines_that_are_paragraphs(self, text, paragraphs):
        assert len(texts_of(text, "a.txt")) == paragraphs
        assert len(text_source(text, "x").paragraphs) == paragraphs

    @pytest.mark.parametrize(
        ("encoding", "given"),
        [("utf-8", None), ("utf-8-sig", None), ("utf-16", None), ("utf-32", None)]
        + [(name, name) for name in ("latin-1", "utf-16-le", "utf-8")],
    )
    def test_encodings(self, encoding, given):
        content = f"{BOM * (given == 'utf-16-le')}Das Café.\n\nNaïve Größe.".encode(encoding)
        assert texts_of(content, "a", given) == ["Das Café.", "Naïve Größe."]

    def test_a_name_that_is_not_utf8_can_be_shown(self):
        source = source_of(b"Otto rules Ulm.", os.fsdecode(b"caf\xe9.txt"))
        assert (source.name, source.title) == ("caf\\udce9.txt", "caf\\udce9")


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", "ab Café".encode("latin-1"), "is not in utf-8 (byte 6): choose another enc"),
        ("a.txt", b"a\0b", "character NUL"),
        ("a.txt", "a text".encode("utf-16-le"), "character NUL"),
        ("a.txt", b"\xff\xfea", "is not in utf-16"),
        *(("a.txt", nothing, "no text") for nothing in (b"", b" \n\n\r\n", b"\xef\xbb\xbf")),
        *(
            ("a.html", nothing, "holds no text")
            for nothing in (b"", b"<!-- -->", b"<script>a</script>", b"<html></html>")
        ),
        ("a.png", b"\x89PNG\r\n\x1a\n\0", "is image/png, not a document that can be read"),
        ("a.txt", b"\xff\xd8\xff\xe0\0", "is of a form that is not known, and no text"),
        ("a.zip", b"PK\3\4\0\0", "is application/zip, not"),
        ("a.txt.gz", b"\x1f\x8b\0", "is gzip, not"),
        ("a.docx", b"PK\3\4\0\0", "cannot be read as Word document ("),
        ("a.epub", b"no book", "cannot be read as e-book ("),
        ("a.dat", b"abc\1\xff", "is of a form that is not known, and no text"),
    ],
)
def test_what_cannot_be_read_is_named(name, data, says):
    assert says in refused(name, data)


def test_menus_are_no_answers(tmp_path):
    """What half of the files have; not versions of a document."""
    for number in range(5):
        menu = "Home | News" if number < 3 else f"{number}."
        rare = "Dear Sir" if number < 2 else ""
        (tmp_path / f"{number}.txt").write_text(f"{menu}\n\n{rare}\n\nNumber {number}.")
    sources = read_sources([tmp_path], report=lambda line: None)
    assert [source.silent for source in sources] == [{0}] * 3 + [frozenset()] * 2
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(f"The king of Arle is Otto.\n\n{number}.")
    assert not any(source.silent for source in read_sources([tmp_path], report=lambda line: None))


#: pages, and what a browser shows of them
PAGES = [
    (
        """<title> A
        page </title><style>p{color:red}</style><script>head()</script></head>
        <body onload="x()"><!-- unseen --><nav><ul><li>Home<li>Else</ul></nav>
        <h1>The <em>Elm</em></h1><p>It is <b>lo</b>ng,<br>and&nbsp;deep &amp; cold &#x1F370;.
        <p>Second<script>var a = "<p>no</p>";</script> one</p><noscript>none</noscript>
        <table><tr><td>Ida</td><td>Otto</td></tr><tr><th>x<td>y</table>
        tail <svg><title>b</title><text>drawn</text></svg><unknown>word</unknown></body></html>""",
        ["The Elm", "It is long, and deep & cold \N{SHORTCAKE}.", "Second one"]
        + ["Ida Otto", "x y", "tail word"],
    ),
    ("<header><nav><a>Home</a></header><p>Otto", ["Otto"]),  # a parent's end closes it
    (
        "<nav><ul><li><a>Home</a></ul><h1>Ulm</h1><p>It is an old town.",
        ["Ulm", "It is an old town."],
    ),
    ("<menu><li>Cut<li>Paste</menu><p>Otto", ["Otto"]),
    ("<p hidden>a<p hidden=until-found>b<template><p>c</template><p>d", ["b", "d"]),
    ("<p style='color:red;Display: NONE'>a<div style=visibility:hidden>b</div>c", ["c"]),
    (
        "<style>.x,i{display:none}.y{display:none}.y.z{display:block}</style><p class=x>a"
        "<p class='y z'>b<p class=y>c",
        ["b"],
    ),
    ("<dialog>a</dialog><details>b</details><p>c", ["b", "c"]),
    ("<ruby>\u6f22<rp>(</rp><rt>kan</rt><rp>)</rp></ruby>\u5b57", ["\u6f22\u5b57"]),
    (
        "1889<sup>2</sup> 1<sup>st</sup> H<sub>2</sub>O m<sup>2</sup> king<sup>3</sup>",
        ["1889 2 1st H2O m2 king 3"],
    ),
    ("1889<sup><a>12</a></sup> x<sub>1</sub>2 10<sup>6</sup>", ["1889 12 x1 2 10^6"]),
    (
        "<del>1888</del><ins>1889</ins> 18<s>5</s>7 un<ins>done</ins>",
        ["1888 1889 18 5 7 undone"],
    ),
    ("3<math><mfrac><mn>1</mn><mn>2</mn></mfrac> <mn>1</mn><mn>2</mn></math>", ["3 1/2 1 2"]),
    ("a<select><option>b</select>c", ["a", "c"]),
    ("<span style='display:block'>a</span><style>i{display:flex}</style>b<i>c", [*"abc"]),
    (
        "<style media=print>p{display:none}</style><style>@media screen{b{display:none}}"
        "</style><p>a<b>b</b><p hidden style=display:block>c",
        ["a", "c"],
    ),
    ("<p style=visibility:hidden>a<b style=visibility:visible>b", ["b"]),
    (
        "Smith<sup><a>1,2</a></sup> 10<sup>-6</sup> 5<sup>\u00aa</sup>",
        ["Smith 1,2 10^-6 5\u00aa"],
    ),
    (
        "<math>\n<mfrac>\n<mn>1</mn>\n<mn>2</mn>\n</mfrac><msqrt><mn>2</mn></msqrt>"
        "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup></math>",
        ["1 /2 \u221a2x_1^2"],
    ),
    (
        "<pre>One line\nand next.\n\nSecond.</pre>a<br><br>b<br>c",
        ["One line and next.", "Second.", "a", "b c"],
    ),
    ("<p>a</i></p></div></script><svg/>b<p", ["a", "b"]),
    ("<title>a</title>b<script>c</script>d<style>e", ["bd"]),
    ("<div>" * 20_000 + "low" + "</div>" * 7, ["low"]),
]


class TestHTML:
    @pytest.mark.parametrize(("html", "paragraphs"), PAGES)
    def test_as_browsers_show_it(self, html, paragraphs):
        assert texts_of(f"<meta charset=utf-8>{html}", "a.html") == paragraphs

    @pytest.mark.parametrize(
        ("head", "encoding", "text"),
        [
            (
                "<meta http-equiv=content-type content='text/html; charset=ISO-8859-2'>",
                "iso-8859-2",
                "Größe",
            ),
            ('<?xml version="1.0" encoding="iso-8859-1"?>', "latin-1", "Größe"),
            ('<?xml version="1.0" encoding="iso-8859-1"?><meta charset=utf-8>', "utf-8", "Größe"),
            ("<!-- <meta charset=koi8-r> --><meta name=a content='charset=koi8-r'>", "utf-8", "ö"),
            ("<meta charset=klingon>", "utf-8", "Größe"),
            ('<meta charset="utf-16">', "utf-16", "Größe"),
            # what browsers take them for
            ("<meta charset=iso-8859-1>", "cp1252", "\u201c\u00d6rsk\u201d \u2013 it\u2019s"),
            ("<meta charset=utf-16>", "utf-8", "\u201c\u00d6rsk"),
            ("<meta charset=gb2312>", "gb18030", "\u9555\u20ac"),
            ("<meta charset=x-sjis>", "cp932", "\u2460\u9ad9"),
            ("<meta charset=iso-8859-8-i>", "iso-8859-8", "\u05d0\u05d1"),
            ("<meta charset=utf-7>", "utf-8", "\u00d6rsk +AC-"),
            ("<meta charset=euc-kr>", "cp949", "\ub620"),
        ],
    )
    def test_a_page_says_its_encoding(self, head, encoding, text):
        assert texts_of(f"{head}<p>{text}".encode(encoding), "a.html") == [text]

    def test_a_byte_that_is_none_of_a_browsers(self):
        assert texts_of(b"<meta charset=latin-1><p>a\x81\xe9", "a.html") == ["a\x81\u00e9"]
        content = b"<meta charset=utf-8><p>" + b"It rules. " * 200 + b"a\xe9"
        assert texts_of(content, "a.html")[0].endswith("a\ufffd")
        assert texts_of(content, "a.html", "latin-1")[0].endswith("a\u00e9")
        assert "is not in utf-8" in refused("a.html", content[:24] + content[-2:])

    def test_headings_are_places(self):
        content = b"<title>A\n page</title><p>a<h1>The <i>Elm</i></h1><div><h2>Its kings</h2><p>b"
        source = source_of(content, "a.html")
        assert source.title == "A page"
        found = [source.place(number) for number in range(len(source.paragraphs))]
        elm, kings = "below \u201cThe Elm\u201d", "below \u201cIts kings\u201d"
        assert found == ["paragraph 1", elm, kings, kings]

    def test_pages_by_their_content(self):
        for head in ("<!DOCTYPE html>", "\n <!-- x --> <HTML >", "<div class=x>"):
            assert texts_of(f"{head}<p>Otto.", "a.txt") == ["Otto."]
        assert texts_of("<prince> rules", "c.txt") == ["<prince> rules"]


class TestPDF:
    def test_pages(self):
        content = pdf("The king of Arle\nis Otto.", "Page two.", title="Towns")
        for name in ("a.pdf", "without an ending"):
            source = source_of(content, name)
            assert source.paragraphs == ("The king of Arle is Otto.", "Page two.")
            assert source.title == "Towns"
            assert [source.place(number) for number in (0, 1)] == ["page 1", "page 2"]

    def test_paragraphs_of_a_page(self):
        """A line that ends early ends a paragraph, unless the sentence goes on."""
        page = """A heading
The king of Arle, who is old, has ruled the town for more than
twenty years, and the towns around it for longer than any-
body knows, or
so they say.
The next paragraph begins here, and has words enough to fill
a line and more."""
        longer = "This sentence is one of many in a paragraph without an end.\n" * 60
        first, second, third, *others = texts_of(pdf(page, longer), "a.pdf")
        assert first == "A heading"
        assert second.startswith("The king of Arle, who is old, has")
        assert second.endswith("than anybody knows, or so they say.")
        assert third.endswith("words enough to fill a line and more.")
        assert len(others) == 3
        assert all(text.endswith("an end.") and len(text) <= 1200 for text in others)

    @pytest.mark.parametrize(
        ("broken", "elsewhere", "whole"),
        [
            ("Kö-\nnig", "", "König"),
            ("deter\u00ad\nmining", "", "determining"),
            ("Bundes-\nregierung", "", "Bundesregierung"),
            ("mother-in-\nlaw", "", "mother-in-law"),
            ("E-\nmail", "", "E-mail"),
            ("long-\nterm", "long-term", "long-term"),
            ("self-\nservice", "", "self-service"),
            ("non-\nlinear", "", "nonlinear"),  # which the dictionary has
            ("Long-\nTerm", "longterm", "LongTerm"),
            ("19-\n20", "", "19- 20"),
        ],
    )
    def test_words_that_a_line_divides(self, broken, elsewhere, whole):
        (found,) = pdf_text._whole_words([f"a {broken} b {elsewhere}"])
        assert " ".join(found.split()).startswith(f"a {whole} b")

    def test_what_recurs_at_the_edges_of_pages_is_no_text(self):
        towns = ("Arle", "Elm", "Ulm", "Bree", "Orsk")
        pages = [
            f"{('The Towns', 'A Guide')[n % 2]}\nThe king of {town} is old.\nBees live there in "
            f"{town}.\nThe Towns\nAll of {town} knows it.\nSo it is said in {town}.\nNone of "
            f"{town} leaves.\nPrinted on 2 May 2021\nPage {n + 1} of 5"
            for n, town in enumerate(towns)
        ]
        text = " ".join(texts_of(pdf("A Title", *pages), "a.pdf"))
        for gone in ("A Guide", "Printed", "Page", "of 5"):
            assert gone not in text
        assert text.count("The Towns") == 5  # within the pages
        assert all(f"The king of {town} is old." in text for town in towns)
        assert text.startswith("A Title")
        assert texts_of(pdf("Otto rules.", "Otto rules."), "b.pdf") == ["Otto rules."] * 2

    @pytest.mark.parametrize("line", ["{0}   {2}", "Game {3} was won {1} to 9.", "{1} May {0}"])
    def test_rows_that_differ_in_numbers_are_text(self, line):
        rows = [line.format(1900 + n, n * 7 % 11, 10000 + 31 * n, n) for n in range(48)]
        pages = ["\n".join(rows[first : first + 12]) for first in range(0, 48, 12)]
        text = " ".join(texts_of(pdf(*pages), "a.pdf"))
        assert [each for each in rows if " ".join(each.split()) not in text] == []

    def test_columns_that_are_written_row_by_row(self):
        columns = [[f"{word} of line {line} rules" for line in range(6)] for word in "ABC"]
        for number, column in ((2, 250), (3, 170)):
            rows = "\n".join(map("\t".join, zip(*columns[:number], strict=True)))
            heading = "The towns of the river, their kings and their councils in old days"
            found = texts_of(pdf(f"{heading}\n{rows}", column=column), "a.pdf")
            assert found == [heading, " ".join(sum(columns[:number], []))]
        table = "\n".join(f"{town}\t{town[::-1]} the king" for town in ("Arle", "Elm", "Ulm"))
        assert "Elm mlE the king" in " ".join(texts_of(pdf(table), "b.pdf"))

    def test_halves_of_characters(self):
        """As fonts of formulas have them."""
        letters = {"@": "D835", "A": "D835DC9C", "o": "006F0308"}
        content = pdf("Otto rules @ and A.", letters=letters)
        assert texts_of(content, "a.pdf") == ["Ott\u00f6 rules \ufffd and \U0001d49c."]

    def test_damaged_or_locked(self):
        content = pdf("The king of Arle is Otto.")
        assert "holds no text" in refused("a.pdf", pdf(""))
        for damaged in (b"", b"no PDF", content[:40], content[:-300]):
            assert "cannot be read as PDF (" in refused("a.pdf", damaged)
        writer = pypdf.PdfWriter(clone_from=io.BytesIO(content))
        writer.encrypt("key", algorithm="RC4-128")
        out = io.BytesIO()
        writer.write(out)
        assert "needs a password" in refused("a.pdf", out.getvalue())


def test_markdown_in_rows_of_tables_headings_and_items():
    content = b"""# The towns #
Arle is **old**.
It is small. <!-- No
comment --> So.

| Town | King \\| Queen |
|:-----|-----:|
| Arle | Otto |
| Elm  | Ida  |

Town | Cost
--- | ---
Arle | 5

- first item
  goes on
- second

7. one

```sh
# no heading
a | b
```

Title
-----
a | b is no table.
"""
    source = source_of(content, "a.md")
    assert source.paragraphs == (
        *("The towns", "Arle is old. It is small. So."),
        *("Town | King | Queen", "Arle | Otto", "Elm | Ida", "Town | Cost", "Arle | 5"),
        *("- first item goes on", "- second", "7. one", "# no heading a | b"),
        *("Title", "a | b is no table."),
    )
    assert source.places == ("The towns",) * 11 + ("Title",) * 2


class TestLettersOfNoWidth:
    @pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html"])
    def test_they_are_in_no_text(self, name):
        """Nor do they part words; offsets are those of what is seen."""
        text = "Konstan\u00adtin\u200bopel \u202afell\u202c\ufff9 in 14\u206053, Zo\u200de\u200c."
        content = f"<meta charset=utf-8><p>{text}" if name == "a.html" else text
        assert texts_of(content, name) == ["Konstantinopel fell in 1453, Zoe."]
        assert [*stems("Konstan\u00adtinopel")] == [*stems("Konstantinopel")]

    def test_where_they_mean_something_they_stay(self):
        """In Persian, Hindi and emoji."""
        text = "\u0645\u06cc\u200c\u0631\u0648 \u0915\u094d\u200d\u0937 "
        text += "\U0001f469\u200d\U0001f467 \u2602\ufe0f"
        assert text_source(text, "x").paragraphs == (text,)


class TestForms:
    @pytest.mark.parametrize(
        ("name", "data", "paragraphs"),
        [
            ("a.eml", MAIL, READ_MAIL),
            ("a.txt", MAIL, READ_MAIL),
            ("b.eml", PARTS, ("From: Ada <a@x>", "\u201cOtto\u201d rules.")),
            ("a.mhtml", PARTS.replace(b"mixed", b"related"), ("\u201cOtto\u201d rules.",)),
            ("a.ipynb", NOTEBOOK, ("Towns", "Otto rules.", "# no heading", "42")),
            ("a.epub", book("O/"), ("One", "First.", "Two", "Second.")),
        ],
    )
    def test_read_without_a_library(self, name, data, paragraphs):
        assert texts_of(data, name) == [*paragraphs]

    def test_read_by_libraries_of_an_extra(self, tmp_path):
        pytest.importorskip("mammoth")
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for row in (("Town", "King"), ("Arle", "Otto")):
            book.active.append(row)
        book.save(tmp_path / "a.xlsx")
        assert read_source(tmp_path / "a.xlsx").paragraphs == ("Town | King", "Arle | Otto")
        assert texts_of(word("The king is Otto."), "a") == ["The king is Otto."]
        rich = rb"{\rtf1\ansi{\fonttbl{\f0 Arial;}}\f0 The king is caf\'e9.\par So.\par}"
        assert texts_of(rich, "a.rtf") == ["The king is caf\u00e9.", "So."]

    def test_a_library_that_is_missing_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "mammoth", None)
        message = r"needs mammoth to be read as Word document: pip install .*\[documents\]"
        with pytest.raises(forms.Unreadable, match=message):
            forms.parse("a.docx", word("Otto."), None, False)

    def test_main_text_is_without_menus(self):
        pytest.importorskip("trafilatura")
        story = "<p>The king of Arle is Otto, who has ruled the town for more than twenty years."
        page = f"<html><body><footer><a href=x>Home</a></footer><article>{story * 8}</article>"
        assert texts_of(page, "a.html")[0] == "Home"
        texts = read_source(Path("a.html"), main_text=True, data=page.encode()).paragraphs
        assert not any("Home" in text for text in texts)
        assert texts[0].startswith("The king of Arle")


class TestFolders:
    def test_all_documents_below_and_nothing_else(self, tmp_path):
        (tmp_path / "b" / "c").mkdir(parents=True)
        (tmp_path / ".hidden").mkdir()
        for name in ("b/c/z.html", "b/a.txt", "b/.secret.txt", ".hidden/a.txt", "a.MD", "x.py"):
            (tmp_path / name).write_text("text")
        (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
        for number in range(7):
            (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8\xff\xe0\0")
        lines: list[str] = []
        named = tmp_path / "b" / "a.txt"
        sources = read_sources([named, tmp_path, named], report=lines.append)
        names = [Path(source.name).relative_to(tmp_path).as_posix() for source in sources]
        assert names == ["b/a.txt", "a.MD", "b/c/z.html"]
        assert lines[0].startswith(f"skipped {tmp_path / '0.jpg'}, ")
        assert "4.jpg and 2 more: is image/jpeg, not a document" in lines[0]
        assert lines[1].startswith(f"skipped {tmp_path / 'latin.txt'}: is not in utf-8 (byte 3)")
        assert lines[2].startswith(f"{tmp_path}: 3 read, 8 unreadable, 2 skipped")
        assert len(lines) == 3

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
    def test_what_never_ends_is_skipped_with_a_line(self, tmp_path):
        (tmp_path / "a.txt").write_text("Otto.")
        os.mkfifo(tmp_path / "b.txt")
        for name, target in (("c.txt", "/dev/zero"), ("d.txt", "d.txt"), ("e", tmp_path)):
            (tmp_path / name).symlink_to(target)
        lines: list[str] = []
        assert len(read_sources([tmp_path], report=lines.append)) == 1
        assert f"{tmp_path / 'b.txt'}, {tmp_path / 'c.txt'}: is a pipe, a device" in lines[0]
        for name, why in (("d.txt", "symbolic links"), ("e", "link to a fol")):
            assert any(f"{tmp_path / name}" in line and why in line for line in lines)
        with pytest.raises(UserError, match="/dev/zero: is a pipe, a device"):
            read_source(Path("/dev/zero"))

    def test_what_is_refused(self, tmp_path):
        (tmp_path / "x.py").touch()
        with pytest.raises(UserError, match=r"no document in this folder: 0 read.*1 skipped"):
            read_sources([tmp_path], report=print)
        with pytest.raises(UserError, match="nowhere.txt: No such file .*allowed"):
            read_source(tmp_path / "nowhere.txt")
        with pytest.raises(UserError, match="is a folder; allowed"):
            read_source(tmp_path)


class TestLimits:
    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("a.md", "# " * 30_000 + "x"),
            ("a.md", " " * 30_000 + "x|"),
            ("a.md", "a\n" * 30_000 + "b"),
            ("a.html", "<a <a" * 30_000),
            ("a.html", "<svg>" * 30_000 + "</p>" * 100_000),
            ("a.html", "</" * 30_000),
            # normalisation takes quadratic time of a run of marks
            *((name, "a" + "\u0301\u0323" * 40_000) for name in ("a.txt", "a.md", "a.html")),
        ],
    )
    def test_small_documents_take_no_time(self, name, content):
        start = time.process_time(), time.monotonic()
        head = "<meta charset=utf-8>" if name == "a.html" else ""
        texts = texts_of(f"{head}Otto rules.\n\n{content}", name)
        assert texts[0].startswith("Otto rules.")
        assert max(map(len, texts)) <= 20_000
        for text in texts:
            [*stems(text)]
        assert time.process_time() - start[0] < 2
        assert time.monotonic() - start[1] < sources.SECONDS / 2

    @pytest.mark.parametrize(
        ("limit", "value", "says"),
        [
            ("SECONDS", 0.0, "takes more than 0 seconds"),
            ("MEMORY", 60_000_000, "60,000,000 bytes"),
        ],
    )
    def test_time_and_memory_have_limits(self, limit, value, says, monkeypatch):
        page = b"<p>" + b"a" * 50_000_000 if limit == "MEMORY" else pdf("Otto rules.")
        with monkeypatch.context() as patch:
            patch.setattr(sources, limit, value)
            for name in ("a.html", "a.txt", "a.md"):  # of every form
                sources._worker.cache_clear()
                assert says in refused(name, page)
        for data in (pdf("Otto rules."), b"<p>Otto rules."):
            assert texts_of(data, "a") == ["Otto rules."]
        number = sources._worker(os.getpid()).pid
        assert texts_of("Otto", "a") == ["Otto"]
        assert sources._worker(os.getpid()).pid == number  # one process reads all
