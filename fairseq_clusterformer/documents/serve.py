"""A page to drop documents on and to ask in: ``clusterformer answer --serve``.

The page is one file that asks no other host for anything. The server is FastAPI on uvicorn, which
the extra ``serve`` installs.

There is no password. Others are kept out by three rules: the server listens at this computer
alone unless another address is asked for; a request must name that address as its host, so that
no other name can be led to it (DNS rebinding), except at 0.0.0.0, which takes any name; and it
must not come from another site's page.
"""

import base64
import hashlib
import ipaddress
import re
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.requests import ClientDisconnect

from fairseq_clusterformer.errors import UserError, bad_option

from .found import FoundAnswer
from .passages import Passages
from .read import Reader
from .sections import Section
from .sources import Source, uploaded_source

PAGE = Path(__file__).parent / "page.html"
QUESTION = 100_000  # bytes of a request that asks
AROUND = 250  # characters of a passage on either side of an answer
MOST_CHARACTERS = 50_000_000  # of all documents


class TooLarge(UserError):
    """More bytes than the server takes."""


@dataclass(eq=False)
class Desk:
    """Documents, and a reader of them. One thread at a time uses the reader."""

    reader: Reader
    _: KW_ONLY
    encoding: str | None = None  # as of `read_source`, where an upload says nothing else
    main_text: bool = False  # as of `read_source`
    top: int = 3  # answers to show
    most: int | None = None  # tokens of a document that are read at once; None: the reader's
    least: float = 0.0  # as of `Reader.ask`
    windows: int | None = None  # as of `Reader.ask`; None: the reader's

    def __post_init__(self) -> None:
        self.windows = self.reader.windows if self.windows is None else self.windows
        self._documents: dict[str, tuple[Source, list[Section]]] = {}  # by name
        self._sizes: dict[str, int] = {}  # of their texts, in characters
        self._passages: Passages | None = None  # of all documents, once somebody asks
        self._lock = threading.Lock()

    def documents(self) -> list[dict[str, Any]]:
        """The name of each document, and its paragraphs."""
        sources = [source for source, _ in [*self._documents.values()]]
        return [{"name": each.name, "paragraphs": len(each.paragraphs)} for each in sources]

    def add(self, source: Source) -> None:
        """Take a document, in the place of one of the same name. Raises UserError: if there are
        too many already."""
        with self._lock:
            sizes = self._sizes | {source.name: sum(map(len, source.paragraphs))}
            if (size := sum(sizes.values())) > MOST_CHARACTERS:
                allowed = f"{MOST_CHARACTERS:,} in all documents; remove one"
                problem = f"there would be {size:,} characters"
                raise bad_option("document", source.name, allowed, problem)
            sections = self.reader.sections(source, self.most)
            self.reader.passages(sections)  # encoded now, not when somebody asks
            self._documents[source.name], self._sizes = (source, sections), sizes
            self._passages = None

    def remove(self, name: str) -> None:
        """Put a document away. Raises UserError: if there is none of this name."""
        with self._lock:
            if name not in self._documents:
                raise bad_option("document", name, ", ".join(self._documents) or "none is here")
            del self._documents[name], self._sizes[name]
            self._passages = None

    def ask(self, question: str) -> dict[str, Any]:
        """Answer a question: ``verdict``, a sentence if there is no answer, else ""; ``note``, as
        of `Ranking`; ``answers``, see :meth:`_shown`; ``read`` windows ``of`` all. Raises
        UserError if there is no document, or the question cannot be asked."""
        with self._lock:
            if not self._documents:
                raise bad_option("document", "none", "one or more: drop a file on the page first")
            if self._passages is None:
                parts = [part for _, own in self._documents.values() for part in own]
                self._passages = self.reader.passages(parts)
            passages, options = self._passages, {"least": self.least, "windows": self.windows}
            ranking = self.reader.ask(question, passages, self.top, **options)
        return {
            "verdict": ranking.verdict,
            "note": ranking.note,
            "answers": [*map(self._shown, ranking)],
            "read": min(len(passages), self.windows or len(passages)),
            "of": len(passages),
        }

    def _shown(self, found: FoundAnswer) -> dict[str, Any]:
        """An answer as the page shows it: ``found`` says whether it is more than a guess."""
        before, _, behind = found.around(AROUND, whole=True)
        shown = {name: getattr(found, name) for name in ("text", "probability", "found", "file")}
        return shown | {"place": found.place, "before": before, "behind": behind}


def serve(desk: Desk, host: str, port: int, limit: int) -> int:
    """Serve the page at an address of this computer until Ctrl-C; files have up to `limit` bytes.
    Returns the exit status, 0. Raises UserError for an address or a port that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        allowed = "a free port, and an address of this computer (--host)"
        problem = f"cannot listen at {host} ({getattr(error, 'strerror', None) or error})"
        raise bad_option("--port", port, allowed, problem) from None
    address = listener.getsockname()[0]
    if not is_loopback(address):
        warning = f"everybody who can reach {host}:{port} can read the documents and add others"
        print(f"clusterformer answer: {warning}", file=sys.stderr)
    shown = f"[{host}]" if ":" in host else host
    print(f"Ask at http://{shown}:{port} (Ctrl-C ends it)", flush=True)
    config = uvicorn.Config(build_app(desk, host, limit, address), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def build_app(desk: Desk, host: str, limit: int, address: str = "") -> FastAPI:
    """The page, its documents and its questions. The server listens at `host`, whose name stands
    for `address` (empty: it is one itself); an uploaded file has up to `limit` bytes."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    page = PAGE.read_text(encoding="utf-8")
    hosts = {host.lower(), address or host}
    everywhere = hosts & {"0.0.0.0", "::"}  # by any name: nobody knows which is the right one
    if is_loopback(address or host):
        hosts |= {"127.0.0.1", "localhost", "::1"}
    headers = {
        "Content-Security-Policy": _policy(page),
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
    async def add_document(name: str, request: Request, encoding: str = "") -> dict:
        data = await _body(request, limit, name)

        def read() -> None:
            own = encoding or desk.encoding
            desk.add(uploaded_source(data, name, own, main_text=desk.main_text))

        await run_in_threadpool(read)
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


def _policy(page: str) -> str:
    """What the page may do: run its own script, use its own style, and ask this server."""

    def hashed(tag: str) -> str:
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src 'sha256-{hashed('script')}'; "
        f"style-src 'sha256-{hashed('style')}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
