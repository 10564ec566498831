// What the model knows, how it came to know it, and which experts it asks.

import { get, isOver, post } from "./server.js";
import { ask, byId, count, drawn, make, notice, percent, said } from "./tools.js";

const EMPTY = { loading: "The model is being loaded.", failed: "The model cannot be loaded.", empty: "No class yet." };
let changed = () => {}, watch = () => {}, experts = null;

async function change(path, body) {
  notice("");
  try {
    const job = await post(path, body);
    if (!isOver(job)) await watch(job.id);
  } catch (error) {
    notice(said(error));
  }
  changed();
}

/** Made when it is asked for, which takes a while; a link could not ask with POST. */
async function saveOnnx() {
  const button = byId("save-onnx"), file = byId("file").textContent;
  button.disabled = true;
  notice("The ONNX file is being made.");
  try {
    const url = URL.createObjectURL(await post("/model.onnx"));
    make("a", { href: url, download: `${file.replace(/\.[^.]*$/, "")}.onnx` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
    notice("");
  } catch (error) {
    notice(said(error));
  }
  button.disabled = false;
}

async function rename(name) {
  const to = await ask({ title: `Rename “${name}”`, label: "New name", value: name, yes: "Rename" });
  if (to && to !== name) change("/classes/rename", { name, to });
}

async function merge(name) {
  const into = await ask({ title: `Merge “${name}”`, text: "Its pictures will count as another class's.", label: "Into the class", among: [...byId("known").options].map((option) => option.value).filter((other) => other !== name), yes: "Merge" });
  if (into) change("/classes/merge", { name, into });
}

async function remove(name) {
  const text = "It will never be the answer again. One step can be undone.";
  if (await ask({ title: `Remove “${name}”?`, text, yes: "Remove", grave: true })) change("/classes/remove", { name });
}

function row({ name, pictures, accuracy }) {
  const act = (label, does) => make("button", { class: "small", "aria-label": `${label} ${name}`, onclick: () => does(name) }, label);
  const cell = (kind, ...inside) => make("td", { class: kind, role: "cell" }, ...inside);
  return make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }, name), cell("number", String(pictures)),
    cell("number", accuracy == null ? "not checked" : percent(accuracy / 100)),
    cell("acts", act("Rename", rename), act("Merge", merge), act("Remove", remove)));
}

function told({ what, when, classes, pictures, new: fresh }) {
  const known = classes.filter((name) => !fresh.includes(name));
  const words = {
    learn: () => [fresh.length ? `Learned ${fresh.join(", ")}` : "", known.length ? `${fresh.length ? "and more" : "More"} pictures of ${known.join(", ")}` : ""].filter(Boolean).join(" ") + ` (${count(pictures, "picture")})`,
    rename: () => `Renamed ${classes[0]} to ${classes[1]}`,
    remove: () => `Removed ${classes[0]}`,
    merge: () => `Merged ${classes[0]} into ${classes[1]}`,
  };
  return make("li", {}, `${words[what]()} `, make("time", { datetime: when }, new Date(when).toLocaleString()));
}

const WIDE = 300, HIGH = 90, EDGE = 8, AXIS = 30;

/** How well each update's classes were recognised, as a line. */
function curve(history) {
  const points = history.filter(({ accuracy }) => accuracy != null).map(({ accuracy, when }) => ({ accuracy, when }));
  byId("curve").hidden = points.length < 2;
  if (points.length < 2) return;
  const x = (index) => AXIS + (index * (WIDE - AXIS - EDGE)) / (points.length - 1), y = (accuracy) => EDGE + ((100 - accuracy) * (HIGH - 2 * EDGE)) / 100;
  const spots = points.map(({ accuracy, when }, index) => drawn("circle", { cx: x(index), cy: y(accuracy), r: 3 }, drawn("title", {}, `${new Date(when).toLocaleString()}: ${Math.round(accuracy)} %`)));
  const lines = [0, 50, 100].flatMap((share) => [drawn("line", { x1: AXIS, x2: WIDE, y1: y(share), y2: y(share) }), drawn("text", { x: AXIS - 4, y: y(share) + 4, "text-anchor": "end" }, `${share}`)]);
  const picture = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `Recognised, in percent, after each of ${points.length} updates: ${points.map(({ accuracy }) => Math.round(accuracy)).join(", ")}` },
    ...lines, drawn("polyline", { points: points.map(({ accuracy }, index) => `${x(index)},${y(accuracy)}`).join(" ") }), ...spots);
  byId("curve").replaceChildren(picture, make("figcaption", {}, "Percent recognised of the classes taught, update by update"));
}

