"""`smope report` on the committed records, and once in a browser where there is one."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

RECORDS = Path(__file__).parents[2] / "results" / "emoji-r"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_a_page_of_all_committed_lines_is_written_and_said(call, tmp_path):
    shown = call("report", RECORDS, "-o", "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    count = len(list(RECORDS.rglob("record.json")))
    assert shown.exit_code == 0 and shown.stdout.startswith("wrote a.html (") and f"from {count} records" in shown.stdout
    for folder in RECORDS.iterdir():
        if folder.is_dir():
            assert f">{folder.name}<" in text
    assert "Experts in use" in text and str(RECORDS) not in text


def test_the_name_is_report_html_and_the_line_to_compare_with_can_be_chosen(call, tmp_path):
    shown = call("report", RECORDS / "smope", RECORDS / "ncm", "--against", "ncm")
    assert shown.exit_code == 0 and "minus that of ncm" in (tmp_path / "report.html").read_text(encoding="utf-8")
    shown = call("report", RECORDS, "--against", "nmc", "-o", "b.html")
    assert shown.exit_code == 2 and "'ncm'" in shown.stderr and not (tmp_path / "b.html").exists()


def test_another_file_is_replaced_by_force_alone(call, tmp_path):
    (tmp_path / "a.html").write_text("mine")
    refused = call("report", RECORDS / "ncm", "-o", "a.html")
    assert refused.exit_code == 2 and "--force" in refused.stderr and (tmp_path / "a.html").read_text() == "mine"
    assert call("report", RECORDS / "ncm", "-o", "a.html", "--force").exit_code == 0
    assert call("report", RECORDS / "ncm", "-o", "a.html").exit_code == 0  # now it is ours


def test_a_folder_without_records_is_an_error_that_says_so(call, tmp_path):
    (tmp_path / "empty").mkdir()
    shown = call("report", "empty")
    assert shown.exit_code == 2 and "no record.json" in shown.stderr and not (tmp_path / "report.html").exists()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [360, 1280])
def test_in_a_browser_the_page_is_as_wide_as_the_window_and_its_letters_can_be_read(call, tmp_path, width):
    """A page around it, of the width of a phone, measures it: how wide it is, and the smallest letters of its drawings in pixels."""
    call("report", RECORDS, "-o", "a.html")
    inner = html.escape((tmp_path / "a.html").read_text(encoding="utf-8"))
    script = """onload = () => {
      const page = document.querySelector("iframe").contentDocument, view = page.defaultView;
      const sizes = [...page.querySelectorAll("svg text")].filter(t => t.getBoundingClientRect().width)
        .map(t => t.getScreenCTM().a * parseFloat(view.getComputedStyle(t).fontSize));
      document.title = `measured ${page.documentElement.scrollWidth} ${Math.min(...sizes)} ${sizes.length}`;
    };"""
    frame = f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{inner}"></iframe>'
    (tmp_path / "outer.html").write_text(f"<!doctype html><title></title><script>{script}</script>{frame}", encoding="utf-8")
    quiet = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    command = [CHROMIUM, "--headless", "--no-sandbox", *quiet, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000"]
    page = tmp_path / "outer.html"
    done = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    measured = re.search(r"<title>measured (\d+) ([\d.]+) (\d+)</title>", done.stdout)
    assert measured is not None, done.stderr[-500:]
    assert int(measured[1]) <= width and float(measured[2]) >= 9.5 and int(measured[3]) > 20
