"""Files as paragraphs: text, HTML and PDF, encodings, and what is named when it is neither."""

import io
import os
import sys
import time
import tracemalloc
from pathlib import Path

import pypdf
import pytest

from fairseq_clusterformer.documents import forms, parsing
from fairseq_clusterformer.documents import pdf as pdf_text
from fairseq_clusterformer.documents.passages import stems
from fairseq_clusterformer.documents.sources import (
    read_source,
    read_sources,
    text_source,
    uploaded_source,
)
from fairseq_clusterformer.errors import UserError
from tests.documents.books import NOTEBOOK, book, word
from tests.documents.papers import pdf

MAIL = b"""From: Ada <a@x>
Subject: =?utf-8?q?The_caf=C3=A9?=
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: quoted-printable

The caf=C3=A9 opens at ni=
ne.
"""
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


def read(path: Path, content: bytes, encoding: str | None = None):
    path.write_bytes(content)
    return read_source(path, encoding)


def refused(path: Path, content: bytes, encoding: str | None = None) -> str:
    """The one line that names the file and what is allowed."""
    with pytest.raises(UserError) as caught:
        read(path, content, encoding)
    line = str(caught.value)
    assert str(path) in line or "--encoding is" in line
    assert "allowed: " in line
    assert "\n" not in line
    return line


class TestText:
    def test_blank_lines_divide_paragraphs(self, tmp_path):
        content = (
            b"\n\nOne  li\xc2\xad\r\nne,\r\nand\tthe next.\n \t\nThe second.\n\n\nThe \f third.\n"
        )
        source = read(tmp_path / "my notes.txt", content)
        assert source.paragraphs == ("One line, and the next.", "The second.", "The", "third.")
        assert (source.title, source.name) == ("my notes", str(tmp_path / "my notes.txt"))

    @pytest.mark.parametrize(
        ("text", "paragraphs"),
        [
            ("A word.\nTwo!\n\u201cThree.\u201d", 3),
            ("A word.\nTwo!", 1),
            ("A line that is broken\nMr. Otto wrote it.\nThree.", 1),
            (f"{'word ' * 30}\nTwo", 2),
        ],
    )
    def test_lines_that_are_paragraphs(self, text, paragraphs, tmp_path):
        assert len(read(tmp_path / "a.txt", text.encode()).paragraphs) == paragraphs
        assert len(text_source(text, "x").paragraphs) == paragraphs

    @pytest.mark.parametrize(
        ("encoding", "given"),
        [("utf-8", None), ("utf-8-sig", None), ("utf-16", None), ("utf-32", None)]
        + [(name, name) for name in ("latin-1", "cp1252", "utf-16-le", "utf-8")],
    )
    def test_encodings(self, encoding, given, tmp_path):
        content = "Das Café.\n\nNaïve Größe.".encode(encoding)
        source = read(tmp_path / "a", content, given)
        assert source.paragraphs == ("Das Café.", "Naïve Größe.")

    @pytest.mark.parametrize("given", ["utf-8", "utf-16-le"])
    def test_a_mark_is_no_text(self, given, tmp_path):
        source = read(tmp_path / "a", "\ufeffOtto.".encode(given), given)
        assert source.paragraphs == ("Otto.",)

    def test_a_name_that_is_not_utf8_can_be_shown(self, tmp_path):
        path = tmp_path / os.fsdecode(b"caf\xe9.txt")
        source = read(path, b"Otto rules Ulm.")
        assert (source.name, source.title) == (f"{tmp_path}/caf\\udce9.txt", "caf\\udce9")

    def test_what_is_no_text_is_named(self, tmp_path):
        path = tmp_path / "a.txt"
        line = refused(path, "ab Café".encode("latin-1"))
        assert "is not in utf-8 (byte 6)" in line
        assert "--encoding NAME" in line
        assert "--encoding is klingon; allowed" in refused(path, b"a", "klingon")
        assert "--encoding is hex; allowed" in refused(path, b"a", "hex")
        assert "is not in ascii" in refused(path, b"\xff", "ascii")
        assert "character NUL" in refused(path, b"a\0b")
        assert "character NUL" in refused(path, "a text".encode("utf-16-le"))
        assert "is not in utf-16" in refused(path, b"\xff\xfea")
        for nothing in (b"", b" \n\n\t\r\n", b"\xef\xbb\xbf"):
            assert "holds no text" in refused(path, nothing)

    def test_what_cannot_be_opened_is_named(self, tmp_path):
        with pytest.raises(UserError, match="nowhere.txt: No such file .*allowed"):
            read_source(tmp_path / "nowhere.txt")
        with pytest.raises(UserError, match="is a folder; allowed"):
            read_source(tmp_path)


