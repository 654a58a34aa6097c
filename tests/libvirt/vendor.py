"""A vendor's https server, which behaves as the first part of a path says; and a proxy that leads to it.

vendor.py DIR CERT KEY: prints the ports of the server and of the proxy, and serves the files of DIR until its input ends.
Requests are listed in DIR/requests: the path and the Range."""

import contextlib
import http.server
import os
import socket
import ssl
import sys
import threading
import time

DIR, CERT, KEY = sys.argv[1:]
PIECE = 256 << 10


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def nothing(self, status, **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        _, manner, *rest = self.path.split("/")
        name = "/".join(rest)
        asked = self.headers.get("Range")
        with open(os.path.join(DIR, "requests"), "a") as log:
            log.write(f"{self.path} {asked}\n")
        if manner == "away":
            return self.nothing(302, Location=f"/plain/{name}")
        if manner == "http":
            return self.nothing(302, Location=f"http://localhost/{name}")
        if manner == "loop":
            return self.nothing(302, Location=self.path)
        if manner == "refused":
            return self.nothing(403)
        path = os.path.join(DIR, name)
        if name == "" or name.endswith("/"):
            body = "".join(f'<a href="{entry}">{entry}</a>\n' for entry in os.listdir(path)).encode()
        elif os.path.isfile(path):
            with open(path, "rb") as file:
                body = file.read()
        else:
            return self.nothing(404)
        total, start = len(body), 0
        is_list = "SUMS" in name or "CHECKSUM" in name or body.startswith(b"<a")
        if asked and manner not in ("norange", "broken-norange") and not is_list:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            if start >= total:
                return self.nothing(416, Content_Range=f"bytes */{total}")
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        if manner != "unknown":
            self.send_header("Content-Length", str(total - start))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        ends = total
        if not is_list:
            if manner in ("broken", "broken-norange") or manner == "once" and not asked:
                ends = min(total, start + PIECE)
            if manner == "dead":
                ends = start
        for at in range(start, ends, 64 << 10):
            if manner == "slow" and not is_list:
                time.sleep(0.2)
            self.wfile.write(body[at : min(at + (64 << 10), ends)])
        if ends < total:
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()


def proxy(listener, port):
    """Leads every CONNECT to the server."""
    while True:
        client, _ = listener.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        with open(os.path.join(DIR, "requests"), "a") as log:
            log.write("proxy " + head.split(b"\r\n")[0].decode() + "\n")
        server = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"HTTP/1.1 200 Connection established\r\nContent-Length: 7\r\n\r\n")

        def copy(a, b):
            while part := a.recv(65536):
                b.sendall(part)
            # The other direction may have ended both.
            with contextlib.suppress(OSError):
                b.shutdown(socket.SHUT_WR)

        for a, b in ((client, server), (server, client)):
            threading.Thread(target=copy, args=(a, b), daemon=True).start()


class Closing(http.server.ThreadingHTTPServer):
    def shutdown_request(self, request):
        # Without this message of TLS, the end of a file of unknown length is taken for a loss.
        with contextlib.suppress(OSError, ValueError):
            request.settimeout(5)
            request.unwrap()
        super().shutdown_request(request)


server = Closing(("127.0.0.1", 0), Server)
server.daemon_threads = True
server.handle_error = lambda *_: None
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERT, KEY)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=server.serve_forever, daemon=True).start()
threading.Thread(target=proxy, args=(listener, server.server_port), daemon=True).start()
print(server.server_port, listener.getsockname()[1], flush=True)
sys.stdin.read()
