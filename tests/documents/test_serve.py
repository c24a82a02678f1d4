"""The page to ask in: its server by FastAPI's own client, and itself in a browser."""

import asyncio
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from html import escape
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

import uvicorn
from fastapi.testclient import TestClient

from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.documents import serve as serving
from fairseq_clusterformer.documents.read import Reader
from fairseq_clusterformer.documents.serve import PAGE, Desk, build_app
from fairseq_clusterformer.documents.sources import text_source
from tests.documents.commands import error, run, usage_error
from tests.documents.papers import pdf

LIMIT = 20_000
ASKED = "Who rules Bree?"
TOWNS = "Ida Brun rules Ulm. Noor rules Bree. Mary-Ann rules Pisa."
EVIL = """Kim 2nd rules Lund. </script><img src=x onerror="document.title=1"> Otto rules Ulm."""
ODD = "../b/\u00e4 #1?&\n.txt"


@pytest.fixture(scope="module")
def reader(towns_reader: Path) -> Reader:
    return Reader(load_checkpoint(towns_reader), device="cpu")


@pytest.fixture
def desk(reader: Reader) -> Desk:
    return Desk(reader)


@pytest.fixture
def client(desk: Desk) -> TestClient:
    return TestClient(build_app(desk, "127.0.0.1", LIMIT), base_url="http://127.0.0.1:8000")


def upload(client: TestClient, name: str, data: bytes | str):
    return client.put("/documents", content=data, params={"name": name})


def refused(response, status: int = 422) -> str:
    """The one line of a refusal."""
    assert response.status_code == status
    line = response.json()["error"]
    assert "\n" not in line
    assert len(line) < 300
    return line


class TestDocuments:
    def test_files_of_every_kind_are_asked_together(self, client, monkeypatch):
        page = "<title>Towns</title><p>Kim 2nd rules <b>Orsk</b>.<p>Nothing else."
        found = upload(client, "a.txt", TOWNS).json()
        assert found == {"documents": [{"name": "a.txt", "paragraphs": 1}]}
        assert upload(client, "page.html", page).status_code == 200
        assert upload(client, "paper.pdf", pdf("old Sool rules Tyre.")).status_code == 200
        assert "is not in utf-8 (byte 3)" in refused(upload(client, "latin.txt", b"caf\xe9"))
        line = refused(upload(client, "empty.txt", b""))
        assert line.startswith("document is empty.txt: holds no text; allowed: a file of text")
        names = [each["name"] for each in client.get("/documents").json()["documents"]]
        assert names == ["a.txt", "page.html", "paper.pdf"]
        monkeypatch.setattr(serving, "AROUND", 30)
        for town, ruler, file, place, around in (
            ("Bree", "Noor", "a.txt", "paragraph 1", TOWNS.replace("Pisa.", "\u2026")),
            ("Orsk", "Kim 2nd", "page.html", "paragraph 1", "Kim 2nd rules Orsk."),
            ("Tyre", "old Sool", "paper.pdf", "page 1", "old Sool rules Tyre."),
        ):
            found = client.post("/ask", content=f"Who rules {town}?").json()
            best = found["answers"][0]
            assert (best["text"], best["file"], best["place"]) == (ruler, file, place)
            assert best["before"] + best["text"] + best["behind"] == around
            assert best["found"]
            assert best["probability"] > 0.5
            assert (len(found["answers"]), found["verdict"]) == (3, "")
            assert found["read"] == found["of"] == 3

    def test_a_client_that_leaves_is_forgotten(self, desk):
        """Without a traceback, and without half of its file."""
        parts = [{"type": "http.request", "body": b"Noor", "more_body": True}]
        scope = {"type": "http", "method": "PUT", "path": "/documents"}
        scope |= {"query_string": b"name=a.txt", "headers": [(b"host", b"127.0.0.1")]}
        sent = []

        async def receive():
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        asyncio.run(build_app(desk, "127.0.0.1", LIMIT)(scope, receive, send))
        assert [message.get("status") for message in sent[:1]] in ([400], [])
        assert desk.documents() == []

    def test_a_file_takes_the_place_of_one_of_its_name(self, client):
        upload(client, ODD, TOWNS)
        documents = upload(client, ODD, "Otto rules Bree.").json()["documents"]
        assert [each["name"] for each in documents] == [ODD]
        assert client.post("/ask", content=ASKED).json()["answers"][0]["text"] == "Otto"
        gone = client.delete("/documents", params={"name": ODD})
        assert gone.json() == {"documents": []}
        line = refused(client.delete("/documents", params={"name": "b"}))
        assert line == "document is b; allowed: none is here"
        line = refused(client.post("/ask", content=ASKED))
        assert "document is none; allowed: one or more" in line

    def test_limits(self, client, monkeypatch):
        line = refused(upload(client, "big.txt", b"a" * (LIMIT + 1)), 413)
        assert "big.txt is too large; allowed: 20,000 bytes or fewer" in line
        monkeypatch.setattr(serving, "MOST_CHARACTERS", 100)
        assert upload(client, "a.txt", TOWNS).status_code == 200
        assert "114 characters; allowed: 100 in all" in refused(upload(client, "b.txt", TOWNS))
        assert upload(client, "a.txt", TOWNS).status_code == 200  # in place of itself
        client.delete("/documents", params={"name": "a.txt"})
        assert upload(client, "b.txt", TOWNS).status_code == 200
        line = refused(client.post("/ask", content="a" * 100_001), 413)
        assert "the question is too large" in line
        assert refused(client.post("/ask", content=" ")).startswith("question is empty; allowed")
        assert "allowed: UTF-8 text" in refused(client.post("/ask", content=b"\xff"))