def test_menus_and_dates_are_no_answers(tmp_path):
    """What half of the files have, and dates and page numbers by themselves; not short texts."""
    own = ["12 March 2020", "Posted on Monday, 12 March 2020, 10:30", "Page 3 of 10", "1966"]
    own += ["Born 12 March 1920", "It began on 12 March 2020."]
    for number in range(5):
        menu = "Home | News" if number < 3 else f"{number}."
        rare = "Dear Sir" if number < 2 else ""
        text = "\n\n".join([menu, *(own if number == 0 else []), rare, f"Number {number}."])
        (tmp_path / f"{number}.txt").write_text(text)
    sources = read_sources([tmp_path], report=lambda line: None)
    heard = [
        text
        for source in sources
        for i, text in enumerate(source.paragraphs)
        if i not in source.silent
    ]
    expected = ["1966", *own[-2:], "Dear Sir", "Number 0.", "Dear Sir", "Number 1.", "Number 2."]
    assert heard == [*expected, "3.", "Number 3.", "4.", "Number 4."]
    assert all(source.paragraphs[0] == "Home | News" for source in sources[:3])


def test_a_date_in_an_upload_is_no_answer():
    source = uploaded_source(b"It began.\n\n12 March 2020", "a.txt")
    assert source.silent == {1}


def test_a_line_of_dates_takes_little_time():
    text = b"1/1/2020 " + b"1111day-" * 20 + b"x"
    assert not uploaded_source(text, "a.txt").silent


def test_dates_that_answer_and_versions_of_a_document(tmp_path):
    """A date below a heading, and one in a table; versions are no pages with a menu."""
    text = "# Minutes\n\n3 May 2021\n\n## Next meeting\n\n12 March 2025, 14:00\n\n"
    text += "| Day | Hour |\n|---|---|\n| 2025-03-13 | 14:00 |\n\nVersion "
    for number in range(3):
        (tmp_path / f"{number}.md").write_text(text + f"{number}")
    for source in read_sources([tmp_path], report=lambda line: None):
        assert [source.paragraphs[i] for i in source.silent] == ["3 May 2021"]


