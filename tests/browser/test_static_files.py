"""The files that pages of the admin load, many at once, over HTTP."""

import gzip
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import pytest

from config.settings import MONODON_ANSWER_STREAMS
from tests.live import LiveServer
from tests.security.wire import Answer, send_whole

pytestmark = pytest.mark.xdist_group("browser")  # the server starts once


def get(server: LiveServer, path: str, *lines: str) -> Answer:
    return send_whole(server, "GET", path, b"", *lines, key=None)


def test_static_files_are_sent_whatever_their_number(server: LiveServer):
    """A page loads more files at once than one principal may have large answers."""
    page = get(server, "/admin/login/").content.decode()
    paths = sorted(set(re.findall(r"/static/[\w./-]+\.(?:js|css)", page)))
    assert len(paths) > MONODON_ANSWER_STREAMS // 2
    with ThreadPoolExecutor(4 * MONODON_ANSWER_STREAMS) as pool:
        answers = list(pool.map(lambda path: get(server, path), 20 * paths))
    assert {answer.status for answer in answers} == {200}
    contents = {path: answer.content for path, answer in zip(20 * paths, answers, strict=True)}
    for path, answer in zip(20 * paths, answers, strict=True):
        assert answer.content == contents[path]


def test_static_files_are_cached_compressed_and_sent_in_parts(server: LiveServer):
    page = get(server, "/admin/login/").content.decode()
    path = re.findall(r"/static/[\w./-]+\.js", page)[0]
    whole = get(server, path)
    assert len(whole.content) == int(whole.headers["content-length"]) > 100
    assert "max-age" in whole.headers["cache-control"]
    range_ = get(server, path, "Range: bytes=1-5")
    assert (range_.status, range_.content) == (206, whole.content[1:6])
    compressed = get(server, path, "Accept-Encoding: gzip")
    assert compressed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(compressed.content) == whole.content
    with urlopen(Request(server.url + path, method="HEAD")) as head:
        assert head.headers["content-length"] == whole.headers["content-length"]
    same = get(server, path, f"If-None-Match: {whole.headers['etag']}")
    assert (same.status, same.content) == (304, b"")
    assert get(server, f"{path}x").status == 404
