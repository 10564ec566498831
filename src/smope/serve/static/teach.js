// Names and pictures gathered here, sent when Teach is pressed; then progress, and what came of it.

import { drop, follow, isOver, learn, post } from "./server.js";
import { byId, count, dropArea, duration, icon, make, notice, percent, said, thumbnail } from "./tools.js";

const lessons = []; // {card, field, pictures: [{file, item}]}
let busy = false, changed = () => {}, limits = {};
let watched = { job: null, end: null };

export const setLimits = (given) => { limits = given; };

function gathered() {
  return lessons.flatMap(({ field, pictures }) => pictures.map((entry) => ({ entry, file: entry.file, name: field.value.trim() })));
}

function show() {
  const all = gathered(), named = all.filter(({ name }) => name);
  const classes = new Set(named.map(({ name }) => name)).size;
  byId("teach-now").disabled = busy || named.length === 0 || named.length < all.length;
  byId("teach-count").textContent = busy ? "" : all.length === 0 ? "No pictures yet"
    : named.length < all.length ? "Give every class a name" : `${count(all.length, "picture")} of ${count(classes, "class", "classes")}`;
  byId("tray").hidden = all.length === 0;
  byId("tray").textContent = all.length;
}

function leaveOut(lesson, entry) {
  lesson.pictures.splice(lesson.pictures.indexOf(entry), 1);
  entry.item.remove();
}

function put(lesson, files) {
  for (const file of files) {
    if (file.size > limits.picture_bytes) {
      notice(`“${file.name}” is larger than ${Math.floor(limits.picture_bytes / 2 ** 20)} MB and was left out.`);
      continue;
    }
    const entry = { file };
    const away = make("button", { type: "button", "aria-label": `Leave out ${file.name}`, onclick: () => { leaveOut(lesson, entry); show(); } }, icon("cross"));
    entry.item = make("li", {}, thumbnail(file, 160), away);
    lesson.pictures.push(entry);
    lesson.thumbs.append(entry.item);
  }
  show();
}

function dropLesson(lesson) {
  lessons.splice(lessons.indexOf(lesson), 1);
  lesson.card.remove();
  if (!lessons.length) addLesson();
}

function addLesson(name = "") {
  const field = make("input", { list: "known", maxlength: 200, placeholder: "Kettle", autocomplete: "off", oninput: show });
  field.value = name;
  const lesson = { field, pictures: [], thumbs: make("ul", { class: "thumbs" }) };
  const away = make("button", { type: "button", class: "small", onclick: () => { dropLesson(lesson); show(); } }, "Leave out this class");
  lesson.card = make("div", { class: "panel lesson" },
    make("div", { class: "side" }, make("label", {}, "Class name", field), away),
    make("div", {}, dropArea("Drop pictures of it here, or", (files) => put(lesson, files), true), lesson.thumbs));
  lessons.push(lesson);
  byId("lessons").append(lesson.card);
  show();
  return lesson;
}

/** Keep a picture for the next update. */
export function keep(file, name) {
  const free = lessons.find((lesson) => !lesson.field.value.trim() && !lesson.pictures.length);
  const lesson = lessons.find((entry) => entry.field.value.trim() === name) || free || addLesson(name);
  lesson.field.value = name;
  put(lesson, [file]);
}

export const paste = (files) => put(lessons.at(-1), files);

/** Take away what was sent; what was added meanwhile stays for the next update. */
function clear(sent) {
  for (const lesson of [...lessons]) {
    const gone = lesson.pictures.filter((entry) => sent.has(entry));
    for (const entry of gone) leaveOut(lesson, entry);
    if (gone.length && !lesson.pictures.length) dropLesson(lesson);
  }
  show();
}

let spokenAt = 0;
function progress(state) {
  const waits = state.state === "waiting" && state.place > 0;
  byId("job").hidden = false;
  byId("job-stage").textContent = waits ? `Waiting for ${count(state.place, "change")} before it` : state.stage || "Getting ready";
  byId("job-left").textContent = state.left == null || waits ? "" : `· ${duration(state.left)} left`;
  byId("job-remark").textContent = state.remark || "";
  if (state.share > 0) byId("job-bar").value = state.share; else byId("job-bar").removeAttribute("value");
  if (Date.now() - spokenAt > 10000) { // a screen reader hears it now and then, not five times a second
    spokenAt = Date.now();
    byId("spoken").textContent = `${byId("job-stage").textContent} ${state.share > 0 ? percent(state.share) : ""} ${byId("job-left").textContent}`;
  }
}

