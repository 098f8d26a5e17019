"""Errors of Lance: those caused by the caller are mapped, others are not."""

import pyarrow as pa
import pytest

from catalog import errors
from catalog.services.lance import errors as lance_errors

T = ("ws", "t")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("Invalid user input: Schema error: No field named zz., x.rs:1:2"), errors.ColumnNotFound),
        (KeyError("zz not found in schema"), errors.ColumnNotFound),
        (OSError("Append with different schema: `a` should have type int64"), errors.SchemaMismatch),
        (OSError("Retryable commit conflict for version 3"), errors.CommitConflict),
        (OSError("Incompatible transaction: This Append"), errors.CommitConflict),
        (ValueError("Ref conflict error: tag x already exists"), errors.TagAlreadyExists),
        (ValueError("Ref not found error: tag nope does not exist"), errors.TagNotFound),
        (RuntimeError("Lance index not found: name=nope, /a/b.rs:1:2"), errors.IndexNotFound),
        (ValueError("Version not found error: version main:99 does not exist"), errors.VersionNotFound),
        (pa.ArrowInvalid("External error: LanceError(Arrow): Divide by zero error"), errors.InvalidInput),
        (TypeError("Query column a must be a vector. Got int64."), errors.InvalidInput),
        (OSError("LanceError(IO): Generic LocalFileSystem error: os error 28"), None),
        (pa.ArrowInvalid("External error: Object at location data/x.lance not found"), None),
        (lance_errors.LancePanic("must be"), None),
        (lance_errors.LancePanic("range end index 9 out of range for slice of length 3"), errors.InvalidTableState),
        (OSError("LanceError(IO): file size is too small, x.rs:172:20"), errors.InvalidTableState),
        (OSError("LanceError(IO): failed to decode Protobuf message: x"), errors.InvalidTableState),
        (OSError("LanceError(IO): Python error in describe_table_version: ValidationError: 1"), errors.InvalidTableState),
        (OSError("LanceError(IO): Generic N/A error: Not found: a/data/x.lance"), errors.InvalidTableState),
        (OSError("LanceError(IO): Generic LocalFileSystem error: failed to fill whole buffer"), errors.InvalidTableState),
        (ZeroDivisionError("must be"), None),
    ],
)  # fmt: skip
def test_lance_errors_are_mapped(error, expected):
    refused = lance_errors.refusal(error, T)
    assert type(refused) is (expected or type(None))


def test_catalog_errors_are_not_mapped():
    refused = errors.TableNotFound(T)
    assert lance_errors.refusal(refused, T) is refused


def test_error_messages_contain_no_internals():
    raw = (
        "Invalid user input: Invalid user input: Column 'zz' does not exist in dataset schema:"
        ' Schema { fields: [Field { name: "a" }] }, /home/runner/x/y.rs:191:14'
    )
    refused = lance_errors.refusal(ValueError(raw), T)
    assert refused is not None
    assert refused.message == "Table 'ws.t': Column 'zz' does not exist in dataset schema"
