"""Folders that commands write to, and plug-ins that they import."""

from pathlib import Path

import pytest

from fairseq_clusterformer.cli.common import (
    Parser,
    add_places,
    check_claim,
    claim,
    harmless,
    read_lines,
)
from fairseq_clusterformer.errors import UserError


def test_files_of_somebody_else_are_kept(tmp_path: Path) -> None:
    (tmp_path / "clusters.png").write_text("mine")
    with pytest.raises(UserError, match=r"--out is .*: it holds a clusters\.png of somebody else"):
        claim(tmp_path, ["clusters.html", "clusters.png"])
    assert [path.name for path in tmp_path.iterdir()] == ["clusters.png"]


def test_own_files_are_replaced_and_others_stay_beside_them(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    claim(folder, ["scores.json"])
    (folder / "scores.json").write_text("{}")
    claim(folder, ["scores.json"])
    claim(folder, ["clusters.png"])
    assert (folder / "scores.json").read_text() == "{}"
    assert sorted(path.name for path in folder.iterdir()) == [".clusterformer", "scores.json"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="--out is .*file: it is a file; allowed: a folder"):
        claim(tmp_path / "file", ["scores.json"])
    with pytest.raises(UserError, match="--out is .*file/out: .*; allowed: a folder"):
        claim(tmp_path / "file" / "out", ["scores.json"])


def test_where_nothing_can_be_made(tmp_path: Path) -> None:
    """Before anything is computed."""
    (tmp_path / "file").write_text("mine")
    for place, said in (("file/out", "file cannot be written to"), (300 * "x", "name too long")):
        with pytest.raises(UserError, match=f"(?i)--out is .*{said}; allowed: a folder to write"):
            check_claim(tmp_path / place, ["scores.json"])


def test_a_check_leaves_nothing(tmp_path: Path) -> None:
    check_claim(tmp_path / "new", ["scores.json"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", ["\x1b", "\x9b", "\x7f", "\r", "\0", "\u202e"])
def test_what_commands_a_terminal_is_not_printed(bad: str) -> None:
    assert harmless(f"a{bad}[2Jb\n\tc") == "a\ufffd[2Jb\n\tc"
    letters = "é \xa0\u200c\u200d\u3000👩\u200d🚀 العربية"
    assert harmless(letters) == letters


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """Only where a file begins."""
    file = tmp_path / "text"
    file.write_bytes("\ufeffEin Hund.\n\ufeffé\r\n".encode())
    assert list(read_lines(file, "--input")) == ["Ein Hund.", "\ufeffé\r"]
    file.write_bytes(b"\xef\xbb")
    with pytest.raises(UserError, match="line 1 is not UTF-8"):
        list(read_lines(file, "--input"))


def test_plugin_of_a_users_own(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A kind of attention in it is known afterwards; what is no package is one line."""
    from fairseq_clusterformer.attention import attention_kinds, kind

    parser = Parser(prog="test")
    add_places(parser)
    folder = tmp_path / "plugin_of_a_test"
    folder.mkdir()
    code = "from fairseq_clusterformer.attention import register_attention\n"
    code += "from fairseq_clusterformer.attention.window import Window\n"
    code += "@register_attention('windows_of_a_test')\nclass Mine(Window):\n    pass\n"
    (folder / "__init__.py").write_text(code)
    try:
        parser.parse_args(["--user-dir", str(folder)])
        assert "windows_of_a_test" in attention_kinds()
    finally:
        kind._KINDS.pop("windows_of_a_test", None)
    with pytest.raises(SystemExit):
        parser.parse_args(["--user-dir", str(tmp_path / "no")])
    assert capsys.readouterr().err.startswith("test: error: --user-dir is ")