const listed = (names) => (names.length <= 5 ? names.join(", ") : `${names.slice(0, 5).join(", ")} and ${names.length - 5} more`);

function words(report) {
  const lines = [];
  const add = (text, kind = "") => lines.push(make("li", { class: kind }, text));
  if (report.new.length) add(`New: ${listed(report.new)}.`);
  if (report.known.length) add(`Known before, now with more pictures: ${listed(report.known)}.`);
  add(`${count(report.learned, "picture")} learned` + (report.held_back ? `; ${report.held_back} held back to check it with.` : "."));
  if (report.accuracy != null) add(`Of the new classes' held-back pictures, ${Math.round(report.accuracy)} % are recognised.`, report.accuracy >= 80 ? "good" : "bad");
  if (report.unjudged.length) add(`Not checked, for too few pictures (four are needed): ${listed(report.unjudged)}.`);
  if (report.estimate) {
    const { before, after, losses } = report.estimate;
    if (!losses.length) add(`No old class got noticeably worse (estimated: ${Math.round(before)} % before, ${Math.round(after)} % now).`, "good");
    for (const loss of losses) add(`Worse: “${loss.name}” lost ${Math.round(loss.points)} points${loss.to ? `, mostly to “${loss.to}”` : ""} (estimated).`, "bad");
  }
  for (const entry of report.skipped.slice(0, 10)) add(`Skipped ${entry.name}: ${entry.reason}`, "bad");
  if (report.skipped.length > 10) add(`And ${report.skipped.length - 10} more were skipped.`, "bad");
  for (const note of report.notes) add(note);
  return make("ul", {}, ...lines);
}

function tell(title, ...inside) {
  const place = byId("report");
  place.replaceChildren(make("h2", {}, title), ...inside);
  place.hidden = false;
  place.focus();
}

function finish(state) {
  byId("job").hidden = true;
  byId("spoken").textContent = "";
  if (state.state === "cancelled") return tell("Stopped", make("p", {}, "The model is as it was."));
  if (state.state === "failed") return tell("That did not work", make("p", { class: "bad" }, said({ message: state.error.error, remedy: state.error.remedy })));
  if (state.kind !== "learn") return undefined;
  const undo = make("button", { onclick: async () => {
    undo.disabled = true;
    try {
      const job = await post("/undo");
      if (!isOver(job)) return await watch(job.id); // it waits its turn, and is shown like any other change
      tell("Taken back", make("p", {}, "The model is as it was before this update."));
      changed();
    } catch (error) { notice(said(error)); }
    return undefined;
  } }, icon("undo"), "Undo this update");
  return tell(`Learned in ${duration(state.report.seconds).replace("about ", "")}`, words(state.report), undo);
}

/** Show a change that is under way, to its end. */
export function watch(job) {
  if (watched.job !== job) watched = { job, end: untilItsEnd(job) };
  return watched.end;
}

/** The same for one that somebody else began, unless there is one of ours to show. */
export const watchOthers = (job) => { if (!busy) watch(job); };

async function untilItsEnd(job) {
  busy = true;
  show();
  byId("report").hidden = true;
  byId("job-stop").onclick = () => drop(`/jobs/${job}`).catch((error) => notice(said(error)));
  try {
    finish(await follow(job, progress));
  } catch (error) {
    byId("job").hidden = true;
    notice(said(error));
  }
  busy = false;
  show();
  changed();
}

async function teach() {
  const pictures = gathered();
  const bytes = pictures.reduce((sum, { file }) => sum + file.size, 0);
  if (pictures.length > limits.learn_pictures || bytes > limits.learn_bytes) {
    return notice(`That is too much for one update: at most ${count(limits.learn_pictures, "picture")} and ${Math.floor(limits.learn_bytes / 2 ** 20)} MB.`);
  }
  notice("");
  busy = true;
  show();
  byId("report").hidden = true;
  progress({ state: "running", stage: "Sending the pictures", share: 0 });
  byId("job").scrollIntoView({ block: "nearest" });
  try {
    const job = await learn(pictures, (share) => { byId("job-bar").value = share; });
    clear(new Set(pictures.map(({ entry }) => entry)));
    await watch(job.id);
  } catch (error) {
    byId("job").hidden = true;
    notice(said(error));
  }
  busy = false;
  return show();
}

/** `then` is called whenever the model has changed. */
export function begin(then) {
  changed = then;
  addLesson();
  byId("add-class").addEventListener("click", () => addLesson().field.focus());
  byId("teach-now").addEventListener("click", teach);
}
