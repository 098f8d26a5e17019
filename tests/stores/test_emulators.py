"""The server's own store reads and writes the emulators of Azure and Google Cloud."""

import pytest

from catalog.storage import stores


@pytest.fixture(params=["azurite", "fake_gcs"])
def root(request: pytest.FixtureRequest, make_profile) -> str:
    """A root of a profile for the emulator."""
    store = request.getfixturevalue(request.param)
    if request.param == "azurite":
        root = f"abfss://{store.new_container()}@{store.account}.dfs.core.windows.net/tables"
    else:
        root = f"gs://{store.new_bucket()}/tables"
    make_profile(roots=[root], **store.profile_fields())
    return root


def test_server_writes_reads_lists_and_removes(root):
    store = stores.store_of(root)
    path = f"{root}/t/data/1.lance"
    store.write_new(path, b"0123456789")
    with pytest.raises(FileExistsError):
        store.write_new(path, b"other")
    content, status = store.read(path, 100)
    assert (content, status.size) == (b"0123456789", 10)
    assert store.read_range(path, 2, 3) == b"234"
    assert [file.name for file in store.list_tree(f"{root}/t")] == ["data/1.lance"]
    assert store.remove(path)
    assert store.size(path) is None
