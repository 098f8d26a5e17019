"""Full-text indexes whose tokenizer is a language model outside of the directory of models."""

import json
from pathlib import Path

import lance as pylance
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

from catalog.services.lance import datasets
from tests.security.watching import untouched

pytestmark = pytest.mark.django_db
QUERY = {"k": 5, "vector": {}, "full_text_query": {"string_query": {"query": "hello"}}}


def add_model(directory: Path) -> list[Path]:
    """Write the files of a language model."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"main": "dict.txt"}))
    (directory / "dict.txt").write_text("hello 100 n\n")
    return list(directory.iterdir())


@pytest.fixture
def models(tmp_path, monkeypatch) -> Path:
    add_model(tmp_path / "models" / "jieba" / "default")
    monkeypatch.setenv("LANCE_LANGUAGE_MODEL_HOME", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def register(lance, warehouse):
    """Function that registers a table which its owner has indexed with pylance."""

    def write(tokenizer: str) -> Path:
        location = warehouse / "mine" / "t"
        dataset = pylance.write_dataset(pa.table({"s": ["hello world", "a b"]}), str(location))
        dataset.create_scalar_index("s", "INVERTED", base_tokenizer=tokenizer)
        lance.post("/v1/namespace/mine/create", {})
        lance.post("/v1/table/mine$t/register", {"location": "mine/t"})
        datasets.clear_caches()
        return location

    return write


OPERATIONS = [
    ("query", QUERY),
    ("index/s_idx/stats", {}),
    ("count_rows", {}),
    ("insert", None),
]


def send(lance, operation, body):
    rows = pa.BufferOutputStream()
    with pa.ipc.new_stream(rows, pa.schema({"s": pa.string()})) as writer:
        writer.write_table(pa.table({"s": ["c"]}))
    raw = rows.getvalue().to_pybytes() if body is None else None
    return lance.call("POST", f"/v1/table/mine$t/{operation}", body, raw=raw)


def require_refused(
    lance, canaries, status: int = 400, text: bytes = b"does not belong to table"
) -> None:
    with untouched(canaries):
        for operation, body in OPERATIONS:
            answer = send(lance, operation, body)
            assert answer.status_code == status, (operation, answer.content)
            assert text in answer.content, operation


def test_a_model_of_another_directory_is_not_read(lance, models, register, tmp_path):
    canaries = add_model(tmp_path / "elsewhere")
    register("jieba/../../elsewhere")
    require_refused(lance, canaries)


def write_older_index(directory: Path, parameters: str) -> None:
    rows = pa.table({"token": ["hello"]}).replace_schema_metadata({"tokenizer": parameters})
    with LanceFileWriter(str(directory / "tokens.lance"), rows.schema) as writer:
        writer.write_batch(rows)


@pytest.mark.parametrize("unknown", ["1" * 5000, "[" * 5000 + "]" * 5000])
def test_parameters_that_python_cannot_read_are_refused(lance, models, register, tmp_path, unknown):
    """Lance ignores the value of a field that it does not know."""
    canaries = add_model(tmp_path / "elsewhere")
    (metadata,) = register("simple").glob("_indices/*/metadata.lance")
    tokenizer = "jieba/../../elsewhere"
    write_older_index(metadata.parent, f'{{"base_tokenizer": "{tokenizer}", "unknown": {unknown}}}')
    require_refused(lance, canaries, 409, b"cannot be read")


def test_an_index_of_the_older_format_is_checked_too(lance, models, register, tmp_path):
    """Lance reads the tokenizer from another file if the first one is missing."""
    canaries = add_model(tmp_path / "elsewhere")
    (metadata,) = register("simple").glob("_indices/*/metadata.lance")
    metadata.unlink()
    write_older_index(metadata.parent, json.dumps({"base_tokenizer": "jieba/../../elsewhere"}))
    require_refused(lance, canaries)


def test_an_index_that_is_replaced_after_the_check_is_checked_again(
    lance, models, register, tmp_path
):
    canaries = add_model(tmp_path / "elsewhere")
    (metadata,) = register("simple").glob("_indices/*/metadata.lance")
    assert send(lance, "count_rows", {}).status_code == 200
    other = pylance.write_dataset(pa.table({"s": ["a"]}), str(tmp_path / "other"))
    other.create_scalar_index("s", "INVERTED", base_tokenizer="jieba/../../elsewhere")
    (replacement,) = (tmp_path / "other").glob("_indices/*/metadata.lance")
    replacement.rename(metadata)
    require_refused(lance, canaries)


def test_the_default_directory_of_models_is_checked_too(
    lance, models, register, tmp_path, monkeypatch
):
    add_model(tmp_path / "elsewhere")
    register("jieba/../../elsewhere")
    monkeypatch.delenv("LANCE_LANGUAGE_MODEL_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    data = tmp_path / "data" / "lance"
    data.mkdir(parents=True)
    models.rename(data / "language_models")
    (tmp_path / "elsewhere").rename(data / "elsewhere")
    with untouched((data / "elsewhere").iterdir()):
        assert b"does not belong to table" in send(lance, "query", QUERY).content


def test_a_model_of_the_directory_is_used(lance, models, register):
    register("jieba/default")
    for operation, body in OPERATIONS:
        assert send(lance, operation, body).status_code == 200, operation


def test_other_tokenizers_are_used(lance, models, register):
    register("icu/split")
    assert send(lance, "query", QUERY).status_code == 200


def test_a_damaged_index_is_the_caller_s_error(lance, models, register):
    location = register("simple")
    (metadata,) = location.glob("_indices/*/metadata.lance")
    for content in (b"", b"no Lance file" * 50):
        metadata.write_bytes(content)
        datasets.clear_caches()
        answer = send(lance, "query", QUERY)
        assert 400 <= answer.status_code < 500, answer.content


def test_a_machine_without_models_reads_no_index(lance, models, register, monkeypatch, tmp_path):
    register("jieba/default")
    monkeypatch.setenv("LANCE_LANGUAGE_MODEL_HOME", str(tmp_path / "nothing"))
    assert send(lance, "count_rows", {}).status_code == 200
    assert send(lance, "query", QUERY).status_code == 400
