"""A page to drop documents on and to ask in: ``clusterformer answer --serve``.

The page is one file that asks no other host for anything. The server is FastAPI on uvicorn, which
the extra ``serve`` installs.
"""

import socket
import sys

from fairseq_clusterformer.errors import UserError, bad_option

from .desk import Desk

__all__ = ["Desk", "check_installed", "serve"]


def check_installed() -> None:
    """Refuse to serve without FastAPI and uvicorn: UserError says how to install them."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        allowed = 'pip install "fairseq_clusterformer[serve]", or no --serve'
        problem = f"--serve needs {error.name}, which is not installed"
        raise UserError(f"{problem}; allowed: {allowed}") from None


def serve(desk: Desk, host: str, port: int, limit: int) -> int:
    """Serve the page at an address of this computer until Ctrl-C; files have up to `limit` bytes.
    Returns the exit status, 0. Raises UserError for an address or a port that cannot be had."""
    import uvicorn

    from .app import build_app, is_loopback

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
