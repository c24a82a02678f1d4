"""A page to drop documents on and to ask in: ``clusterformer answer --serve``.

The page is one file that asks no other host for anything. The server is FastAPI on uvicorn, which
the extra ``serve`` installs. There is no password. Others are kept out by three rules: the server
listens at this computer alone unless another address is asked for; a request must name that
address as its host, so that no other name can be led to it (DNS rebinding), except at 0.0.0.0,
which takes any name; and it must not come from another site's page.
"""

import base64
import hashlib
import ipaddress
import re
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.requests import ClientDisconnect

from fairseq_clusterformer.errors import UserError, bad_option

from .passages import Passages
from .read import Reader
from .sections import Section
from .sources import Source, read_source

PAGE = Path(__file__).parent / "page.html"
QUESTION = 100_000  # bytes of a request that asks
AROUND = 250  # characters of a passage on either side of an answer
MOST_CHARACTERS = 50_000_000  # of all documents


class TooLarge(UserError):
    """More bytes than the server takes."""


class Desk:
    """Documents, and a reader of them, which one thread at a time uses: `top` answers are shown,
    and `most` tokens of a document read at once (None: as the reader has it). The `options` are
    ``windows``, a number, and ``least`` of `Reader.ask`."""

    def __init__(
        self, reader: Reader, *, top: int = 3, most: int | None = None, **options: float
    ) -> None:
        self.reader, self._top, self._most = reader, top, most
        self._options = {"windows": reader.windows} | options
        self._documents: dict[str, tuple[Source, list[Section]]] = {}  # by name
        self._passages: Passages | None = None  # of all documents, once somebody asks
        self._lock = threading.Lock()

    def documents(self) -> list[dict[str, Any]]:
        """The name of each document, and its paragraphs."""
        sources = [source for source, _ in [*self._documents.values()]]
        return [{"name": each.name, "paragraphs": len(each.paragraphs)} for each in sources]

    def add(self, source: Source) -> None:
        """Take a document, or another of its name. Raises UserError: there are too many."""
        with self._lock:
            others = (own for name, (own, _) in self._documents.items() if name != source.name)
            size = sum(sum(map(len, each.paragraphs)) for each in (source, *others))
            if size > MOST_CHARACTERS:
                allowed = f"{MOST_CHARACTERS:,} in all documents; remove one"
                problem = f"there would be {size:,} characters"
                raise bad_option("document", source.name, allowed, problem)
            sections = self.reader.sections(source, self._most)
            self.reader.passages(sections)  # encoded now, not when somebody asks
            self._documents[source.name], self._passages = (source, sections), None

    def remove(self, name: str) -> None:
        """Put a document away. Raises UserError: there is none of this name."""
        with self._lock:
            if name not in self._documents:
                raise bad_option("document", name, ", ".join(self._documents) or "none is here")
            del self._documents[name]
            self._passages = None

    def ask(self, question: str) -> dict[str, Any]:
        """Answer a question: ``verdict`` and ``note`` of its `Ranking`; ``answers``, of which
        ``found`` says whether each is more than a guess; ``read`` windows ``of`` all. Raises
        UserError: there is no document, or the question cannot be asked."""
        with self._lock:
            if not self._documents:
                raise bad_option("document", "none", "one or more: drop a file on the page first")
            if self._passages is None:
                parts = [part for _, own in self._documents.values() for part in own]
                self._passages = self.reader.passages(parts)
            number = len(self._passages)
            ranking = self.reader.ask(question, self._passages, self._top, **self._options)
        answers, names = [], ("text", "probability", "found", "file", "place")
        for found in ranking:
            before, _, behind = found.around(AROUND, whole=True)
            shown = {name: getattr(found, name) for name in names}
            answers.append(shown | {"before": before, "behind": behind})
        windows = min(number, self._options["windows"] or number)
        said = {"verdict": ranking.verdict, "note": ranking.note, "answers": answers}
        return said | {"read": windows, "of": number}


