"""The time of day of the processes under test, which can be shifted."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """All processes of a server that starts with ``environment`` have this clock.

    It requires a C compiler; ``missing`` is the reason if there is none. Monotonic clocks are not changed.
    """

    def __init__(self, directory: Path) -> None:
        """``directory`` must be accessible to every user."""
        self._file = directory / "clock.offset"
        self.missing = ""
        self.environment: dict[str, str] = {}
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            self.missing = "no C compiler"
            return
        library = directory / "clock.so"
        built = subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode != 0:
            self.missing = f"the clock does not build: {built.stderr[-500:]}"
            return
        self._file.write_bytes(struct.pack("q", 0))
        for path in (library, self._file):
            path.chmod(0o755)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(self._file)}

    @property
    def is_there(self) -> bool:
        return not self.missing

    def set_off(self, seconds: int) -> None:
        """Shift the time of day by this number of seconds."""
        descriptor = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(descriptor, struct.pack("q", seconds), 0)
        finally:
            os.close(descriptor)
