// Small things that every part of the page uses. Text is set as text, never as markup.

export const byId = (id) => document.getElementById(id);

/** make("p", {class: "hint", onclick: f}, "words", another) -> an element. */
export function make(kind, attributes = {}, ...inside) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...inside.filter((part) => part !== null && part !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function drawn(kind, attributes, ...inside) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

export const icon = (name) => drawn("svg", { "aria-hidden": "true" }, drawn("use", { href: `#i-${name}` }));

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

export const percent = (share) => `${Math.round(100 * share)} %`;

/** Seconds as people say them. */
export function duration(seconds) {
  if (seconds < 90) return `about ${Math.max(1, Math.ceil(seconds / 5) * 5)} s`;
  return `about ${Math.ceil(seconds / 60)} min`;
}

/** Runs at most `most` of the given works at a time. */
export function lane(most) {
  const waiting = [];
  let running = 0;
  const next = () => {
    while (running < most && waiting.length) {
      running += 1;
      waiting.shift()().finally(() => { running -= 1; next(); });
    }
  };
  return (work) => new Promise((done, failed) => { waiting.push(() => work().then(done, failed)); next(); });
}

const removals = []; // {words, back}

function showRemovals() {
  const last = removals.at(-1);
  byId("removed").hidden = !last;
  byId("removed-words").textContent = last ? last.words : "";
}

/** Say what was removed, and offer to take it back: the last removal first, and then those before it. */
export function removed(words, back) {
  removals.push({ words, back });
  showRemovals();
}

export function beginRemovals() {
  byId("removed-back").addEventListener("click", () => { removals.pop()?.back(); showRemovals(); });
  byId("removed-close").addEventListener("click", () => { removals.length = 0; showRemovals(); });
}

export function notice(words) {
  const place = byId("notice");
  place.hidden = !words;
  place.textContent = words || "";
}

/** Words for a refused request. */
export const said = (error) => [error.message, error.remedy].filter(Boolean).join(" ");

const thumbLane = lane(2);

/** A small picture of a file, drawn when there is time. */
export function thumbnail(file, side) {
  const canvas = make("canvas", { role: "img", "aria-label": file.name, width: side, height: side });
  thumbLane(async () => {
    try {
      const bitmap = await createImageBitmap(file);
      const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
      canvas.width = Math.max(1, Math.round(bitmap.width * scale));
      canvas.height = Math.max(1, Math.round(bitmap.height * scale));
      canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
      bitmap.close();
    } catch {
      canvas.setAttribute("aria-label", `${file.name}, which cannot be shown`);
      canvas.classList.add("blank");
    }
  });
  return canvas;
}

const PICTURE = /\.(jpe?g|png|webp|bmp|gif|tiff?|heic|heif)$/i;
const isPicture = (file) => file.type.startsWith("image/") || PICTURE.test(file.name);

const listed = (folder) => new Promise((done, failed) => { // a folder tells its entries a hundred at a time
  const reader = folder.createReader(), found = [];
  const more = () => reader.readEntries((some) => { if (some.length) { found.push(...some); more(); } else done(found); }, failed);
  more();
});

async function within(entry) {
  if (entry.isFile) return [await new Promise((done, failed) => entry.file(done, failed))];
  return (await Promise.all((await listed(entry)).map(within))).flat();
}

/** Everything that was dropped: pictures, and of folders their pictures by the folder that they lie in, as [{name, files}]. */
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return { files: [...transfer.files], folders: [] };
  const folders = new Map(), files = [];
  const add = (name, more) => folders.set(name, [...(folders.get(name) || []), ...more.filter(isPicture)]);
  for (const entry of entries) {
    if (entry.isFile) { files.push(...await within(entry)); continue; }
    for (const inner of await listed(entry)) add(inner.isDirectory ? inner.name : entry.name, await within(inner));
  }
  return { files, folders: [...folders].filter(([, found]) => found.length).map(([name, found]) => ({ name, files: found })) };
}

/** The same of a folder that was chosen in a dialog. */
export function chosen(list) {
  const folders = new Map();
  for (const file of [...list].filter(isPicture)) {
    const parts = file.webkitRelativePath.split("/"), name = parts.at(parts.length > 2 ? 1 : 0);
    folders.set(name, [...(folders.get(name) || []), file]);
  }
  return [...folders].map(([name, files]) => ({ name, files }));
}

/** An area to drop pictures on, with buttons for files and the camera. `taken` gets a list of files. */
export function dropArea(words, taken, tight = false) {
  const input = make("input", { type: "file", accept: "image/*", multiple: true, hidden: true, onchange: () => { taken([...input.files]); input.value = ""; } });
  const area = make("div", { class: tight ? "drop tight" : "drop" }, icon("upload"), make("p", {}, words),
    make("div", { class: "tools" },
      make("button", { type: "button", onclick: () => input.click() }, icon("upload"), "Choose pictures"),
      make("button", { type: "button", onclick: () => camera(taken) }, icon("camera"), "Camera")), input);
  area.addEventListener("dragover", (event) => { event.preventDefault(); area.classList.add("over"); });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => {
    event.preventDefault();
    area.classList.remove("over");
    if ([...event.dataTransfer.items].some((item) => item.webkitGetAsEntry?.()?.isDirectory)) return; // for the page: a class a folder
    event.stopPropagation();
    const files = [...event.dataTransfer.files];
    if (files.length) taken(files);
  });
  return area;
}

/** The camera, where the browser allows it; else the telephone's own. */
async function camera(taken) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    const input = make("input", { type: "file", accept: "image/*", capture: "environment", onchange: () => taken([...input.files]) });
    input.click();
    return;
  }
  const dialog = byId("camera-dialog"), video = byId("viewfinder");
  let shots = 0;
  byId("shots").textContent = "";
  video.srcObject = stream;
  byId("shoot").onclick = () => {
    const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => {
      if (!blob) return; // the camera shows nothing yet
      shots += 1;
      byId("shots").textContent = `${count(shots, "picture")} taken`;
      taken([new File([blob], `camera ${new Date().toLocaleTimeString("en-GB")} ${shots}.jpg`, { type: "image/jpeg" })]);
    }, "image/jpeg", 0.92);
  };
  byId("camera-close").onclick = () => dialog.close();
  dialog.onclose = () => { for (const track of stream.getTracks()) track.stop(); video.srcObject = null; };
  dialog.showModal();
}

/** A question in a dialog: resolves to true or to the words given, to false for `no`, and to null if it is cancelled. `among` gives names to choose from. */
export function ask({ title, text = "", label = "", value = "", among = null, yes, no = "", grave = false }) {
  const dialog = byId("ask"), field = byId(among ? "ask-choice" : "ask-value");
  byId("ask-choice").hidden = !among;
  byId("ask-value").hidden = Boolean(among);
  byId("ask-value").required = Boolean(label) && !among;
  if (among) field.replaceChildren(...among.map((name) => make("option", {}, name)));
  byId("ask-no").hidden = !no;
  byId("ask-no").textContent = no;
  byId("ask-yes").className = grave ? "grave" : "main";
  byId("ask-title").textContent = title;
  byId("ask-text").textContent = text;
  byId("ask-label").hidden = !label;
  byId("ask-label").firstElementChild.textContent = label;
  byId("ask-yes").textContent = yes;
  field.value = value || (among ? among[0] : "");
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((done) => {
    dialog.onclose = () => done(dialog.returnValue === "no" ? false : dialog.returnValue !== "yes" ? null : label ? field.value.trim() : true);
  });
}
