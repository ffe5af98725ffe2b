"""Answer over HTTP with a bundle: `python -m edge_albert.serve BUNDLE`. The service is in edge_albert/serving."""

from __future__ import annotations

import argparse
import ipaddress
import json
import signal
import socket
import sys

from edge_albert.cli import leave_without, run_command
from edge_albert.errors import EdgeAlbertError
from edge_albert.runtime.load import Runner, load

try:
    import uvicorn

    from edge_albert.serving.app import Settings, make_app
    from edge_albert.serving.questions import Limits
except ModuleNotFoundError as error:
    leave_without(error, __name__)

_EPILOG = """\
example:
  python -m edge_albert.serve bundle --port 8000
  curl -s http://127.0.0.1:8000/answer -d '{"text": "Congratulations! You have won a holiday. Call now"}'
  curl -s http://127.0.0.1:8000/answer -d '{"texts": ["see you at seven", "call now"], "top": 2}'
  curl -s http://127.0.0.1:8000/health
  curl -s http://127.0.0.1:8000/metrics

Ctrl-C or SIGTERM: no new request is taken, what is queued is answered, then the service ends.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.serve",
        description="Answer over HTTP with an exported bundle: POST /answer, GET /health, GET /metrics.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual, limits = Settings(), Limits()
    out.add_argument("bundle", help="folder written by python -m edge_albert.export")
    out.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)")
    out.add_argument("--port", type=int, default=8000, help="default 8000; 0 takes a free one")
    out.add_argument("--queue", type=int, default=usual.queue, help=f"requests that may wait (default {usual.queue})")
    out.add_argument(
        "--max-texts", type=int, default=limits.max_texts, help=f"texts of a request (default {limits.max_texts})"
    )
    out.add_argument(
        "--max-chars", type=int, default=limits.max_chars, help=f"characters of a text (default {limits.max_chars})"
    )
    out.add_argument(
        "--max-body", type=int, default=usual.max_body, help=f"bytes of a request (default {usual.max_body})"
    )
    out.add_argument("--engine", choices=("onnx", "tflite"), help="default: the first that is installed")
    out.add_argument("--threads", type=int, help="of one inference; default: one per processor, four at most")
    out.add_argument(
        "--memory-mb", type=float, metavar="MB", help="what the whole process may take: plans engine and longest text"
    )
    out.add_argument(
        "--cache", metavar="DIR", help="keep weights packed for this processor in DIR (smaller, faster start)"
    )
    out.add_argument("--json", action="store_true", help="say where it listens as one JSON object")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status, after the service was told to end."""
    options = parser().parse_args(argv)
    settings = _settings(options)
    model = load(
        options.bundle,
        engine=options.engine,
        threads=options.threads,
        cache_dir=options.cache,
        memory_mb=options.memory_mb,
    )
    with model.session, _listen(options.host, options.port) as listener:
        server = uvicorn.Server(
            uvicorn.Config(make_app(model, settings), log_level="warning", access_log=False, server_header=False)
        )

        def stop(*_: object) -> None:
            server.should_exit = True

        # uvicorn handles SIGTERM while it runs and raises it again afterwards: a stop that was asked for is status 0
        signal.signal(signal.SIGTERM, stop)
        _announce(model, listener, options)
        server.run(sockets=[listener])
    return 0


def _settings(options: argparse.Namespace) -> Settings:
    for name, least in (("queue", 0), ("max_texts", 1), ("max_chars", 1), ("max_body", 1)):
        if getattr(options, name) < least:
            option = name.replace("_", "-")
            raise EdgeAlbertError(f"--{option} {getattr(options, name)}: at least {least} is needed")
    return Settings(options.queue, options.max_body, Limits(options.max_texts, options.max_chars))


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise EdgeAlbertError(f"--port {port}: a number from 0 to 65535 is needed")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise EdgeAlbertError(
            f"cannot listen on {host} port {port} ({reason}): choose another --port or --host"
        ) from None


def _announce(model: Runner, listener: socket.socket, options: argparse.Namespace) -> None:
    address, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        print(
            f"edge_albert: warning: listening on {address}: everyone who reaches this machine may ask; there is no "
            "password and no encryption",
            file=sys.stderr,
        )
    url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    task, engine = model.session.bundle.task.name, model.session.engine.version
    if options.json:
        print(json.dumps({"url": url, "task": task, "engine": engine}), flush=True)
    else:
        print(f"{task} with {engine} on {url} (Ctrl-C ends it)", flush=True)


if __name__ == "__main__":
    run_command(main)
