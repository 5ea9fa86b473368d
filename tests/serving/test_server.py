"""The service as a process."""

import errno
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from rankgrad.serving import serve


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


def test_a_signal_right_after_the_first_line_stops_it(run):
    with subprocess.Popen(
        command(run, "--port", 0), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline().startswith("serving first at http://127.0.0.1:")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_a_port_that_cannot_be_used_leaves_the_process_as_it_was(served):
    before = sys.getswitchinterval(), signal.getsignal(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="choose another host or port") as caught:
            serve(served, port=port)
    assert caught.value.errno == errno.EADDRINUSE
    with pytest.raises(ValueError, match="port must be from 0 to 65535, found 70000"):
        serve(served, port=70000)
    assert (sys.getswitchinterval(), signal.getsignal(signal.SIGTERM)) == before


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
