"""Folders that commands write to, and plug-ins that they import."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fairseq_clusterformer.cli.common import harmless, read_lines
from fairseq_clusterformer.cli.main import main, program
from fairseq_clusterformer.errors import UserError


def test_what_commands_a_terminal_is_not_printed():
    for bad in ("\x1b", "\x9b", "\x7f", "\r", "\0", "\u202e"):
        assert harmless(f"a{bad}[2Jb\n\tc") == "a\ufffd[2Jb\n\tc"
    letters = "é \xa0\u200c\u200d\u3000👩\u200d🚀 العربية"
    assert harmless(letters) == letters


def test_a_byte_order_mark_is_no_text(tmp_path):
    """Only where a file begins."""
    file = tmp_path / "text"
    file.write_bytes("\ufeffEin Hund.\n\ufeffé\r\n".encode())
    assert list(read_lines(file, "--input")) == ["Ein Hund.", "\ufeffé\r"]
    file.write_bytes(b"\xef\xbb")
    with pytest.raises(UserError, match="line 1 is not UTF-8"):
        list(read_lines(file, "--input"))


@pytest.mark.parametrize(
    ("line", "names", "is_input"),
    [
        ("perplexity --checkpoint x --text mine --out {}", ("./mine", "link", "hard"), True),
        ("perplexity --checkpoint x --out {}", ("other", "link-to-other"), False),
        ("answer --document mine --question q --html {}", ("mine", "link", "hard"), True),
        ("answer --document . --question q --html {}", ("mine", "skipped.jpg"), True),
        ("evaluate translation --checkpoint mine --json {}", ("mine",), True),
        ("average --inputs mine --output {}", ("mine", "link", "hard"), True),
        ("draw --checkpoint x --text drawn/clusters.html --out {}", ("drawn",), True),
        ("draw --checkpoint x --text mine --out {}", ("drawn",), False),
    ],
)
def test_no_command_writes_over_a_file_of_the_user_s(
    line, names, is_input, tmp_path, monkeypatch, capsys
):
    """Not even by force if it is an input; and before any work."""
    monkeypatch.chdir(tmp_path)
    Path("drawn").mkdir()
    places = [Path(name) for name in ("mine", "other", "skipped.jpg", "drawn/clusters.html")]
    for place in places:
        place.write_text("mine")
    for name, of in (("link", "mine"), ("link-to-other", "other")):
        Path(name).symlink_to(of)
    Path("hard").hardlink_to("mine")
    for name in names:
        for force in ([], ["--force"]) if is_input else ([],):
            words = [word.format(name) for word in line.split()]
            assert main([*words, *force]) == 1
            err = capsys.readouterr().err
            assert ("it is one of the inputs" if is_input else ": it exists") in err
            assert err.count("\n") == 1
    assert {place.read_text() for place in places} == {"mine"}
    assert not Path(".clusterformer").exists()


@pytest.mark.parametrize(
    ("text", "stdout", "error"),
    [("text", "/dev/full", "No space left on device\n"), ("caf\\udce9", "/dev/null", "")],
)
def test_what_stdout_does_not_take(text, stdout, error):
    code = (
        "import sys, fairseq_clusterformer.cli.average as average\n"
        "from fairseq_clusterformer.cli.main import main\n"
        f"average.main = lambda _: print('{text}') or 0\n"
        "sys.exit(main(['average']))"
    )
    with open(stdout, "w") as file:
        command = [sys.executable, "-c", code]
        how = {"stderr": subprocess.PIPE, "env": os.environ | {"PYTHONIOENCODING": "utf-8:strict"}}
        found = subprocess.run(command, stdout=file, text=True, **how)
    assert found.stderr[-len(error) :] == error
    assert found.stderr.count("\n") == found.returncode == bool(error)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["answer", "--document", "x", "--question", "y", "--html", ""], "--html is empty"),
        (["generate", "--checkpoint", "x", "--data", ""], "--data is empty"),
        (
            ["generate", "--checkpoint", "x", "--temperature", "1e400"],
            "allowed: a finite number, 0 or",
        ),
        (["generate", "--checkpoint", "x", "--top-k", "-1"], "allowed: a whole number, 1 or mo"),
        (["translate", "--checkpoint", "x", "--lenpen", "1000"], "-10 or more, up to 10"),
        (["translate", "--checkpoint", "x", "--beam", 30 * "9"], "up to 2147483647"),
        (["convert", "x", "y", "--lr", "inf"], "--lr is inf; allowed: a finite number, above 0"),
        (["generate", "--checkpoint", "x", "--user-dir", "/no"], "--user-dir is /no: "),
    ],
)
def test_values_are_checked(line, says, capsys):
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert says in said


def test_a_loop_of_links_is_one_line(tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    assert main(["prepare", "lm", "text", str(tmp_path / "loop"), str(tmp_path / "out")]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "loop" in said


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("vectors x y", "the Python in examples/xlqa/README.md"),
        ("similar x y", "the Python in examples/xlqa/README.md"),
        ("prepare keyphrases openkp x", "python examples/etc/openkp/prepare.py"),
        ("evaluate keyphrases --checkpoint x", "the Python in examples/etc/openkp/README.md"),
    ],
)
def test_what_has_moved_is_named(command, place, capsys):
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"it has moved to the repository's examples; allowed: {place}")


def test_a_plug_in_is_named_where_it_is_missing(towns_reader, towns_data, run_cli):
    """A checkpoint never loads code by itself."""
    words = ["evaluate", "qa", "--checkpoint", towns_reader, "--data", towns_data / "none"]
    allowed = "allowed: it with --user-dir examples/xlqa"
    for more, said in (
        ((), f"its model bidaf_reader is that of a plug-in; {allowed}"),
        (("--user-dir", "examples/xlqa"), "--data is"),  # the model is there
    ):
        done = run_cli("python", "-m", "fairseq_clusterformer", *words, *more, check=False)
        assert (done.returncode, said in done.stdout) == (1, True)
    done = run_cli("fairseq-train", towns_data, "--arch", "bidaf_reader_tiny", check=False)
    assert done.returncode == 1
    assert f"--arch is bidaf_reader_tiny: it has moved; {allowed}" in done.stdout


def test_a_device_is_no_input(capsys):
    """It may never end."""
    with pytest.raises(UserError, match="--input is /dev/zero: it is a device; allowed: a file"):
        next(read_lines(Path("/dev/zero"), "--input"))


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("x: can't allocate memory: you"), OSError(12, "x")]
)
def test_memory_that_runs_out_is_one_line(error, capsys):
    def command(_):
        raise error

    assert program("clusterformer x", command, []) == 1
    assert capsys.readouterr().err.startswith("clusterformer x: error: out of memory; allowed: ")


def test_an_error_has_a_bound(capsys):
    """What is wrong with a value, and a name that the system does not take."""
    for option in ("--top-k", "--checkpoint"):
        with suppress(SystemExit):
            main(["generate", option, "a" * 61_000])
        assert 0 < len(capsys.readouterr().err) < 3000


def test_a_pipe_is_called_one(tmp_path, capsys):
    os.mkfifo(pipe := tmp_path / "pipe")
    for line in ("perplexity --checkpoint x --text", "bundle", "average --output x --inputs"):
        assert main([*line.split(), str(pipe), *["out"][: line == "bundle"]]) == 1
        assert f"is {pipe}: it is no plain file; allowed: " in capsys.readouterr().err


def test_a_name_that_is_not_utf8(tmp_path, capsys):
    """Some libraries take no such name: that is one line, before any work, or works."""
    out = tmp_path / os.fsdecode(b"caf\xe9")
    for words in (["export", "python-code", out, "--to", "transformers"], ["convert", "x", out]):
        assert main(list(map(str, words))) == 1
        assert "its name is not in UTF-8; allowed: " in capsys.readouterr().err
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("".join(f"a b {i}\n" for i in range(300)))
    words = ["prepare", "lm", "text", tmp_path, out.parent.parent / out.name, "--sentencepiece"]
    assert main([*map(str, words), "290"]) == 0
