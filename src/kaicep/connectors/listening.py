"""An HTTP server with a thread for each connection, and no more of them than there is room for."""

from __future__ import annotations

import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["BoundedServer"]


class BoundedServer(ThreadingHTTPServer):
    """Threads, but not more than a number of them; who comes then is told to come again."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], connections: int
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._room = threading.Semaphore(connections)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Gives a connection a thread, or tells it to come again."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        busy = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
        request.sendall(busy + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection, and makes room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who hangs up in the middle is no error of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
