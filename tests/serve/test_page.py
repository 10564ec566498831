"""The page in a real browser: what a person does on it, from the first paint to Undo."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from smope.classifier import ContinualClassifier
from smope.serve.model import Model

from .conftest import listening, png, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium here; on Debian: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; see the extra 'dev'")
expect = playwright.expect
expect.set_options(timeout=90_000)
Open = Callable[..., Any]
STATE: dict[str, Any] = {"id": "one", "kind": "learn", "place": 0, "stage": "", "share": 1, "left": None, "remark": "", "report": None}
REPORT = {"new": [], "known": ["white"], "learned": 2, "held_back": 0, "accuracy": None, "accuracies": {}, "unjudged": [], "skipped": []}
REPORT |= {"estimate": None, "notes": [], "seconds": 1.0}
DONE = f"data: {json.dumps({**STATE, 'id': 'forgotten', 'state': 'done', 'report': REPORT, 'error': None})}\n\n"


@contextmanager
def server(file: Path, *more: str) -> Iterator[str]:
    """The program itself, in a process of its own; gives the address it says."""
    command = [sys.executable, "-m", "smope", "serve", str(file), "--port=0", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield found.group()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


@pytest.fixture(scope="module")
def address(taught_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    for path in taught_file.parent.glob("shop.smope*"):
        shutil.copy(path, folder)
    with server(folder / "shop.smope") as made:
        yield made
    assert not (folder / "shop.smope.teaching").exists(), "no uploaded picture is left"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"],
        )
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Open]:
    """visit("#teach"): a new page there. Whatever it asks of others, and whatever it complains of, fails the test."""
    strange: list[str] = []
    contexts = []

    def opened(part: str = "", at: str | None = None, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        home = at or address
        page.on(
            "request",
            lambda request: None if request.url.startswith((home.split("#")[0], "blob:", "data:")) else strange.append(request.url),
        )
        page.on("pageerror", lambda error: strange.append(str(error)))
        page.on("console", lambda line: strange.append(line.text) if "Content Security Policy" in line.text else None)
        page.goto(home + part)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert strange == []


def files(*colours: str, first: int = 700) -> list[dict[str, Any]]:
    return [
        {"name": f"{colour} {number}.png", "mimeType": "image/png", "buffer": png(colour, first + number, 160)}
        for number, colour in enumerate(colours)
    ]


def ask(page: Any, *sent: dict[str, Any]) -> None:
    page.locator("#classify-drop input[type=file]").set_input_files(list(sent))


def card(page: Any, name: str) -> Any:
    return page.locator(".card", has=page.get_by_text(name, exact=False))


def test_without_a_model_the_page_says_how_to_begin(visit: Open, tmp_path: Path) -> None:
    with server(tmp_path / "new.smope", "--backbone=vit-tiny-test", "--image-size=16") as empty:
        page = visit(at=empty)
        expect(page.locator("#classify-empty")).to_be_visible()
        expect(page.locator("#state")).to_have_text("Knows nothing yet")


def test_the_page_is_painted_and_says_so_while_the_model_is_loaded(visit: Open, taught_file: Path, tmp_path: Path) -> None:
    """The load ends when we let it: whatever is seen before that was seen without a model."""
    shutil.copy(taught_file, tmp_path)
    go_on = threading.Event()

    class Held(Model):
        def _read(self) -> ContinualClassifier:
            assert go_on.wait(240)
            return super()._read()

    try:
        with listening(Held(tmp_path / "shop.smope", {})) as port:
            page = visit(at=f"http://127.0.0.1:{port}/")
            expect(page.locator("#state")).to_have_text("Loading the model…")
            expect(page.locator("#classify-loading")).to_be_visible()
            assert page.evaluate("performance.getEntriesByName('first-contentful-paint').length") == 1
            ask(page, *files("red"))
            expect(card(page, "red 0.png")).to_contain_text("Waiting: The model is being loaded.")
            page.get_by_role("link", name="Model").first.click()
            expect(page.locator("#model-empty")).to_have_text("The model is being loaded.")
            assert page.evaluate("fetch('/health').then((answer) => answer.json())")["status"] == "loading"
            go_on.set()
            expect(page.locator("#state")).to_have_text("3 classes")
            page.get_by_role("link", name="Classify").first.click()
            expect(card(page, "red 0.png").locator("h2")).to_have_text("red")
            expect(page.locator("#classify-loading")).to_be_hidden()
    finally:
        go_on.set()


def test_dozens_of_pictures_are_classified_and_saved_as_csv(visit: Open) -> None:
    page = visit()
    expect(page.locator("#state")).to_have_text("3 classes")
    colours = ["red", "blue", "green"] * 10
    ask(page, *files(*colours))
    expect(page.locator("#classify-count")).to_have_text("30 pictures")
    assert page.locator(".card .bars").count() == 30
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0] == "path,label,probability,unknown,error"
    right = sum(line.split(" ")[0] == line.split(",")[1] for line in lines[1:])
    assert len(lines) == 31 and right >= 24, "a tiny, untrained ViT tells most of these colours apart"


def test_what_is_unlike_every_class_is_none_of_these(visit: Open) -> None:
    page = visit()
    noise = io.BytesIO()
    Image.effect_noise((64, 64), 200).convert("RGB").save(noise, "PNG")
    ask(page, {"name": "noise.png", "mimeType": "image/png", "buffer": noise.getvalue()})
    expect(card(page, "noise.png").locator("h2")).to_have_text("None of these")


def test_a_bad_upload_is_refused_kindly(visit: Open) -> None:
    page = visit()
    ask(page, {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"milk, eggs"})
    expect(card(page, "notes.txt").locator("h2")).to_have_text("Not read")
    expect(card(page, "notes.txt")).to_contain_text("as a picture")


def test_a_class_is_taught_recognised_and_taken_back(visit: Open) -> None:
    page = visit("#teach")
    expect(page.locator("#teach-now")).to_be_disabled()
    page.get_by_label("Class name").fill("white")
    page.locator(".lesson input[type=file]").set_input_files(files(*["white"] * 8))
    page.get_by_role("button", name="Another class").click()
    page.get_by_label("Class name").nth(1).fill("red")
    page.locator(".lesson input[type=file]").nth(1).set_input_files(
        [*files("red", first=800), {"name": "broken.png", "mimeType": "image/png", "buffer": b"\x89PNG..."}]
    )
    expect(page.locator("#teach-count")).to_have_text("10 pictures of 2 classes")
    page.locator("#teach-now").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    report = page.locator("#report")
    expect(report).to_contain_text("New: white.", timeout=240_000)  # the teacher gives way to whatever else runs on the machine
    expect(report).to_contain_text("more pictures: red")
    expect(report).to_contain_text("held-back pictures")
    expect(report).to_contain_text("Skipped broken.png")
    expect(page.locator("#state")).to_have_text("4 classes")

    page.get_by_role("link", name="Classify").click()
    ask(page, *files("white", first=950))
    expect(card(page, "white 0.png").locator("h2")).to_have_text("white")

    page.get_by_role("link", name="Teach").click()
    page.get_by_role("button", name="Undo this update").click()
    expect(report).to_contain_text("Taken back")
    expect(page.locator("#state")).to_have_text("3 classes")


def test_what_is_added_while_pictures_are_sent_stays_for_the_next_update(visit: Open) -> None:
    page = visit("#teach")
    expect(page.locator("#state")).to_contain_text("class")
    page.get_by_label("Class name").fill("white")
    page.locator(".lesson input[type=file]").set_input_files(files("white", "white"))
    sent: list[Any] = []
    page.route("**/learn", lambda route: sent.append(route))
    page.locator("#teach-now").click()
    wait_for(lambda: (page.wait_for_timeout(50), sent)[1])
    page.locator(".lesson input[type=file]").set_input_files(files("red", first=800))
    expect(page.locator(".thumbs li")).to_have_count(3)
    page.route("**/jobs/forgotten/events", lambda route: route.fulfill(content_type="text/event-stream", body=DONE))
    sent[0].fulfill(status=202, json={"id": "forgotten"})
    expect(page.locator(".thumbs li")).to_have_count(1)
    expect(page.get_by_role("button", name="Leave out red 0.png")).to_be_visible()
    expect(page.get_by_label("Class name")).to_have_value("white")


def test_what_was_gathered_stays_when_an_update_fails_is_stopped_or_forgotten(visit: Open) -> None:
    """Twenty pictures and the name of their class were thrown away as soon as they had been sent."""
    page = visit("#teach")
    expect(page.locator("#state")).to_contain_text("class")
    page.get_by_label("Class name").fill("white")
    page.locator(".lesson input[type=file]").set_input_files(files("white", "white"))
    states = iter(["failed", "cancelled", None])
    ids = iter(["one", "two", "three"])
    page.route("**/learn", lambda route: route.fulfill(status=202, json={"id": next(ids)}))

    def end(route: Any) -> None:
        if (state := next(states)) is None:
            route.fulfill(status=404, json={"error": "There is no such job.", "remedy": ""})
        else:
            told = {**STATE, "id": route.request.url.split("/")[-2], "state": state, "error": {"error": "It is full.", "remedy": ""}}
            route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(told)}\n\n")

    page.route("**/jobs/*/events", end)
    for words in ("That did not work", "Stopped", "There is no such job"):
        page.locator("#teach-now").click()
        expect(page.locator("#main")).to_contain_text(words)
        expect(page.locator(".thumbs li")).to_have_count(2)
        expect(page.locator(".thumbs li.sent")).to_have_count(0)
        expect(page.get_by_label("Class name")).to_have_value("white")
        expect(page.locator("#teach-now")).to_be_enabled()


def test_what_was_gathered_survives_a_reload_and_every_removal_can_be_taken_back(visit: Open) -> None:
    page = visit("#teach")
    expect(page.locator("#state")).to_contain_text("class")
    page.get_by_label("Class name").fill("white")
    page.locator(".lesson input[type=file]").set_input_files(files(*["white"] * 5))
    page.get_by_role("button", name="Leave out white 1.png").click()
    expect(page.locator(".thumbs li")).to_have_count(4)
    page.reload()
    expect(page.locator(".thumbs li")).to_have_count(4)
    expect(page.get_by_label("Class name")).to_have_value("white")
    page.get_by_role("button", name="Leave out white 2.png").click()
    page.get_by_role("button", name="Leave out this class").click()
    expect(page.locator(".thumbs li")).to_have_count(0)
    expect(page.locator("#removed")).to_contain_text("“white” with 3 pictures left out")
    page.get_by_role("button", name="Take back").click()
    expect(page.locator(".thumbs li")).to_have_count(3)
    page.get_by_role("button", name="Take back").click()
    expect(page.locator(".thumbs li")).to_have_count(4)
    expect(page.locator(".thumbs canvas").nth(1)).to_have_attribute("aria-label", "white 2.png")
    expect(page.locator("#removed")).to_be_hidden()
    page.reload()
    expect(page.locator(".thumbs li")).to_have_count(4)


def test_two_spellings_are_asked_about_before_they_become_two_classes(visit: Open) -> None:
    page = visit("#teach")
    expect(page.locator("#state")).to_contain_text("class")
    page.get_by_label("Class name").fill("REDS")
    page.locator(".lesson input[type=file]").set_input_files(files("red"))
    page.route("**/learn", lambda route: route.fulfill(status=422, json={"error": "Held.", "remedy": ""}))
    page.locator("#teach-now").click()
    expect(page.locator("#ask")).to_contain_text("Is “REDS” the same as “red”?")
    page.get_by_role("button", name="Yes: call it “red”").click()
    expect(page.get_by_role("alert")).to_contain_text("Held.")
    expect(page.get_by_label("Class name")).to_have_value("red")


@pytest.mark.parametrize(
    ("shares", "words"),
    [([0.98, 0.02], "orange"), ([0.5, 0.47], "orange or satsuma"), ([0.6, 0.2], "Perhaps orange")],
)
def test_sure_and_unsure_look_different(visit: Open, shares: list[float], words: str) -> None:
    page = visit()
    top = [{"label": label, "probability": share} for label, share in zip(("orange", "satsuma"), shares, strict=True)]
    told = {"name": "a.png", "label": "orange", "top": top, "unknown": None, "calibrated": True, "error": None}
    page.route("**/predict", lambda route: route.fulfill(json={"predictions": [told], "changes": 1}))
    ask(page, *files("red"))
    expect(page.locator(".card h2")).to_have_text(words)
    expect(page.locator(".card")).to_contain_text("none of these cannot be said yet")


def test_folders_are_gathered_each_as_a_class(visit: Open, tmp_path: Path) -> None:
    for colour in ("red", "white"):
        (tmp_path / "shop" / colour).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "shop" / colour / f"{number}.png").write_bytes(png(colour, number))
    (tmp_path / "shop/white/notes.txt").write_text("milk")
    page = visit("#teach")
    expect(page.locator("#state")).to_contain_text("class")
    page.locator("#add-folder + input").set_input_files(tmp_path / "shop")
    expect(page.locator("#teach-count")).to_have_text("4 pictures of 2 classes")
    assert sorted(field.input_value() for field in page.get_by_label("Class name").all()) == ["red", "white"]


def test_names_that_are_markup_are_only_names(visit: Open) -> None:
    page = visit()
    nasty = "<img src=x onerror=alert(1)>.png"
    ask(page, {"name": nasty, "mimeType": "image/png", "buffer": png("red", 1)})
    expect(card(page, nasty)).to_contain_text(nasty)
    found = card(page, nasty)
    found.get_by_label(f"Wrong: what {nasty} shows").select_option("+")
    page.get_by_label("Name of the class").fill("<script>alert(1)</script>")
    page.get_by_role("button", name="Keep it").click()
    expect(found).to_contain_text("Kept for the next update as “<script>alert(1)</script>”")
    assert page.locator("main img, main script").count() == 0


def test_pictures_that_were_cleared_do_not_come_back_as_refused(visit: Open) -> None:
    page = visit()
    sent: list[Any] = []
    page.route("**/predict", lambda route: sent.append(route))
    ask(page, *files("red"))
    wait_for(lambda: (page.wait_for_timeout(50), sent)[1])
    page.get_by_role("button", name="Clear").click()
    with page.expect_response("**/predict"):
        sent[0].fulfill(status=422, json={"error": "No.", "remedy": ""})
    page.wait_for_timeout(500)
    expect(page.locator("#classify-tools")).to_be_hidden(timeout=1000)


def test_a_server_that_was_started_anew_with_another_token_is_asked_with_it(visit: Open) -> None:
    page = visit()
    expect(page.locator("#state")).to_have_text("3 classes")
    page.route("**/about", lambda route: route.fulfill(status=401, json={"error": "The token is missing or wrong.", "remedy": ""}))
    expect(page.get_by_label("Token")).to_be_visible()
    page.unroute("**/about")
    page.get_by_label("Token").fill("another-token")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_label("Token")).to_be_hidden()
    expect(page.locator("#state")).to_have_text("3 classes")


def test_a_change_made_elsewhere_is_seen(visit: Open, address: str) -> None:
    page = visit("#model")
    rows = page.locator("#classes tr")
    expect(rows.nth(1)).to_contain_text("blue")
    for path, body in (("classes/rename", {"name": "blue", "to": "navy"}), ("undo", {})):
        before = page.evaluate("document.querySelectorAll('#history li').length")
        httpx.post(address + path, json=body, timeout=60, trust_env=False).raise_for_status()
        expect(page.locator("#history li")).to_have_count(before + (1 if body else -1))


def test_a_wrong_answer_is_kept_for_the_next_update(visit: Open) -> None:
    page = visit()
    ask(page, *files("green"))
    found = card(page, "green 0.png")
    found.get_by_label("Wrong: what green 0.png shows").select_option("+")
    page.get_by_label("Name of the class").fill("kettle")
    page.get_by_role("button", name="Keep it").click()
    expect(found).to_contain_text("Kept for the next update as “kettle”")
    expect(page.locator("#tray")).to_have_text("1")
    found.get_by_role("link", name="Teach").click()
    expect(page.get_by_label("Class name")).to_have_value("kettle")
    expect(page.locator(".thumbs li")).to_have_count(1)
    page.get_by_role("link", name="Classify").click()
    found.get_by_role("button", name="Take back").click()
    expect(page.locator("#tray")).to_be_hidden()


def test_several_answers_are_corrected_at_once(visit: Open) -> None:
    page = visit()
    ask(page, *files("green", "red", "green"))
    expect(page.locator(".card .bars")).to_have_count(3)
    card(page, "red 1.png").get_by_role("button", name="Right").click()
    expect(card(page, "red 1.png").get_by_role("button", name="Right")).to_have_attribute("aria-pressed", "true")
    for name in ("green 0.png", "green 2.png"):
        page.get_by_label(f"Choose {name}").check()
    expect(page.locator("#correct-count")).to_have_text("2 pictures chosen")
    page.get_by_label("They are").fill("kettle")
    page.get_by_role("button", name="Keep for the next update").click()
    expect(page.locator("#tray")).to_have_text("2")
    expect(page.locator("#correct-many")).to_be_hidden()


def test_classes_are_looked_at_and_renamed(visit: Open) -> None:
    page = visit("#model")
    rows = page.locator("#classes tr")
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Rename blue").click()
    page.get_by_label("New name").fill("sky <b>")
    page.get_by_role("button", name="Rename", exact=True).click()
    expect(rows.nth(1)).to_contain_text("sky <b>")
    expect(page.locator("#history li").first).to_contain_text("Renamed blue to sky <b>")
    page.get_by_role("button", name="Undo the last change").click()
    expect(rows.nth(1)).to_contain_text("blue")
    expect(page.locator("#summary")).to_contain_text("3 classes, learned from")
    page.get_by_text("Inside the model").click()
    page.get_by_label("Pictures of").select_option("red")
    expect(page.locator("#experts figure")).to_have_count(2)
    assert page.locator("#experts rect").count() > 0


def test_the_camera_and_the_clipboard_bring_pictures(visit: Open) -> None:
    page = visit(permissions=["camera"])
    page.get_by_role("button", name="Camera").first.click()
    wait_for(lambda: page.evaluate("document.getElementById('viewfinder').videoWidth > 0"))
    page.get_by_role("button", name="Take a picture").click()
    expect(page.locator("#shots")).to_have_text("1 picture taken")
    page.get_by_role("button", name="Done").click()
    expect(page.locator(".card .bars")).to_have_count(1)
    page.evaluate(
        """async () => {
            const blob = await new Promise((done) => document.querySelector('.card canvas').toBlob(done));
            const data = new DataTransfer();
            data.items.add(new File([blob], 'pasted.png', {type: 'image/png'}));
            dispatchEvent(new ClipboardEvent('paste', {clipboardData: data}));
        }"""
    )
    expect(page.locator(".card .bars")).to_have_count(2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Open, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = visit(color_scheme=scheme, bypass_csp=True)
    ask(page, *files("red", "blue"), {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"x"})
    expect(page.locator(".card .judge")).to_have_count(2)
    for part in ("Classify", "Teach", "Model"):
        page.get_by_role("link", name=part).first.click()
        found = axe.run(page).response["violations"]
        bad = [f"{part}: {rule['id']}: {rule['nodes'][0]['html']}" for rule in found if rule["impact"] in ("serious", "critical")]
        assert bad == []


def test_it_can_be_used_with_the_keyboard_alone(visit: Open) -> None:
    page = visit()
    page.on("filechooser", lambda _: None)  # choosers are caught from now on: the first may come before the browser has heard of it
    expect(page.locator("#state")).to_contain_text("classes")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.hash") == "#teach":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Teach it something new")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.placeholder") == "Kettle"
    page.keyboard.type("cup")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Choose pictures"
    with page.expect_file_chooser() as chosen:
        page.keyboard.press("Enter")
    chosen.value.set_files(files("red", "blue"))
    expect(page.locator("#teach-count")).to_have_text("2 pictures of 1 class")


def test_on_a_phone_nothing_runs_over_the_edge(visit: Open) -> None:
    page = visit(viewport={"width": 390, "height": 844})
    ask(page, *files("red"))
    expect(page.locator(".card .bars")).to_have_count(1)
    for part in ("Classify", "Teach", "Model"):
        page.get_by_role("link", name=part).first.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.get_by_role("navigation").bounding_box()
    assert box["y"] + box["height"] == pytest.approx(844, abs=1), "the parts are within the thumb's reach"


def test_the_token_opens_the_page_and_a_wrong_one_does_not(visit: Open, taught_file: Path, tmp_path: Path) -> None:
    shutil.copy(taught_file, tmp_path)
    token = "a-100%-long-enough-token"
    (tmp_path / "token").write_text(token)
    with server(tmp_path / "shop.smope", f"--token={tmp_path / 'token'}") as guarded:
        assert guarded.endswith("#token=a-100%25-long-enough-token")
        page = visit(at=guarded.split("#")[0])
        expect(page.get_by_label("Token")).to_be_visible()
        held: list[Any] = []
        slow = threading.Event()  # while it is set, the server says nothing more of the model
        slow.set()
        page.route("**/about", lambda route: held.append(route) if slow.is_set() else route.continue_())
        page.get_by_label("Token").fill("a-wrong-token")
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("alert")).to_contain_text("missing or wrong")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Go on").click()
        slow.clear()
        for route in held:
            route.continue_()
        expect(page.locator("#state")).to_have_text("3 classes")
        other = visit(at=guarded)
        expect(other.locator("#state")).to_have_text("3 classes")
        assert "token" not in other.url


def test_the_interface_is_described_without_asking_others(visit: Open) -> None:
    page = visit("docs")
    expect(page.get_by_role("heading", name="POST /predict")).to_be_visible()


def test_the_model_is_saved_as_onnx(visit: Open) -> None:
    page = visit("#model")
    with page.expect_download(timeout=180_000) as saved:
        page.locator("#save-onnx").click()
    assert saved.value.suggested_filename == "shop.onnx"
    expect(page.locator("#notice")).to_be_hidden()
