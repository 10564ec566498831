// Pictures in, cards out. One small request a picture, a few at a time: the server lays them together.

import { predict } from "./server.js";
import { ask, byId, count, dropArea, lane, make, percent, removed, said, thumbnail } from "./tools.js";

const AT_ONCE = 4;
const asking = lane(AT_ONCE);
const answers = new Map(); // card -> {name, ...prediction}
const files = new WeakMap(); // card -> its file
let limit = Infinity;

export const setLimit = (bytes) => { limit = bytes || Infinity; };

function show() {
  const known = [...answers.values()].filter(Boolean).length;
  byId("classify-tools").hidden = answers.size === 0;
  byId("classify-count").textContent = known < answers.size ? `${known} of ${count(answers.size, "picture")}` : count(answers.size, "picture");
}

function bars(top, none) {
  const list = make("dl", { class: none ? "bars faint" : "bars" });
  for (const { label, probability } of top) {
    const filled = make("i");
    filled.style.width = `${100 * probability}%`;
    list.append(make("dt", { title: label }, label), make("dd", {}, percent(probability)), make("dd", { class: "bar", "aria-hidden": "true" }, filled));
  }
  return list;
}

const SURE = 0.8, CLOSE = 0.5; // below the first an answer is doubted; a second one this near to it is named beside it

/** The answer as a person would say it. */
function answered({ unknown, label, top }) {
  if (unknown === true) return "None of these";
  const [first, second] = top;
  if (first.probability >= SURE || !second) return label;
  return second.probability >= CLOSE * first.probability ? `${label} or ${second.label}` : `Perhaps ${label}`;
}

const classNames = () => [...byId("known").options].map((option) => option.value);

function selected() { return [...answers.entries()].filter(([card]) => card.querySelector(".pick")?.checked); }

function showSelected() {
  const chosen = selected().length;
  byId("correct-many").hidden = chosen === 0;
  byId("correct-count").textContent = `${count(chosen, "picture")} chosen`;
}

/** Keep a picture of this class for the next update, and say so in place of the question. */
function corrected(file, place, name, teach) {
  const back = teach(file, name);
  const words = make("p", { class: "kept", role: "status" }, `Kept for the next update as “${name}”. `,
    make("button", { type: "button", class: "small", onclick: () => { back(); words.replaceWith(judged(file, place, teach)); } }, "Take back"), " ", make("a", { href: "#teach" }, "Teach"));
  (place.querySelector(".judge") || place.querySelector(".kept")).replaceWith(words);
}

/** Right, or wrong and what it is. */
function judged(file, place, teach) {
  const right = make("button", { type: "button", class: "small", "aria-label": `Right: ${file.name}`, "aria-pressed": "false", onclick: () => {
    right.setAttribute("aria-pressed", String(right.getAttribute("aria-pressed") === "false"));
  } }, "✓ Right");
  const other = make("select", { class: "small", "aria-label": `Wrong: what ${file.name} shows`, onchange: async () => {
    const chosen = other.value;
    other.value = "";
    const name = chosen !== "+" ? chosen : await ask({ title: "What is it?", label: "Name of the class", yes: "Keep it" });
    if (name) corrected(file, place, name, teach);
  } });
  const fillIn = () => other.replaceChildren(make("option", { value: "" }, "Wrong, it is …"), ...classNames().map((name) => make("option", {}, name)), make("option", { value: "+" }, "another class …"));
  fillIn();
  other.addEventListener("pointerdown", fillIn); // classes may have been taught since
  other.addEventListener("focus", fillIn);
  return make("div", { class: "judge" }, right, other);
}

function caution({ calibrated, unknown }) {
  const doubts = [calibrated ? "" : "the figures are rough", unknown === null ? "whether it is none of these cannot be said yet" : ""].filter(Boolean);
  return `Too few pictures so far: ${doubts.join(", and ")}.`;
}

function fill(place, file, told, teach) {
  const none = told.unknown === true;
  place.replaceChildren(
    make("h2", {}, answered(told)),
    none ? make("p", {}, make("small", {}, "It is unlike every class. The nearest:")) : "",
    bars(told.top, none || told.top[0].probability < SURE),
    judged(file, place, teach),
    make("small", {}, make("label", {}, make("input", { type: "checkbox", class: "pick", "aria-label": `Choose ${file.name}`, onchange: showSelected }), ` ${file.name}`)),
    told.calibrated && told.unknown !== null ? "" : make("small", {}, caution(told)),
  );
}

function refuse(card, place, file, words) {
  answers.set(card, { name: file.name, error: words });
  place.replaceChildren(make("h2", { class: "bad" }, "Not read"), make("p", {}, words), make("small", {}, file.name));
}

async function one(file, teach, before) {
  const state = make("p", { role: "status" }, "Looking…");
  const place = make("div", {}, state, make("small", {}, file.name));
  const card = make("li", { class: "card" }, thumbnail(file, 480), place);
  answers.set(card, null);
  files.set(card, file);
  byId("results").insertBefore(card, before);
  show();
  if (file.size > limit) {
    refuse(card, place, file, `It is larger than ${Math.floor(limit / 2 ** 20)} MB. Reduce the picture first.`);
  } else {
    try {
      const told = await asking(() => predict(file, (words) => { state.textContent = `Waiting: ${words}`; }));
      if (!answers.has(card)) return; // cleared meanwhile
      answers.set(card, told);
      fill(place, file, told, teach);
    } catch (error) {
      if (!answers.has(card)) return; // cleared meanwhile
      refuse(card, place, file, said(error));
    }
  }
  show();
}

function csv() {
  const plain = (value) => (/^[=+\-@\t\r]/.test(value) ? `'${value}` : value); // a spreadsheet would take it for a formula
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const lines = [["path", "label", "probability", "unknown", "error"]];
  for (const told of [...answers.values()].filter(Boolean)) {
    lines.push([told.name, told.label ?? "", told.top?.[0]?.probability.toFixed(6) ?? "", told.unknown ?? "", told.error ?? ""]);
  }
  const blob = new Blob([lines.map((line) => line.map(String).map(plain).map(quoted).join(",")).join("\n") + "\n"], { type: "text/csv" });
  const link = make("a", { href: URL.createObjectURL(blob), download: "predictions.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** `teach(file, name)` keeps a corrected picture, and gives back what takes it out again. Gives back what takes pictures from anywhere on the page. */
export function begin(teach) {
  const take = (files) => { // the newest come first, and those of one go in their order
    const before = byId("results").firstChild;
    for (const file of files) one(file, teach, before);
  };
  byId("classify-drop").append(dropArea("Drop pictures here, paste them, or", take));
  byId("save-csv").addEventListener("click", csv);
  byId("clear").addEventListener("click", () => {
    const before = new Map(answers), cards = [...byId("results").children];
    answers.clear();
    byId("results").replaceChildren();
    show();
    showSelected();
    removed(`${count(cards.length, "answer")} cleared.`, () => {
      for (const [card, told] of before) answers.set(card, told);
      byId("results").append(...cards);
      show();
      showSelected();
    });
  });
  byId("correct-many").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = byId("correct-name").value.trim();
    if (!name) return;
    for (const [card] of selected()) {
      card.querySelector(".pick").checked = false;
      corrected(files.get(card), card.querySelector("div"), name, teach);
    }
    byId("correct-name").value = "";
    showSelected();
  });
  return take;
}

