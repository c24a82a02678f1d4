"""What the page's server answers, and whom.

There is no password. Others are kept out by three rules: the server listens at this computer
alone unless another address is asked for; a request must name that address as its host, so that
no other name can be led to it (DNS rebinding), except at 0.0.0.0, which takes any name; and it
must not come from another site's page.
"""

import base64
import hashlib
import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, Response

from fairseq_clusterformer.errors import UserError, bad_option

from .desk import Desk

PAGE = Path(__file__).parent / "page.html"
QUESTION = 100_000  # bytes of a request that asks


class TooLarge(UserError):
    """More bytes than the server takes."""


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
    address = address or host
    everywhere = address in ("0.0.0.0", "::")  # by any name: nobody knows which is the right one
    hosts = {host.lower(), address}
    if is_loopback(address):
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

    @app.get("/")
    def show_page() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/documents")
    def list_documents() -> dict:
        model = desk.reader.loaded
        return {"model": model.path.name, "limit": limit, "documents": desk.documents()}

    @app.put("/documents")
    async def add_document(name: str, request: Request, encoding: str = "") -> dict:
        data = await _body(request, limit, name)
        await run_in_threadpool(desk.upload, name, data, encoding or None)
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
