"""The service as a process."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest


@pytest.fixture(scope="module")
def run(fitted, tmp_path_factory):
    place = tmp_path_factory.mktemp("served") / "first"
    fitted["in_list"].save(place)
    return place


def command(*arguments):
    return [sys.executable, "-m", "rankgrad", "serve", *map(str, arguments)]


def test_it_answers_what_it_has_taken_and_stops(run, lists):
    """One client leaves, one is late, and one never sends the rest of its request."""
    process = subprocess.Popen(
        command(run, f"again={run}", "--port", 0, "--grace", 2),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = process.stdout.readline()
        assert said.startswith("serving first, again at http://127.0.0.1:")
        address = said.split()[-1]
        with urllib.request.urlopen(f"{address}/ready") as answer:
            assert answer.status == 200
        content = json.dumps({"lists": [{"items": lists.features[:9].tolist()}]}).encode()
        half_sent(address, content).close()
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            assert b'status="499"} 1.0' in answer.read()
        with half_sent(address, content) as late, half_sent(address, content) as never:
            threading.Timer(0.5, late.sendall, [content[20:]]).start()
            process.send_signal(signal.SIGTERM)
            first, second = received(late), received(never)
        assert first.startswith(b"HTTP/1.1 200") and b'"order"' in first
        assert second.startswith(b"HTTP/1.1 503") and b"is stopping" in second
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def half_sent(address, content):
    """A connection on which the first bytes of a request were sent."""
    port = int(address.rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST /rank HTTP/1.1\r\nhost: a\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content[:20])
    time.sleep(0.3)
    return connection


def received(connection):
    """All that a server sends until it closes the connection."""
    answer = b""
    while part := connection.recv(65536):
        answer += part
    return answer