class TestHTML:
    def test_text_alone_in_paragraphs(self, tmp_path):
        content = b"""<!DOCTYPE html><html><head><title> A
        page </title><style>p{color:red}</style><script>head()</script></head>
        <body onload="x()"><!-- unseen --><nav><ul><li>Home<li>Else</ul></nav>
        <h1>The <em>Elm</em></h1><p>It is <b>lo</b>ng,<br>and&nbsp;deep &amp; cold &#x1F370;.
        <p>Second<script>var a = "<p>no</p>";</script> one</p><noscript>none</noscript>
        <table><tr><td>Ida</td><td>Otto</td></tr><tr><th>x<td>y</table>
        tail <svg><title>b</title><text>drawn</text></svg><unknown>word</unknown></body></html>"""
        source = read(tmp_path / "a.html", content)
        assert source.title == "A page"
        assert source.paragraphs == (
            *("The Elm", "It is long, and deep & cold \N{SHORTCAKE}."),
            *("Second one", "Ida Otto", "x y", "tail word"),
        )

    @pytest.mark.parametrize(
        ("head", "encoding"),
        [
            ('<meta charset="windows-1252">', "cp1252"),
            (
                "<meta http-equiv=content-type content='text/html; charset=ISO-8859-2'>",
                "iso-8859-2",
            ),
            ('<?xml version="1.0" encoding="iso-8859-1"?>', "latin-1"),
            ('<?xml version="1.0" encoding="iso-8859-1"?><meta charset=utf-8>', "utf-8"),
            (
                "<!-- <meta charset=koi8-r> --><meta name=a content='text; charset=koi8-r'>",
                "utf-8",
            ),
            ("<script>'<meta charset=koi8-r>'</script>", "utf-8"),
            ("<meta charset=klingon>", "utf-8"),
            ('<meta charset="utf-16">', "utf-16"),
        ],
    )
    def test_a_page_says_its_encoding(self, head, encoding, tmp_path):
        content = f"{head}<p>Größe: ö".encode(encoding)
        assert read(tmp_path / "a.HTM", content).paragraphs == ("Größe: ö",)

    @pytest.mark.parametrize(
        ("declared", "encoding", "text"),
        [
            ("iso-8859-1", "cp1252", "\u201c\u00d6rsk\u201d \u2013 it\u2019s"),
            ("utf-16", "utf-8", "\u201c\u00d6rsk"),
            ("gb2312", "gb18030", "\u9555\u20ac"),
            ("shift_jis", "cp932", "\u2460\u9ad9"),
            ("euc-kr", "cp949", "\ub620"),
        ],
    )
    def test_an_encoding_is_what_browsers_take_it_for(self, declared, encoding, text, tmp_path):
        content = f"<meta charset={declared}><p>{text}".encode(encoding)
        assert read(tmp_path / "a.html", content).paragraphs == (text,)

    def test_a_byte_that_is_none_of_a_browsers(self, tmp_path):
        content = b"<meta charset=latin-1><p>a\x81\xe9"
        assert read(tmp_path / "a.html", content).paragraphs == ("a\x81\u00e9",)
        content = b"<meta charset=utf-8><p>" + b"It rules. " * 200 + b"a\xff"
        assert read(tmp_path / "a.html", content).paragraphs[0].endswith("a\ufffd")

    def test_the_option_is_stronger(self, tmp_path):
        content = "<meta charset=utf-8><p>é".encode("latin-1")
        assert "is not in utf-8" in refused(tmp_path / "a.html", content)
        assert read(tmp_path / "a.html", content, "latin-1").paragraphs == ("é",)

    @pytest.mark.parametrize(
        ("html", "paragraphs"),
        [
            ("<header><nav><a>Home</a></header><p>Otto", ["Otto"]),  # a parent's end closes it
            (
                "<nav><ul><li><a>Home</a></ul><h1>Ulm</h1><p>It is an old town.",
                ["Ulm", "It is an old town."],
            ),
            ("<svg><title>x</title><p>Otto</p>", ["Otto"]),
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
            ("<del>colour</del><ins>color</ins>", ["colour color"]),
            (
                "3<math><mfrac><mn>1</mn><mn>2</mn></mfrac> <mn>1</mn><mn>2</mn></math>",
                ["3 1/2 1 2"],
            ),
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
        ],
    )
    def test_as_browsers_show_it(self, html, paragraphs, tmp_path):
        assert [
            *read(tmp_path / "a.html", f"<meta charset=utf-8>{html}".encode()).paragraphs
        ] == paragraphs

    def test_headings_are_places(self, tmp_path):
        content = b"<p>a<h1>The <i>Elm</i></h1><div><h2>Its kings</h2><p>b</div>"
        source = read(tmp_path / "a.html", content)
        found = [source.place(number) for number in range(len(source.paragraphs))]
        elm, kings = "below \u201cThe Elm\u201d", "below \u201cIts kings\u201d"
        assert found == ["paragraph 1", elm, kings, kings]

    def test_pages_by_their_content(self, tmp_path):
        for name, head in (
            ("a.txt", "<!DOCTYPE html>"),
            ("page", "\n <!-- x --> <HTML >"),
            ("b.asp", "<div class=x>"),
        ):
            assert read(tmp_path / name, f"{head}<p>Otto.".encode()).paragraphs == ("Otto.",)
        assert read(tmp_path / "c.txt", b"<prince> rules").paragraphs == ("<prince> rules",)

    def test_broken_pages(self, tmp_path):
        path = tmp_path / "a.xhtml"
        assert read(path, b"<p>a</i></p></div></script><svg/>b<p").paragraphs == ("a", "b")
        assert read(path, b"<title>a</title>b<script>c</script>d<style>e").paragraphs == ("bd",)
        assert read(path, b"no tags & none").paragraphs == ("no tags & none",)
        deep = b"<div>" * 20_000 + b"low" + b"</div>" * 7
        assert read(path, deep).paragraphs == ("low",)
        for nothing in (b"", b"<!-- -->", b"<script>a</script>", b"<html></html>"):
            assert "holds no text" in refused(path, nothing)