def serve(desk: Desk, host: str, port: int, limit: int, **options: Any) -> int:
    """Serve the page at an address of this computer until Ctrl-C; files have up to `limit` bytes,
    and `options` are those of `read_source`. Returns the exit status, 0. Raises UserError: an
    address or a port that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        allowed = "a free port, and an address of this computer (--host)"
        problem = f"cannot listen at {host} ({getattr(error, 'strerror', None) or error})"
        raise bad_option("--port", port, allowed, problem) from None
    address = listener.getsockname()[0]
    if not ipaddress.ip_address(address).is_loopback:
        warning = f"everybody who can reach {host}:{port} can read the documents and add others"
        print(f"clusterformer answer: {warning}", file=sys.stderr)
    shown = f"[{host}]" if ":" in host else host
    print(f"Ask at http://{shown}:{port} (Ctrl-C ends it)", flush=True)
    app = build_app(desk, host, limit, address, **options)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
    return 0


def build_app(desk: Desk, host: str, limit: int, address: str = "", **options: Any) -> FastAPI:
    """The page, its documents and its questions. The server listens at `host`, whose name stands
    for `address` (empty: it is one itself); `limit` and `options` are as of :func:`serve`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    page = PAGE.read_text(encoding="utf-8")
    hosts = {host.lower(), address or host}
    everywhere = hosts & {"0.0.0.0", "::"}  # by any name: nobody knows which is the right one
    if ipaddress.ip_address(address or host).is_loopback:
        hosts |= {"127.0.0.1", "localhost", "::1"}
    hashes = []  # the page may run its own script, use its own style, and ask this server
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        hashed = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        hashes.append(f"{tag}-src 'sha256-{hashed}'")
    headers = {
        "Content-Security-Policy": f"default-src 'none'; {'; '.join(hashes)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable) -> Response:
        own = request.headers.get("host", "").lower()
        if not everywhere and re.sub(r":\d+$", "", own).strip("[]") not in hosts:
            return _refusal(403, "this server answers to its own address alone")
        origin = request.headers.get("origin", f"http://{own}").lower()
        site = request.headers.get("sec-fetch-site", "none")
        is_own = origin in (f"http://{own}", f"https://{own}")
        if site not in ("none", "same-origin") or not is_own:
            return _refusal(403, "this server does not answer other sites")
        response = await call_next(request)
        response.headers.update(headers)
        return response

    @app.exception_handler(UserError)
    async def refuse(_: Request, error: UserError) -> JSONResponse:
        return _refusal(413 if isinstance(error, TooLarge) else 422, str(error))

    @app.exception_handler(ClientDisconnect)
    async def forget(_: Request, error: ClientDisconnect) -> JSONResponse:
        return _refusal(400, "the client has gone")

    @app.get("/")
    def show_page() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/documents")
    def list_documents() -> dict:
        model = desk.reader.loaded.path.name
        return {"model": model, "limit": limit, "documents": desk.documents()}

    @app.put("/documents")
    async def add_document(name: str, request: Request) -> dict:
        data = await _body(request, limit, name)
        await run_in_threadpool(lambda: desk.add(read_source(Path(name), data=data, **options)))
        return {"documents": desk.documents()}

    @app.delete("/documents")
    def remove_document(name: str) -> dict:
        desk.remove(name)
        return {"documents": desk.documents()}

    @app.post("/ask")
    async def ask(request: Request) -> dict:
        data = await _body(request, QUESTION, "the question")
        try:
            question = data.decode()
        except UnicodeDecodeError:
            raise bad_option("question", ascii(data[:20]), "UTF-8 text") from None
        return await run_in_threadpool(desk.ask, question)

    return app


def _refusal(status: int, line: str) -> JSONResponse:
    """Why something cannot be done; options lose the dashes that they have in a command line."""
    return JSONResponse({"error": line.removeprefix("--")}, status)


async def _body(request: Request, limit: int, what: str) -> bytes:
    """All that a request holds; no more than the limit is read."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > limit:
            raise TooLarge(f"{what} is too large; allowed: {limit:,} bytes or fewer")
    return bytes(found)
