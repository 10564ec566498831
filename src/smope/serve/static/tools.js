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

/** A question in a dialog: resolves to true or to the words given, and to null if it is cancelled. */
export function ask({ title, text = "", label = "", value = "", known = false, yes }) {
  const dialog = byId("ask"), field = byId("ask-value");
  byId("ask-title").textContent = title;
  byId("ask-text").textContent = text;
  byId("ask-label").hidden = !label;
  byId("ask-label").firstElementChild.textContent = label;
  byId("ask-yes").textContent = yes;
  field.required = Boolean(label);
  field.value = value;
  if (known) field.setAttribute("list", "known"); else field.removeAttribute("list");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => {
    dialog.onclose = () => done(dialog.returnValue !== "yes" ? null : label ? field.value.trim() : true);
  });
}