class TestPDF:
    def test_pages(self, tmp_path):
        content = pdf("The king of Arle\nis Otto.", "Page two.", title="Towns")
        for name in ("a.pdf", "without an ending"):
            source = read(tmp_path / name, content)
            assert source.paragraphs == ("The king of Arle is Otto.", "Page two.")
            assert source.title == "Towns"
            assert [source.place(number) for number in (0, 1)] == ["page 1", "page 2"]

    def test_paragraphs_of_a_page(self, tmp_path):
        """A line that ends early ends a paragraph, unless the sentence goes on."""
        page = """A heading
The king of Arle, who is old, has ruled the town for more than
twenty years, and the towns around it for longer than any-
body knows, or
so they say.
The next paragraph begins here, and has words enough to fill
a line and more."""
        longer = "This sentence is one of many in a paragraph without an end.\n" * 60
        source = read(tmp_path / "a.pdf", pdf(page, longer))
        first, second, third, *others = source.paragraphs
        assert first == "A heading"
        assert second.startswith("The king of Arle, who is old, has")
        assert second.endswith("than anybody knows, or so they say.")
        assert (
            third
            == "The next paragraph begins here, and has words enough to fill a line and more."
        )
        assert len(others) == 3
        assert all(text.endswith("an end.") and len(text) <= 1200 for text in others)

    @pytest.mark.parametrize(
        ("broken", "elsewhere", "whole"),
        [
            ("Kö-\nnig", "", "König"),
            ("Мос-\nква", "", "Москва"),
            ("Ko\u0308-\nnig", "", "König"),
            ("deter\u00ad\nmining", "", "determining"),
            ("Kö\u2010\nnig", "", "König"),
            ("so\u00adft", "", "soft"),
            ("price-\ndetermining", "", "price-determining"),
            ("deter-\nmining", "", "determining"),
            ("environ-\nmental", "", "environmental"),
            ("Bundes-\nregierung", "", "Bundesregierung"),
            ("self-\nservice", "", "self-service"),
            ("non-\nclustered", "", "non-clustered"),
            ("non-\nlinear", "", "nonlinear"),  # which the dictionary has
            ("ten-\nder", "", "tender"),
            ("mother-in-\nlaw", "", "mother-in-law"),
            ("E-\nmail", "", "E-mail"),
            ("Rhein-\nMain", "", "Rhein-Main"),
            ("inter-\nnational", "International", "international"),
            ("long-\nterm", "long-term", "long-term"),
            ("long-\nterm", "term long", "long-term"),
            ("with-\nout", "with out without", "without"),
            ("19-\n20", "", "19- 20"),
        ],
    )
    def test_words_that_a_line_divides(self, broken, elsewhere, whole):
        page = "\n".join(pdf_text._lines(f"a {broken} b {elsewhere}"))
        (found,) = pdf_text._whole_words([page])
        assert " ".join(found.split()).startswith(f"a {whole} b")

    def test_what_recurs_at_the_edges_of_pages_is_no_text(self, tmp_path):
        towns = ("Arle", "Elm", "Ulm", "Bree", "Orsk")
        pages = [
            f"{('The Towns', 'A Guide')[n % 2]}\nThe king of {town} is old.\nBees live there in "
            f"{town}.\nThe Towns\nAll of {town} knows it.\nSo it is said in {town}.\nNone of "
            f"{town} leaves.\nPrinted on 2 May 2021\nPage {n + 1} of 5"
            for n, town in enumerate(towns)
        ]
        source = read(tmp_path / "a.pdf", pdf("A Title", *pages))
        text = " ".join(source.paragraphs)
        for gone in ("A Guide", "Printed", "Page", "of 5"):
            assert gone not in text
        assert text.count("The Towns") == 5  # within the pages
        assert all(f"The king of {town} is old." in text for town in towns)
        assert text.startswith("A Title")
        same = pdf("Otto rules.", "Otto rules.")
        assert read(tmp_path / "b.pdf", same).paragraphs == ("Otto rules.",) * 2

    @pytest.mark.parametrize(
        "line",
        [
            "{year}   {amount}",
            "Game {row} was won by team {team} with 9 to {team} points.",
            "{team} May {year}",
        ],
    )
    def test_rows_that_differ_in_numbers_are_text(self, line, tmp_path):
        def row(number: int) -> str:
            year, team = 1900 + number, number * 7 % 11
            return line.format(row=number, year=year, amount=10000 + 31 * number, team=team)

        rows = [row(number) for number in range(48)]
        pages = ["\n".join(rows[first : first + 12]) for first in range(0, 48, 12)]
        text = " ".join(read(tmp_path / "a.pdf", pdf(*pages)).paragraphs)
        assert [each for each in rows if " ".join(each.split()) not in text] == []

    def test_dates_and_numbers_of_pages_are_no_text(self, tmp_path):
        months, numerals = "January February March April May June", "i ii iii iv v vi"
        heads = zip(months.split(), numerals.split(), strict=True)
        pages = [
            f"Printed {month} {n}, 2003 at 10:0{n}\nThe king of town {n * n} is old.\n{numeral}"
            f"\n- {n} of 6 -"
            for n, (month, numeral) in enumerate(heads, 1)
        ]
        expected = tuple(f"The king of town {n * n} is old." for n in range(1, 7))
        assert read(tmp_path / "a.pdf", pdf(*pages)).paragraphs == expected

    def test_columns_that_are_written_row_by_row(self, tmp_path):
        left = """The king of Arle, who is old, has ruled
the town for more than twenty years, and
the towns around it for longer than any
person who lives there can remember, and
his wife Ida came from Ulm.""".splitlines()
        right = """In the south there is another town that
has no king but a council of seven men
who meet each week in the old mill near
the bridge and decide what bread costs.
They are all bakers.""".splitlines()
        rows = "\n".join(map("\t".join, zip(left, right, strict=True)))
        heading = "The towns of the river, their kings and their councils in old days"
        source = read(tmp_path / "a.pdf", pdf(f"{heading}\n{rows}"))
        assert source.paragraphs == (heading, " ".join(left), " ".join(right))
        table = "\n".join(
            f"{town}\t{town[::-1]} the king" for town in ("Arle", "Elm", "Ulm", "Bree")
        )
        assert "Elm mlE the king" in " ".join(read(tmp_path / "b.pdf", pdf(table)).paragraphs)

    def test_three_columns(self, tmp_path):
        columns = [[f"{word} of line {line} rules" for line in range(6)] for word in "ABC"]
        rows = "\n".join(map("\t".join, zip(*columns, strict=True)))
        source = read(tmp_path / "a.pdf", pdf(rows, column=170))
        assert source.paragraphs == (" ".join(sum(columns, [])),)

    def test_halves_of_characters(self, tmp_path):
        """As fonts of formulas have them."""
        content = pdf("Otto rules @ and A.", letters={"@": "D835", "A": "D835DC9C"})
        (text,) = read(tmp_path / "a.pdf", content).paragraphs
        assert text == "Otto rules \ufffd and \U0001d49c."

    def test_damaged(self, tmp_path, caplog):
        content, path = pdf("The king of Arle is Otto."), tmp_path / "a.pdf"
        assert "holds no text" in refused(path, pdf(""))
        for damaged in (b"", b"no PDF", content[:40], content[:-300]):
            assert "cannot be read as PDF (" in refused(path, damaged)
        assert not caplog.messages  # the library's own warnings

    def test_locked(self, tmp_path):
        writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf("secret")))
        writer.encrypt("key", algorithm="RC4-128")
        out = io.BytesIO()
        writer.write(out)
        assert "needs a password" in refused(tmp_path / "a.pdf", out.getvalue())


