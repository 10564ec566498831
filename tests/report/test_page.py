"""The page is whole, safe, still, and says what the records say."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from smope.errors import ConfigError, SmopeError
from smope.report.page import page, write_page

EVIL = '<script>alert("x")</script>'
VOID = {"meta", "br"}


class Tree(HTMLParser):
    """Reads a page, refuses what is badly nested, and keeps elements as (path, attributes) and texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.elements.append(((*self.open, tag), dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(("/".join(self.open), data))

    def all(self, tag):
        return [attributes for path, attributes in self.elements if path[-1] == tag]

    def text(self, tag):
        return [data for path, data in self.texts if path.endswith(tag)]


@pytest.fixture
def records(answering):
    """SMoPE over two seeds with its counts, a linear head (both with evil names), an upper bound, and a line of another data set."""
    facts = [{"images_seen": 4 * (t + 1), "usage": [[[4 * (t + 1), 2, 0]], [[1, 1, 4 * t + 4]]]} for t in range(3)]
    where = {
        "machine": {"processor": "Abacus & Sons", "cores": 2, "python": "3.11.7"},
        "versions": {"smope": "0.1", "commit": "c0ffee" * 6},
    }
    evil = [EVIL, "a & b", "\ud800 half"]
    predictions = answering("1111|1111|1110")["predictions"]
    whole = {"task_sizes": [3], "accuracy": [[91.0]], "predictions": [[image, 0, 0] for image, *_ in predictions]}
    return [
        answering("1110|1110|1111", facts=facts, config={"method": {"blocks": [0, 5]}}, class_order=evil, **where),
        answering("1110|1010|1111", seed=1, facts=facts, config={"method": {"blocks": [0, 5]}}, **where),
        answering("1000|0010|0001", "emoji-r/linear", class_order=evil, protocol=EVIL, seconds=12.0, trainable_parameters=0),
        {**answering("1", "emoji-r/joint"), **whole, "faa": 91.0},
        answering("10|11", "cub-200/smope", dataset={"name": "cub-200"}),
    ]


@pytest.fixture
def tree(records):
    return Tree(page(records))


def test_it_is_well_nested_with_one_title_and_no_skipped_heading(tree):
    levels = [int(path[-1][1]) for path, _ in tree.elements if re.fullmatch(r"h\d", path[-1])]
    assert levels.count(1) == 1 and levels[0] == 1 and levels.count(2) == 2
    assert all(deeper <= level + 1 for level, deeper in pairwise(levels))
    assert tree.text("h1") == ["cub-200, emoji-r: runs side by side"] and tree.all("html")[0]["lang"] == "en"


def test_what_is_pointed_at_is_there_and_only_once(tree):
    ids = [attributes["id"] for _, attributes in tree.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in tree.all("a")]
    labels = [word for _, attributes in tree.elements for word in attributes.get("aria-labelledby", "").split()]
    assert links and labels and {link.removeprefix("#") for link in links} | set(labels) <= set(ids)


def test_every_drawing_has_a_title_and_a_description_and_every_table_a_caption_and_scopes(tree):
    drawings = sum(path[-1] == "svg" for path, _ in tree.elements)
    assert drawings and all(attributes.get("role") == "img" for attributes in tree.all("svg"))
    for word in ("title", "desc"):
        assert sum(path[-2:] == ("svg", word) for path, _ in tree.elements) == drawings
    assert len(tree.all("table")) == len(tree.all("caption")) > 4
    assert all(attributes.get("scope") in ("col", "row") for attributes in tree.all("th"))
    assert len(tree.all("figure")) == len(tree.all("figcaption"))


def test_nothing_is_asked_of_anyone(records):
    text = page(records)
    assert not re.search(r"https?:|//\w|@import|url\(|<(img|link|iframe|object|form|base)\b|\bsrc=", text.replace("// The page reads", ""))


def test_the_one_script_is_the_one_the_policy_names(records):
    text = page(records)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy
    assert "hidden" in Tree(text).all("button")[0]  # shown by the script alone


def test_a_class_called_like_a_tag_is_only_a_name(records, tree):
    text = page(records)
    assert EVIL not in text and text.count("&lt;script&gt;") >= 2 and "a &amp; b" in text
    assert any(EVIL in data for data in tree.text("li"))
    text.encode()  # half a surrogate pair would not be UTF-8


def test_the_same_records_give_the_same_bytes_in_whatever_order_they_come(records):
    again = {**records[2], "seconds": records[2]["seconds"] + 5}  # the same run once more
    assert page(records) == page(records[::-1]) == page([again, *records])


def test_the_numbers_are_those_of_the_records(records, tree):
    cells = tree.text("td")
    first, second = (records[seed]["faa"] for seed in (0, 1))
    mean = (first + second) / 2
    assert f"{mean:.2f} ± {abs(first - second) / 2:.2f}" in cells  # FAA of smope
    assert f"{records[2]['faa'] - first:+.2f}".replace("-", "−") + " *" in cells  # linear against it, on the one seed both have
    assert "Abacus & Sons, 2 cores" in tree.text("dd") and "c0ffeec0ffee" in tree.text("dd")


def test_the_matrix_is_coloured_by_its_numbers(tree):
    cells = [attributes.get("class") for path, attributes in tree.elements if path[-1] == "td" and "class" in attributes]
    assert {"a15", "a20"} <= set(cells)  # 75 and 100 percent


def test_a_section_is_there_exactly_where_its_data_is(records):
    def headings(some):
        return Tree(page(some)).text("h3")

    assert headings(records).count("Experts in use") == 1
    assert headings(records).count("Differences") == 1  # the other data set has one line
    alone = headings(records[3:4])
    assert "Classes of each task" not in alone and "Experts in use" not in alone and "Accuracy after each task" in alone


def test_the_best_that_learned_in_tasks_is_what_others_are_compared_with_unless_one_is_named(records):
    assert any("minus that of smope" in data for data in Tree(page(records)).text("caption/span"))
    assert any("minus that of linear" in data for data in Tree(page(records, against="linear")).text("caption/span"))
    with pytest.raises(ConfigError, match="linea"):
        page(records, against="linea")


def test_one_record_alone_and_bare_is_a_page_that_says_what_was_forgotten(record):
    tree = Tree(page([record]))
    assert tree.text("h1") == ["emoji-r: runs side by side"]
    cells = tree.text("td")
    change = cells.index("−20.0")
    assert cells[change - 3 : change] == ["2", "80.0", "60.0"]  # classes, learned, now


def test_only_a_page_of_ours_is_replaced_without_force(records, tmp_path):
    text, path = page(records), tmp_path / "new" / "report.html"
    write_page(text, path)
    assert path.read_text(encoding="utf-8") == text
    write_page(page(records[:1]), path)
    assert path.read_text(encoding="utf-8") == page(records[:1])
    path.write_text("<p>my notes")
    with pytest.raises(SmopeError, match="not a report of ours"):
        write_page(text, path)
    assert path.read_text() == "<p>my notes"
    write_page(text, path, force=True)
    assert path.read_text(encoding="utf-8") == text and [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_more_lines_than_one_can_follow_are_drawn_protocol_by_protocol(made):
    few = [made(f"emoji-r/m{index}", protocol=("TAP", "no TAP")[index % 2]) for index in range(16)]
    many = [*few, made("emoji-r/m16", protocol="TAP")]
    together, apart = (
        [text for text in Tree(page(records)).text("figcaption") if text.startswith("Mean over the tasks")] for records in (few, many)
    )
    assert len(together) == 1 and "stroke: solid: TAP; dashed: no TAP." in together[0]
    assert [text.partition("All lines: ")[2] for text in apart] == ["TAP.", "no TAP."]
