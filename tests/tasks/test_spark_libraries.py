"""The libraries that Spark needs for tables in object stores."""

from typing import Any

import pytest
from py4j.java_gateway import JavaPackage

from tasks.jobs.iceberg.errors import Failed
from tasks.jobs.iceberg.session import require_libraries


class Packages(JavaPackage):
    """Java without a single class: each name is that of a package."""

    def __init__(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return self


class Classes:
    """Java with every class."""

    def __getattr__(self, name: str) -> Any:
        return self


@pytest.mark.parametrize(
    ("scheme", "artifact"),
    [("s3", "iceberg-aws-bundle"), ("gs", "iceberg-gcp-bundle"), ("abfss", "iceberg-azure-bundle")],
)
def test_a_missing_library_is_named(scheme: str, artifact: str):
    with pytest.raises(Failed, match=f"org.apache.iceberg:{artifact}") as refused:
        require_libraries(Packages(), scheme)
    assert refused.value.kind == "refused"
    require_libraries(Classes(), scheme)


def test_local_files_need_none():
    require_libraries(Packages(), "")