class TestMarkdown:
    def test_rows_of_tables_headings_and_items(self, tmp_path):
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
        source = read(tmp_path / "a.md", content)
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
        (found,) = uploaded_source(content.encode(), name).paragraphs
        assert found == "Konstantinopel fell in 1453, Zoe."
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
            (
                "a.eml",
                MAIL,
                ("From: Ada <a@x>", "Subject: The caf\u00e9", "The caf\u00e9 opens at nine."),
            ),
            (
                "a.txt",
                MAIL,
                ("From: Ada <a@x>", "Subject: The caf\u00e9", "The caf\u00e9 opens at nine."),
            ),
            ("b.eml", PARTS, ("From: Ada <a@x>", "\u201cOtto\u201d rules.")),
            ("a.mhtml", PARTS.replace(b"mixed", b"related"), ("\u201cOtto\u201d rules.",)),
            ("a.ipynb", NOTEBOOK, ("Towns", "Otto rules.", "# no heading", "42")),
            ("a.epub", book("O/"), ("One", "First.", "Two", "Second.")),
        ],
    )
    def test_read_without_a_library(self, name, data, paragraphs):
        assert uploaded_source(data, name).paragraphs == paragraphs

    def test_read_by_libraries_of_an_extra(self, tmp_path):
        pytest.importorskip("mammoth")
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for row in (("Town", "King"), ("Arle", "Otto")):
            book.active.append(row)
        book.save(tmp_path / "a.xlsx")
        source = read_source(tmp_path / "a.xlsx")
        assert source.paragraphs == ("Town | King", "Arle | Otto")
        assert uploaded_source(word("The king is Otto."), "a").paragraphs == ("The king is Otto.",)
        rich = rb"{\rtf1\ansi{\fonttbl{\f0 Arial;}}\f0 The king is caf\'e9.\par So.\par}"
        assert uploaded_source(rich, "a.rtf").paragraphs == ("The king is caf\u00e9.", "So.")

    @pytest.mark.parametrize(
        ("name", "data", "says"),
        [
            ("a.png", b"\x89PNG\r\n\x1a\n\0", "is image/png, not a document that can be read"),
            ("a.txt", b"\xff\xd8\xff\xe0\0", "is of a form that is not known, and no text"),
            ("a.zip", b"PK\3\4\0\0", "is application/zip, not"),
            ("a.docx", b"PK\3\4\0\0", "cannot be read as Word document ("),
            ("a.epub", b"no book", "cannot be read as e-book ("),
            ("a.dat", b"abc\1\xff", "is of a form that is not known, and no text"),
        ],
    )
    def test_named_and_never_read_raw(self, name, data, says, tmp_path):
        line = refused(tmp_path / name, data)
        assert says in line
        assert "encoding" not in line

    def test_a_library_that_is_missing_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "mammoth", None)
        with pytest.raises(
            forms.Unreadable,
            match=r"needs mammoth to be read as Word document: pip install .*\[documents\]",
        ):
            forms.parse("a.docx", word("Otto."), None, False)


