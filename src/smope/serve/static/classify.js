// Pictures in, cards out. One small request a picture, a few at a time: the server lays them together.

import { predict } from "./server.js";
import { byId, count, dropArea, lane, make, percent, said, thumbnail } from "./tools.js";

const AT_ONCE = 4;
const asking = lane(AT_ONCE);
const answers = new Map(); // card -> {name, ...prediction}
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

function correction(file, place, teach) {
  const field = make("input", { list: "known", required: true, maxlength: 200, placeholder: "This is a …", "aria-label": `What ${file.name} shows`, autocomplete: "off" });
  const form = make("form", {}, field, make("button", { class: "small" }, "Correct"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = field.value.trim();
    if (!name) return;
    teach(file, name);
    form.replaceWith(make("p", { class: "good", role: "status" }, `Kept for the next update as “${name}”. `, make("a", { href: "#teach" }, "Teach")));
  });
  place.append(form);
}

function fill(place, file, told, teach) {
  const none = told.unknown === true;
  place.replaceChildren(
    make("h2", {}, none ? "None of these" : told.label),
    none ? make("p", {}, make("small", {}, "It is unlike every class. The nearest:")) : "",
    bars(told.top, none),
    make("small", {}, file.name + (told.calibrated ? "" : " · rough figures: too few pictures so far")),
  );
  correction(file, place, teach);
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
  byId("results").insertBefore(card, before);
  show();
  if (file.size > limit) {
    refuse(card, place, file, `It is larger than ${Math.floor(limit / 2 ** 20)} MB. Reduce the picture first.`);
  } else {
    try {
      const told = await asking(() => predict(file, (words) => { state.textContent = `Waiting: ${words}`; }));
      if (!answers.has(card)) return;
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

/** `teach(file, name)` keeps a corrected picture. Gives back what takes pictures from anywhere on the page. */
export function begin(teach) {
  const take = (files) => { // the newest come first, and those of one go in their order
    const before = byId("results").firstChild;
    for (const file of files) one(file, teach, before);
  };
  byId("classify-drop").append(dropArea("Drop pictures here, paste them, or", take));
  byId("save-csv").addEventListener("click", csv);
  byId("clear").addEventListener("click", () => { answers.clear(); byId("results").replaceChildren(); show(); });
  return take;
}

