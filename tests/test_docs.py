"""The documentation builds strictly, asks nothing of the network, and what it shows as code runs."""

import html.parser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from PIL import Image, ImageDraw

from smope.cli.app import app
from smope.methods.registry import METHODS
from smope.recipes import load_recipe

ROOT = Path(__file__).resolve().parents[1]
DOCS, TOOLS = ROOT / "docs", ROOT / "tools"
PAGES = sorted(DOCS.rglob("*.md"))  # of the site
READ = [ROOT / "README.md", *PAGES]
SNIPPET = re.compile(r"^<!-- run: [a-z]+ -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TINY = "ContinualClassifier('vit-tiny-test', image_size=16, overrides=['threads=1'])"
pytestmark = pytest.mark.xdist_group("docs")


pytestmark = pytest.mark.timeout(900)  # whichever test comes first builds the site, which takes minutes on a busy machine


# -- the site ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


class Loaded(html.parser.HTMLParser):
    """What a page makes a browser load; links that a reader follows are no part of it."""

    TAGS = {
        "script": "src",
        "img": "src",
        "source": "src",
        "iframe": "src",
        "video": "src",
        "audio": "src",
        "embed": "src",
        "object": "data",
    }

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        place = values.get(self.TAGS.get(tag, ""))
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev", "author", "license"):
            place = values.get("href")
        if tag in ("image", "use"):
            place = values.get("href") or values.get("xlink:href")
        self.found += [value for value in (place, values.get("srcset")) if value]
        self.found += re.findall(r"url\(([^)]*)\)", values.get("style") or "")


def outside(text):
    """What is loaded from elsewhere."""
    page = Loaded()
    page.feed(text)
    inside = page.found + re.findall(
        r"url\(([^)]*)\)|@import\s+([^;]*)", "".join(re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL))
    )
    flat = [one if isinstance(one, str) else "".join(one) for one in inside]
    return [one for one in flat if re.match(r"""['"]?\s*(https?:)?//""", one)]


def test_what_would_ask_the_network_is_seen():
    assert outside('<script src="https://cdn.example/x.js"></script>')
    assert outside('<link rel="stylesheet" href="//fonts.example/a.css">') and outside('<style>a{b:url("http://x/y.png")}</style>')
    assert not outside('<a href="https://a.paper">paper</a><img src="images/a.svg"><link rel="canonical" href="https://x/">')


def test_no_page_loads_anything_from_outside(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    assert {page.name: found for page in pages if (found := outside(page.read_text(encoding="utf-8")))} == {}
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import\s+(url\()?['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_every_mark_was_filled_in(site):
    for page in PAGES:
        made = (site / page.relative_to(DOCS)).with_suffix(".html").read_text(encoding="utf-8")
        assert "<!-- make:" not in made and "```" not in re.sub(r"<code.*?</code>", "", made, flags=re.DOTALL), page


def test_the_results_page_has_every_set_that_has_records(site):
    text = (site / "results.html").read_text(encoding="utf-8")
    sets = {path.parents[2].name for path in (ROOT / "results").rglob("record.json")}
    assert sets and all(f"smope compare results/{name} " in text for name in sets)
    assert "smope run imagenet-r/smope-10" in text and "not yet run" in text


def test_the_reference_shows_what_is_written_beside_a_field(site):
    text = (site / "reference" / "classifier.html").read_text(encoding="utf-8")
    assert "The most probable class, also where the picture may be none of these." in text


@pytest.mark.browser
def test_a_browser_asks_for_nothing_outside(site):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        asked = []
        tab = browser.new_page(viewport={"width": 390, "height": 844})
        tab.on("request", lambda request: asked.append(request.url))
        for page in site.rglob("*.html"):
            tab.goto(page.as_uri())
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, f"{page.name} scrolls sideways on a phone"
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


# -- what it shows as code ---------------------------------------------------------------------------------------------------


def draw(path, colour, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.new("RGB", (24, 24), (100 + seed,) * 3)
    ImageDraw.Draw(picture).ellipse((4 + seed % 5, 4, 16 + seed % 7, 18), fill=colour)
    picture.save(path)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """The folders the tutorials speak of."""
    colours = {"kettle": (220, 40, 40), "teapot": (40, 60, 220), "cup": (30, 180, 60)}
    for number in range(12):
        draw(tmp_path / "photos" / "january" / "kettle" / f"{number}.jpg", colours["kettle"], number)
        draw(tmp_path / "photos" / "january" / "teapot" / f"{number}.jpg", colours["teapot"], number)
        draw(tmp_path / "photos" / "march" / "cup" / f"{number}.jpg", colours["cup"], number)
        draw(tmp_path / "photos" / "march" / "kettle" / f"{number}.jpg", colours["kettle"], 20 + number)
    for name, colour in {**colours, "holiday": (250, 250, 250)}.items():
        draw(tmp_path / f"{name}.jpg", colour, 50)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    monkeypatch.setattr(METHODS, "_known", dict(METHODS._known))
    monkeypatch.delitem(sys.modules, "quiet_prompt", raising=False)
    return tmp_path


def snippets(page):
    return [re.sub(r"ContinualClassifier\((image_size=224)?\)", TINY, code) for code in SNIPPET.findall(page.read_text(encoding="utf-8"))]


RUN = [page for page in READ if snippets(page)]


def test_the_pages_that_teach_have_code_that_runs():
    assert {"README", "index", "own-photos", "researchers", "add-a-method", "protocol"} <= {page.stem for page in RUN}


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_its_snippets_run_one_after_the_other(page, photos, capsys):
    scope = {"__name__": "__main__"}
    for code in snippets(page):
        exec(compile(code, str(page), "exec"), scope)
    said = capsys.readouterr().out
    if page.stem == "add-a-method":
        assert "centred: alone, an image has other logits than in a batch" in said
    if page.stem == "own-photos":
        assert "update 1: 2 new classes (kettle, teapot)" in said and scope["clf"].classes == ["kettle", "cup"]


def commands():
    """Every `smope ...` line of a shell block, and inline code that is one."""
    found = []
    for page in [*READ, TOOLS / "docs_speed.py"]:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for line in block.splitlines()]
        lines += re.findall(r"`(smope (?:--import [^`\s]+ )?[a-z]+[^`]*)`", text) + re.findall(r"^ +(smope bench .*)$", text, re.MULTILINE)
        found += [(page.name, line.split("#")[0].split(" > ")[0].strip()) for line in lines if line.startswith("smope ")]
    return sorted(set(found))


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda word: word)
def test_its_commands_are_ones_the_program_knows(page, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, context, words = typer.main.get_command(app), None, shlex.split(line)[1:]
    if words[0] == "--import":
        assert Path(words[1]).is_file(), line
        words = words[2:]
    while hasattr(command, "commands") and not (command.invoke_without_command and words[:1] and words[0].startswith("-")):
        context = command.make_context("smope", [], parent=context, resilient_parsing=True)
        assert words[0] in command.commands, line
        command, words = command.commands[words[0]], words[1:]
        if hasattr(command, "commands") and not words:
            return
    try:
        parsed = command.make_context(command.name, list(words), parent=context)
    except Exception as error:
        if "does not exist" not in str(getattr(error, "message", "")):  # a path that the reader has and we have not
            pytest.fail(f"{page}: {line}: {error}")
        return
    if command.name == "run" and words[0] != "--resume":
        load_recipe(words[0], parsed.params.get("overrides") or ())
