"""Build the documentation into site/, strictly: `python .ci/docs`. Does nothing if the site is current.

A warning of MkDocs fails the build, such as a link to a missing page or heading, or a page outside of the
navigation. The links of README.md are checked too. A failed build leaves the old site in place.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "site"
STAMP = ".inputs"
"""A file in the site with the digest of everything that it was built from."""
INPUTS = (
    "mkdocs.yml",
    "requirements-docs.txt",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "README.md",
)
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


def digest() -> str:
    """The digest of the sources of the site."""
    files = [ROOT / name for name in INPUTS]
    for folder in (ROOT / "docs", ROOT / ".ci" / "docs"):
        files += [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    total = hashlib.sha256()
    for file in sorted(files):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(ROOT)} {content}\n".encode())
    return total.hexdigest()


def broken_links(source: Path, site: Path) -> list[str]:
    """The links of a Markdown file of the root that lead nowhere, as "target: reason"."""
    broken = []
    for target, anchor in _LINK.findall(source.read_text(encoding="utf-8")):
        file = source.parent / (target or source.name)
        if not file.exists():
            broken.append(f"{target}: there is no such file")
            continue
        page = site / Path(target).with_suffix(".html").name
        if anchor and (not page.exists() or f'id="{anchor}"' not in page.read_text("utf-8")):
            broken.append(f"{target}#{anchor}: there is no such heading")
    return broken


def build(directory: Path) -> int:
    """Build the site into a directory, and return the exit status."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    mkdocs = subprocess.run(  # noqa: S603
        command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False
    )
    if mkdocs.returncode:
        lines = (mkdocs.stdout + mkdocs.stderr).splitlines()
        print("\n".join(line for line in lines if not line.startswith("INFO")), file=sys.stderr)
        return mkdocs.returncode
    broken = broken_links(ROOT / "README.md", directory)
    print("".join(f"README.md: {line}\n" for line in broken), end="", file=sys.stderr)
    return 1 if broken else 0


def replace(old: Path, new: Path) -> None:
    """Put a directory in the place of another. A server that shows the old one notices."""
    aside = old.with_name(f".{old.name}-{new.parent.name}")
    if old.exists():
        old.rename(aside)
    try:
        new.rename(old)
    except OSError:  # another build was faster
        if not old.exists():
            raise
    shutil.rmtree(aside, ignore_errors=True)


def main() -> int:
    stamp = digest()
    current = SITE / STAMP
    if current.exists() and current.read_text() == stamp:
        print("docs     | site/ is current")
        return 0
    with tempfile.TemporaryDirectory(prefix=".site-", dir=ROOT) as temporary:
        built = Path(temporary) / "site"
        status = build(built)
        if status:
            return status
        (built / STAMP).write_text(stamp)
        replace(SITE, built)
    pages = sum(1 for _ in SITE.glob("*.html"))
    print(f"docs     | built {pages} pages into site/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