class TestWhoIsAnswered:
    def test_one_file_that_needs_no_other_host(self, client):
        response = client.get("/")
        html = response.text
        assert html == PAGE.read_text(encoding="utf-8")
        assert "//" not in re.sub(r"/\*.*?\*/", "", html)
        assert not re.search(r"innerHTML|insertAdjacent|document\.write|eval\(", html)
        assert len(re.findall(r"<script", html)) == len(re.findall(r"<style", html)) == 1
        policy = response.headers["content-security-policy"]
        assert re.match(r"default-src 'none'; script-src 'sha256-[^' ]+'; style-src 'sha2", policy)
        assert "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in response.headers

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            *(
                ("host", host, "answers to its own address alone")
                for host in ("evil.example", "evil.example:8000", "", "127.0.0.1.evil")
            ),
            *(("host", host, "") for host in ("LOCALHOST:8000", "127.0.0.1", "[::1]:8000")),
            *(
                ("origin", origin, "does not answer other sites")
                for origin in ("http://evil.example", "http://127.0.0.1:9", "null", "", "http://[")
            ),
            ("origin", "http://127.0.0.1:8000", ""),
            *(
                ("sec-fetch-site", site, "does not answer other sites")
                for site in ("cross-site", "same-site")
            ),
        ],
    )
    def test_other_names_and_sites_are_refused(self, name, value, says, client):
        response = client.get("/documents", headers={name: value})
        if says:
            assert says in refused(response, 403)
        else:
            assert response.status_code == 200

    @pytest.mark.parametrize(
        ("host", "answered", "warned"),
        [
            ("LOCALHOST", ["127.0.0.1", "localhost"], False),  # browsers write small letters
            ("127.1", ["127.0.0.1", "127.1"], False),  # and whole addresses
            ("0", ["127.0.0.1", "desk.lan"], True),  # at all addresses any name will do
        ],
    )
    def test_forms_of_an_address(self, host, answered, warned, desk, served, port, capsys):
        serving.serve(desk, host, port, LIMIT)
        assert ("everybody who can reach" in capsys.readouterr().err) is warned
        ((app, _),) = served
        for name in (*answered, "evil.example"):
            status = 403 if name == "evil.example" and not warned else 200
            client = TestClient(app, base_url=f"http://{name}:{port}")
            assert client.get("/documents").status_code == status

    def test_in_a_network(self, desk):
        client = TestClient(build_app(desk, "192.168.1.5", LIMIT), base_url="http://192.168.1.5")
        assert client.get("/").status_code == 200
        for name in ("evil.example", "localhost"):
            assert client.get("/", headers={"host": name}).status_code == 403