class TestFolders:
    def test_all_documents_below_and_nothing_else(self, tmp_path):
        (tmp_path / "b" / "c").mkdir(parents=True)
        (tmp_path / ".hidden").mkdir()
        for name in ("b/c/z.html", "b/a.txt", "b/.secret.txt", ".hidden/a.txt", "a.MD", "x.py"):
            (tmp_path / name).write_text("text")
        (tmp_path / "empty.txt").write_text("")
        (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
        lines: list[str] = []
        named = tmp_path / "b" / "a.txt"
        sources = read_sources([named, tmp_path, named], report=lines.append)
        names = [Path(source.name).relative_to(tmp_path).as_posix() for source in sources]
        assert names == ["b/a.txt", "a.MD", "b/c/z.html"]
        assert lines[0] == f"skipped {tmp_path / 'empty.txt'}: holds no text"
        assert lines[1].startswith(f"skipped {tmp_path / 'latin.txt'}: is not in utf-8 (byte 3)")
        assert lines[2].startswith(f"{tmp_path}: 3 read, 2 unreadable, 2 skipped")
        assert len(lines) == 3

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
    def test_what_never_ends_is_skipped_with_a_line(self, tmp_path):
        (tmp_path / "a.txt").write_text("Otto.")
        os.mkfifo(tmp_path / "b.txt")
        for name, target in (("c.txt", "/dev/zero"), ("d.txt", "d.txt"), ("e", tmp_path)):
            (tmp_path / name).symlink_to(target)
        lines: list[str] = []
        assert len(read_sources([tmp_path], report=lines.append)) == 1
        for name, why in (
            ("b.txt", "a pipe"),
            ("d.txt", "symbolic links"),
            ("e", "link to a fol"),
        ):
            assert any(f"{tmp_path / name}" in line and why in line for line in lines)
        assert f"{tmp_path / 'c.txt'}: is a pipe, a device" in lines[0]
        with pytest.raises(UserError, match="/dev/zero: is a pipe, a device"):
            read_source(Path("/dev/zero"))

    def test_forms_that_nothing_reads_are_named(self, tmp_path):
        (tmp_path / "a.txt").write_text("Otto.")
        for number in range(7):
            (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8\xff\xe0\0")
        lines: list[str] = []
        read_sources([tmp_path], report=lines.append)
        assert lines[0].startswith(f"skipped {tmp_path / '0.jpg'}, ")
        assert "4.jpg and 2 more: is image/jpeg, not a document" in lines[0]
        assert "1 read, 7 unreadable, 0 skipped" in lines[1]

    def test_what_is_refused(self, tmp_path):
        (tmp_path / "x.py").touch()
        with pytest.raises(UserError, match=r"no document in this folder: 0 read.*1 skipped"):
            read_sources([tmp_path], report=print)
        with pytest.raises(UserError, match="nowhere: No such file"):
            read_sources([tmp_path / "nowhere"], report=print)
        (tmp_path / "a.txt").write_text("a")
        with pytest.raises(UserError, match="--encoding is klingon"):
            read_sources([tmp_path], "klingon", report=print)


@pytest.mark.parametrize("blank", [" ", "\n"])
def test_a_long_paragraph_takes_little_more_memory_than_its_text(blank, tmp_path):
    words = blank.join(["a", "treaty", "in", "Ulm "] * 100_000)
    (tmp_path / "long.txt").write_text(words)
    tracemalloc.start()
    paragraphs = read_source(tmp_path / "long.txt").paragraphs
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert " ".join(paragraphs) == " ".join(words.split())
    assert max(map(len, paragraphs)) <= 20_000
    assert most < 10 * len(words), f"{most / len(words):.1f} times"


def test_main_text_is_without_menus_and_asks_for_its_library(tmp_path, monkeypatch):
    story = (
        "<p>The king of Arle is Otto, who has ruled the town for more than twenty years now.</p>"
    )
    page = f"<html><body><footer><a href=x>Home</a></footer><article>{story * 8}</article>"
    path = tmp_path / "a.html"
    path.write_text(page)
    assert read_source(path).paragraphs[0] == "Home"
    pytest.importorskip("trafilatura")
    paragraphs = read_source(path, main_text=True).paragraphs
    assert not any("Home" in text for text in paragraphs)
    assert paragraphs[0].startswith("The king of Arle")


class TestLimits:
    @pytest.mark.parametrize(
        ("name", "unit", "end"),
        [
            *(("a.md", "# ", "x"), ("a.md", " ", "x|"), ("a.md", "a\n", "b")),
            *(
                ("a.html", "<a <a", ""),
                ("a.html", "<svg>", "</p>" * 100_000),
                ("a.html", "</", ""),
            ),
        ],
    )
    def test_small_documents_take_no_time(self, name, unit, end, tmp_path):
        (tmp_path / name).write_text(f"Otto rules.\n\n{unit * 30_000}{end}")
        start = time.process_time(), time.monotonic()
        assert read_source(tmp_path / name).paragraphs[0].startswith("Otto rules.")
        assert time.process_time() - start[0] < 2
        assert time.monotonic() - start[1] < parsing.SECONDS / 2

    @pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html"])
    def test_a_run_of_marks_takes_no_time(self, name):
        """Normalisation takes quadratic time of a run: this one froze a page for half a minute."""
        start = time.process_time()
        (text,) = uploaded_source(("a" + "\u0301\u0323" * 40_000).encode(), name).paragraphs
        [*stems(text)]
        assert len(text) == 31
        assert time.process_time() - start < 1

    @pytest.mark.parametrize(
        ("limit", "value", "says"),
        [
            ("SECONDS", 0.0, "takes more than 0 seconds"),
            ("MEMORY", 60_000_000, "60,000,000 bytes"),
        ],
    )
    def test_time_and_memory_have_limits(self, limit, value, says, tmp_path, monkeypatch):
        page = b"<p>" + b"a" * 50_000_000 if limit == "MEMORY" else pdf("Otto rules.")
        parsing._worker.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(parsing, limit, value)
            for name in ("a.html", "a.txt", "a.md"):  # of every form
                parsing._worker.cache_clear()
                assert says in refused(tmp_path / name, page)
        parsing._worker.cache_clear()
        assert read(tmp_path / "a.pdf", pdf("Otto rules.")).paragraphs == ("Otto rules.",)

    def test_one_process_reads_all(self, tmp_path):
        for _ in range(2):
            read(tmp_path / "a.html", b"<p>Otto")
            number = parsing._worker(os.getpid()).pid
            read(tmp_path / "a.pdf", pdf("Otto"))
            assert parsing._worker(os.getpid()).pid == number
