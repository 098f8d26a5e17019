"""The build of the documentation: what `make docs` checks besides MkDocs, and when it builds."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from mkdocs.exceptions import PluginError

PROJECT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    """A module of .ci/docs, which is not a package."""
    spec = importlib.util.spec_from_file_location(
        f"docs_{name.strip('_')}", PROJECT / ".ci" / "docs" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load("hooks")
build = load("__main__")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<script>go()</script>", "inline script <script>"),
        ('<script type="module">go()</script>', 'inline script <script type="module">'),
        ('<a onclick="go()">x</a>', "inline handler <a onclick="),
        ('<a href="javascript:go()">x</a>', 'inline handler href="javascript:'),
        ('<script src="https://cdn.example.com/x.js"></script>', "foreign <script"),
        ('<script src="//cdn.example.com/x.js"></script>', "foreign <script"),
        ('<link rel="stylesheet" href="https://fonts.example.com/x.css">', "foreign <link"),
        ('<link rel="preconnect" href="https://fonts.example.com" crossorigin>', "foreign <link"),
        ('<img alt="x" src="http://images.example.com/x.png">', "foreign <img"),
        ('<iframe src="https://example.com"></iframe>', "foreign <iframe"),
    ],
)  # fmt: skip
def test_pages_with_foreign_or_inline_resources_are_refused(text, fault):
    (actual,) = hooks.faults_of(f"<p>before</p>{text}<p>after</p>")
    assert actual.startswith(fault)


def test_pages_of_local_resources_are_accepted():
    page = (
        '<link rel="stylesheet" href="assets/main.css"><script src="assets/page.js"></script>'
        '<script id="__config" type="application/json">{}</script><img src="images/x.png">'
        '<a href="https://example.com">a link is no request</a>'
    )
    assert hooks.faults_of(page) == []


def test_inline_scripts_become_files_of_the_site(tmp_path):
    page = hooks._INLINE_SCRIPT.sub(
        lambda match: hooks._script_element(match[1]), "<script>go()</script><script>go()</script>"
    )
    name = page.removeprefix('<script src="').partition('"')[0]
    assert page == f'<script src="{name}"></script>' * 2
    (tmp_path / hooks.SCRIPTS).mkdir(parents=True)
    (tmp_path / "404.html").touch()
    hooks.on_post_build(_config(tmp_path))
    assert (tmp_path / name).read_text() == "go()"
    assert not (tmp_path / "404.html").exists()


def test_style_sheets_that_load_from_elsewhere_are_refused(tmp_path):
    (tmp_path / hooks.SCRIPTS).mkdir(parents=True)
    (tmp_path / "main.css").write_text("@font-face { src: url(//fonts.example.com/x.woff2) }")
    with pytest.raises(PluginError, match=r"main.css: foreign url\(//fonts.example.com"):
        hooks.on_post_build(_config(tmp_path))


def _config(site: Path):
    return SimpleNamespace(site_dir=str(site))


@pytest.fixture
def mermaid(tmp_path, monkeypatch) -> SimpleNamespace:
    """Stands for Mermaid, which takes a second to load."""
    module = SimpleNamespace(render=None)
    monkeypatch.setitem(sys.modules, "mermaidx", module)
    monkeypatch.setattr(hooks, "DRAWN", tmp_path / "diagrams")
    return module


def test_a_diagram_becomes_svg_with_its_own_name(mermaid):
    svg = '<svg id="my-svg" viewBox="0 0 400 100"><style>#my-svg{}</style></svg>'
    mermaid.render = lambda source: SimpleNamespace(svg=lambda: svg)
    first, second = (hooks.diagram("flowchart LR\n a --> b", name) for name in ("one", "two"))
    assert 'id="one"' in first
    assert "#two{}" in second
    assert "my-svg" not in first + second
    assert "width: 300px" in first  # three quarters of its own width
    assert len(list(hooks.DRAWN.iterdir())) == 1  # drawn once


def test_a_malformed_diagram_fails_the_build(mermaid):
    def refuse(source):
        raise ValueError("Parse error on line 2")

    mermaid.render = refuse
    with pytest.raises(PluginError, match="Parse error on line 2"):
        hooks.draw("flowchart LR\n a --")
    assert not hooks.DRAWN.exists()


def test_links_of_the_readme_are_checked(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "access.md").touch()
    site = tmp_path / "site"
    site.mkdir()
    (site / "access.html").write_text('<h2 id="roles">Roles</h2>')
    readme = tmp_path / "README.md"
    readme.write_text(
        "[a](docs/access.md) [b](docs/access.md#roles) [c](https://example.com/x)\n"
        "[d](docs/gone.md) [e](docs/access.md#gone)\n"
    )
    assert build.broken_links(readme, site) == [
        "docs/gone.md: there is no such file",
        "docs/access.md#gone: there is no such heading",
    ]


def test_a_current_site_is_not_built_again_and_a_failed_build_keeps_the_old_one(
    tmp_path, monkeypatch, capsys
):
    for name in build.INPUTS:
        (tmp_path / name).write_text("text")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Start")
    (tmp_path / ".ci" / "docs").mkdir(parents=True)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "SITE", tmp_path / "site")
    builds: list[int] = []

    def write_site(directory: Path) -> int:
        directory.mkdir()
        (directory / "index.html").write_text(f"build {len(builds)}")
        builds.append(len(builds))
        return 0

    monkeypatch.setattr(build, "build", write_site)
    assert build.main() == build.main() == 0
    assert builds == [0]
    (tmp_path / "docs" / "index.md").write_text("# Changed")
    assert build.main() == 0
    assert (tmp_path / "site" / "index.html").read_text() == "build 1"
    (tmp_path / "mkdocs.yml").write_text("changed")
    monkeypatch.setattr(build, "build", lambda directory: 1)
    assert build.main() == 1
    assert (tmp_path / "site" / "index.html").read_text() == "build 1"
    # The failed build is repeated, and leaves nothing behind.
    assert build.main() == 1
    names = {path.name for path in tmp_path.iterdir()} - set(build.INPUTS)
    assert names == {"docs", ".ci", "site"}
    capsys.readouterr()


def test_requirements_of_the_documentation_are_part_of_those_for_development():
    lines = (PROJECT / "requirements-dev.txt").read_text().splitlines()
    assert "-r requirements-docs.txt" in lines
    pins = (PROJECT / "constraints.txt").read_text().lower().splitlines()
    for line in (PROJECT / "requirements-docs.txt").read_text().splitlines():
        if not line.startswith("#"):
            assert line.split()[0].lower() in pins


def test_the_image_has_every_source_of_the_site():
    """The stage of the Dockerfile copies what the build reads; .dockerignore lets it through."""
    dockerfile = (PROJECT / "Dockerfile").read_text()
    ignored = (PROJECT / ".dockerignore").read_text().splitlines()
    for name in (*build.INPUTS, "docs", ".ci/docs"):
        assert name in dockerfile, name
        assert f"!{name}" in ignored, name
    assert "COPY --from=docs /build/site /app/site" in dockerfile