@pytest.fixture
def address(desk: Desk):
    """Of a server in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(build_app(desk, "127.0.0.1", LIMIT), log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield "http://{}:{}".format(*listener.getsockname())
    server.should_exit = True
    thread.join(30)


@pytest.mark.parametrize(
    ("name", "text", "question", "patterns"),
    [
        (
            "<i>evil</i>.html",
            EVIL,
            "Who rules Lund?",
            [
                "<title>Ask your documents</title>",
                r"<p><mark>Kim 2nd</mark>" + re.escape(escape(EVIL, quote=False)[7:]) + "</p>",
                "&lt;i&gt;evil&lt;/i&gt;.html, paragraph 1",
                'id="verdict" hidden',
            ],
        ),
        (
            "a.txt",
            TOWNS,
            "Who rules Tyre?",
            [
                'id="verdict"><strong>No answer found',
                r"Most likely, no answer here \(probability",
                '(?s)(<li class="guess">.*){2}',
            ],
        ),
        ("", "", "Who?", [r'id="said"[^>]*class="bad">document is none; allowed: one or']),
    ],
)
def test_in_a_browser(name, text, question, patterns, desk, address, tmp_path):
    """The page after it has answered; the text of a document stays text."""
    browser = next(filter(shutil.which, ("chromium", "chromium-browser", "google-chrome")), None)
    if browser is None:
        pytest.skip("no Chromium here")
    if text:
        desk.add(text_source(text, name))
    line = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    line += ["--virtual-time-budget=20000", f"--user-data-dir={tmp_path}"]
    line += [f"{address}/?question={quote(question)}"]
    run = subprocess.run(line, check=True, timeout=120, capture_output=True, text=True)
    assert "<img" not in run.stdout
    for pattern in patterns:
        assert re.search(pattern, run.stdout)


@pytest.fixture
def served(monkeypatch) -> list:
    """What a server that ends at once would have served, and where."""
    found = []

    class Once(uvicorn.Server):
        def run(self, sockets) -> None:
            found.append((self.config.app, sockets[0].getsockname()))
            sockets[0].close()

    monkeypatch.setattr(uvicorn, "Server", Once)
    return found


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class TestCommand:
    def test_what_is_refused(self, towns_reader, monkeypatch, capsys):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            line = ["answer", "--checkpoint", towns_reader, "--serve", "--cpu", "--port", port]
            said = error(capsys, *line)
        assert f"--port is {port}: cannot listen at 127.0.0.1 (" in said
        assert "no.such.host (" in error(capsys, *line, "--host", "no.such.host")
        said = usage_error(capsys, *line, "--host", "")  # which would be all addresses
        assert "--host is empty; allowed: an address of this computer" in said
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        said = error(capsys, "answer", "--serve")
        assert 'needs uvicorn, which is not installed; allowed: pip install ".[serve]' in said

    def test_it_serves(self, towns_reader, tmp_path, served, port, capsys):
        """The documents of the command line, at this computer alone, by the command's options."""
        (tmp_path / "a.txt").write_text(TOWNS)
        line = ["answer", "--checkpoint", towns_reader, "--document", tmp_path / "a.txt", "--cpu"]
        line += ["--serve", "--port", port, "--upload-limit", 1, "--encoding", "latin-1"]
        assert run(*line, "--top", 1, "--no-answer-margin", 90, "--windows", 1) == 0
        assert capsys.readouterr().out == f"Ask at http://127.0.0.1:{port} (Ctrl-C ends it)\n"
        ((app, name),) = served
        assert name == ("127.0.0.1", port)
        client = TestClient(app, base_url=f"http://127.0.0.1:{port}")
        assert client.get("/documents").json()["limit"] == 1_000_000
        assert upload(client, "b", "Zo\u00eb rules Ulm.".encode("latin-1")).status_code == 200
        found = client.post("/ask", content=ASKED).json()
        assert "and above 90 counts" in found["verdict"]
        assert [(each["text"], each["found"]) for each in found["answers"]] == [("Noor", False)]
        assert (found["read"], found["of"]) == (1, 2)