/** The model in a sentence: what it knows, and how well. */
function summary(classes) {
  const checked = classes.filter(({ accuracy }) => accuracy != null), pictures = classes.reduce((sum, one) => sum + one.pictures, 0);
  const weak = [...checked].sort((one, other) => one.accuracy - other.accuracy)[0];
  if (!classes.length) return "";
  return `${count(classes.length, "class", "classes")}, learned from ${count(pictures, "picture")}. `
    + (checked.length ? `${checked.length === classes.length ? "" : `${checked.length} of them could be checked. `}On average ${percent(checked.reduce((sum, one) => sum + one.accuracy, 0) / checked.length / 100)} recognised`
      + (weak.accuracy < 100 ? `, least well “${weak.name}” (${percent(weak.accuracy / 100)}).` : ".") : "None could be checked yet: teach more pictures of each.");
}

const CELL = 10;

function grid(block, shares) {
  const heads = shares.length, width = shares[0].length;
  const used = shares.flat().filter((share) => share > 0).length;
  const picture = drawn("svg", { viewBox: `0 0 ${width * CELL} ${heads * CELL}`, role: "img", "aria-label": `Block ${block}: ${used} of ${heads * width} experts are chosen` });
  shares.forEach((line, head) => line.forEach((share, expert) => {
    if (share <= 0) return;
    const square = drawn("rect", { x: expert * CELL + 0.5, y: head * CELL + 0.5, width: CELL - 1, height: CELL - 1, "fill-opacity": Math.max(0.08, share) });
    square.append(drawn("title", {}, `head ${head + 1}, expert ${expert + 1}: chosen by ${percent(share)}`));
    picture.append(square);
  }));
  picture.style.maxWidth = `${2.5 * width * CELL}px`; // a few experts are not blown up
  return make("figure", {}, picture, make("figcaption", {}, `Block ${block}: ${used} of ${heads * width} experts chosen`));
}

function drawExperts() {
  const of = byId("experts-of").value;
  const shares = of === "" ? experts.usage : experts.classes[of];
  byId("experts").replaceChildren(...shares.map((one, index) => grid(experts.blocks[index] + 1, one)));
}

async function showExperts() {
  experts = await get("/experts");
  byId("experts-part").hidden = experts.usage.length === 0 || experts.images === 0;
  if (byId("experts-part").hidden) return;
  const choice = byId("experts-of"), before = choice.value;
  const option = (value, words) => make("option", { value }, words);
  choice.replaceChildren(option("", `all classes (${count(experts.images, "picture")})`), ...Object.keys(experts.classes).map((name) => option(name, `${name}, when last taught`)));
  choice.value = before in experts.classes ? before : "";
  drawExperts();
}

/** Draw everything anew. */
export async function refresh(about) {
  const [classes, history] = await Promise.all([get("/classes"), get("/history")]);
  byId("known").replaceChildren(...classes.map(({ name }) => make("option", { value: name })));
  byId("classes").replaceChildren(...classes.map(row));
  byId("classes-part").hidden = !classes.length;
  byId("model-empty").hidden = Boolean(classes.length);
  byId("model-empty").textContent = EMPTY[about.model] ?? EMPTY.empty;
  byId("history").replaceChildren(...history.map(told).reverse());
  byId("history-part").hidden = !history.length;
  byId("history").reversed = true;
  byId("summary").textContent = summary(classes);
  curve(history);
  byId("inside").hidden = !about.method;
  byId("facts").textContent = about.method ? `${about.method} on ${about.backbone}, which sees ${about.image_size} × ${about.image_size} pixels` : "";
  byId("undo-last").disabled = !about.can_undo;
  byId("save-model").hidden = !history.length;
  byId("save-onnx").hidden = !about.can_export;
  await showExperts();
  return classes;
}

export function begin(then, watchJob) {
  changed = then;
  watch = watchJob;
  byId("undo-last").addEventListener("click", () => change("/undo"));
  byId("save-onnx").addEventListener("click", saveOnnx);
  byId("experts-of").addEventListener("change", drawExperts);
}
