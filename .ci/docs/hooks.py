"""MkDocs hooks: what this repository's Markdown needs to become a site that loads nothing from elsewhere.

- Pages of the repository's root, such as CHANGELOG.md, become pages of the site.
- Mermaid diagrams become SVG while the site is built, so browsers need no script for them.
- Inline scripts of the theme become files, as the server's Content-Security-Policy requires.
- The build fails if a page refers to a script, style sheet, font or image of another server.
"""

import hashlib
import re
from importlib.metadata import version
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files of the repository's root, and their names in the site."""
DRAWN = Path(__file__).resolve().parents[2] / ".cache" / "diagrams"
SCRIPTS = "assets/javascripts"
DIAGRAM_SCALE = 0.75
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = re.compile(r'<div data-diagram="(\w+)"></div>')
_INLINE_SCRIPT = re.compile(r"<script>(.+?)</script>", re.DOTALL)
_ANY_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>")
_HANDLER = re.compile(r"<[^>]+\son[a-z]+\s*=|(?:href|src)=[\"']?javascript:", re.IGNORECASE)
_FOREIGN = re.compile(
    r"<(?:script|img|source|iframe|video|audio|embed)\b[^>]*?\b(?:src|srcset)=[\"']?(?:https?:)?//[^\"'\s>]+"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?(?:https?:)?//[^\"'\s>]+",
    re.IGNORECASE,
)
_FOREIGN_STYLE = re.compile(r"url\(\s*[\"']?(?:https?:)?//[^)]+\)|@import[^;]+;", re.IGNORECASE)
_UNUSED = ("404.html", "sitemap.xml*", "**/*.map", f"{SCRIPTS}/lunr/**/*.js")
"""Files with absolute URLs of a site whose address is not known here, and the search in other languages."""

_diagrams: dict[str, str] = {}
_scripts: dict[str, str] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root."""
    root = Path(config.config_file_path).parent
    for source, name in ROOT_PAGES.items():
        text = (root / source).read_text(encoding="utf-8")
        if source == "CHANGELOG.md":
            text = re.sub(r"\bdocs/([\w-]+)\.md\b", r"[\1](docs/\1.md)", text)
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace diagrams by placeholders, and links to the repository's root by those to its pages."""
    for source, name in ROOT_PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({name}")
    markdown = markdown.replace("<details>", '<details markdown="1">')
    return _MERMAID.sub(lambda match: _placeholder(match[1]), markdown)


def _placeholder(source: str) -> str:
    key = hashlib.sha256(source.encode()).hexdigest()[:12]
    if key not in _diagrams:
        _diagrams[key] = diagram(source, f"diagram-{key}")
    return f'<div data-diagram="{key}"></div>'


def diagram(source: str, element_id: str) -> str:
    """The element of a Mermaid diagram. Raises PluginError if Mermaid refuses the source."""
    svg = draw(source).replace("my-svg", element_id)  # several diagrams may be in one page
    size = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) [\d.]+"', svg)
    if size is None:
        raise PluginError(f"The diagram has no size:\n{source}")
    width = round(float(size[1]) * DIAGRAM_SCALE)
    return (
        '<div class="diagram" role="group" aria-label="Diagram" tabindex="0">'
        f'<div style="width: {width}px">{svg}</div></div>'
    )


def draw(source: str) -> str:
    """The SVG of a diagram, which takes a second of CPU time, or from an earlier build."""
    key = hashlib.sha256(f"{version('mermaidx')} {source}".encode()).hexdigest()
    cached = DRAWN / f"{key}.svg"
    if cached.exists():
        return cached.read_text(encoding="utf-8")
    import mermaidx  # takes a second, and most builds draw nothing

    try:
        svg: str = mermaidx.render(source).svg()
    except Exception as error:
        raise PluginError(f"Mermaid cannot draw this diagram: {error}\n{source}") from error
    DRAWN.mkdir(parents=True, exist_ok=True)
    cached.write_text(svg, encoding="utf-8")
    return svg


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return _PLACEHOLDER.sub(lambda match: _diagrams[match[1]], html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Move inline scripts into files, and check the page. Raises PluginError."""
    output = _INLINE_SCRIPT.sub(lambda match: _script_element(match[1]), output)
    faults = faults_of(output)
    if faults:
        raise PluginError(f"{page.file.src_uri}: {'; '.join(faults)}")
    return output


def _script_element(script: str) -> str:
    name = f"page-{hashlib.sha256(script.encode()).hexdigest()[:8]}.js"
    _scripts[name] = script
    return f'<script src="{SCRIPTS}/{name}"></script>'


def faults_of(page: str) -> list[str]:
    """What a page contains that the server's Content-Security-Policy or the absence of a network forbids."""
    inline = [
        f"inline script {match[0]}"
        for match in _ANY_SCRIPT.finditer(page)
        if " src=" not in match["attributes"] and "application/json" not in match["attributes"]
    ]
    handlers = [f"inline handler {match[0]}" for match in _HANDLER.finditer(page)]
    return inline + handlers + [f"foreign {match[0]}" for match in _FOREIGN.finditer(page)]


def on_post_build(config: MkDocsConfig) -> None:
    """Write the scripts of the pages, and check the style sheets. Raises PluginError."""
    site = Path(config.site_dir)
    for name, script in _scripts.items():
        (site / SCRIPTS / name).write_text(script, encoding="utf-8")
    for pattern in _UNUSED:
        for file in site.glob(pattern):
            file.unlink()
    for file in site.rglob("*.css"):
        for match in _FOREIGN_STYLE.finditer(file.read_text(encoding="utf-8")):
            raise PluginError(f"{file.name}: foreign {match[0]}")
