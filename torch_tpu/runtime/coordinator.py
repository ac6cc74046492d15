"""JAX's coordination service in a process of its own. Run as a script by rank 0; imports nothing of this package.

A rank whose coordination service disappears is ended by JAX, without a message. So the service does not live in rank 0,
which may fail or end first, but here; and this process ends when the last rank has gone, which its open connection
tells however it went, or when rank 0, whose pipe stdin is, has gone before any rank connected.

Arguments: the host to listen on, the number of ranks, seconds of a heartbeat's timeout. Prints two ports: the
service's, and the one that each rank connects to and keeps open. A rank says its number there, and is told the numbers
of those that have gone.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
from typing import Any


def serve(host: str, size: int, heartbeat: int) -> tuple[Any, int]:
    """The service, on a free port."""
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    for attempt in range(8):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
            s.bind((host.strip("[]"), 0))
            port = s.getsockname()[1]
        try:
            return _jax.get_distributed_runtime_service(
                f"{host}:{port}", size, heartbeat_timeout=heartbeat, shutdown_timeout=1, recoverable=True
            ), port
        except Exception:  # somebody took the port meanwhile
            if attempt == 7:
                raise
    raise AssertionError


def wait_for_the_last(listener: socket.socket, parent: Any) -> None:
    """Return when all that connected have gone; tell those that are left of each one that goes.

    Args:
      parent: a pipe that ends with the process that started this one.
    """
    numbers: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(parent, selectors.EVENT_READ)
        begun = False
        while numbers or not begun:
            for key, _ in selector.select():
                if key.fileobj is parent:
                    selector.unregister(parent)
                    begun = True  # or it never will
                    continue
                if key.fileobj is listener:
                    begun = True
                    made = listener.accept()[0]
                    numbers[made] = b""
                    selector.register(made, selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                said = _said(key.fileobj)
                if said:
                    numbers[key.fileobj] += said
                else:
                    selector.unregister(key.fileobj)
                    gone = numbers.pop(key.fileobj)
                    key.fileobj.close()
                    for other in numbers:
                        _tell(other, gone)


def _said(s: socket.socket) -> bytes:
    try:
        return s.recv(64)
    except OSError:  # it was ended, not closed
        return b""


def _tell(s: socket.socket, number: bytes) -> None:
    with contextlib.suppress(OSError):
        s.sendall(number)


def main() -> None:
    host, size, heartbeat = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host.strip("[]"), 0))
        listener.listen(size)
        service, port = serve(host, size, heartbeat)
        print(port, listener.getsockname()[1], flush=True)
        wait_for_the_last(listener, sys.stdin.buffer)
        service.shutdown()


if __name__ == "__main__":
    main()
