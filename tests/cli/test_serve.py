"""rankgrad serve: what is wrong before it starts. tests/serving has the service itself."""

import socket


def test_what_is_wrong_is_said(refused, trained, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("serve", trained, "--port", port)
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in said
    assert "two rankers are called 'first'" in refused("serve", trained, trained)
    assert "must be of letters" in refused("serve", f"a/b={trained}")
    assert "there is no" in refused("serve", tmp_path / "none")
