from tests.api.conftest import _static_files, lance, reader, warehouse
from tests.api.iceberg.conftest import iceberg

__all__ = ["_static_files", "iceberg", "lance", "reader", "warehouse"]
