"""The banner names only commands that exist in the installation."""

import pytest

from server import banner

URL = "http://127.0.0.1:2333"


@pytest.mark.parametrize(
    ("is_checkout", "command"), [(True, "`make demo`"), (False, f"`monodon login {URL}`")]
)
def test_the_first_step(tmp_path, monkeypatch, is_checkout, command):
    if is_checkout:
        (tmp_path / "Makefile").touch()
    monkeypatch.setattr(banner, "PROJECT", tmp_path)
    lines = banner.lines(URL, 4.04)
    assert f"  Monodon is ready at {URL}   (started in 4.0 s)" in lines
    (step,) = [line for line in lines if line.startswith("    try ")]
    assert command in step
