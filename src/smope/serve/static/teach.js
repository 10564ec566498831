// Names and pictures gathered here, sent when Teach is pressed; then progress, and what came of it.

import { drop, follow, get, isOver, learn, post } from "./server.js";
import { ask, byId, chosen, count, dropArea, duration, icon, make, notice, percent, removed, said, thumbnail } from "./tools.js";
import { newId, tray } from "./tray.js";

const lessons = []; // {id, card, field, pictures: [{id, file, item, job}]}
let busy = false, changed = () => {}, limits = {}, kept = null;
let watched = { job: null, end: null };

export const setLimits = (given) => { limits = given; };

const nameOf = (lesson) => lesson.field.value.trim();

function gathered() {
  return lessons.flatMap((lesson) => lesson.pictures.map((entry) => ({ entry, file: entry.file, name: nameOf(lesson) })));
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

const keepLesson = (lesson) => kept?.put({ id: lesson.id, kind: "lesson", name: nameOf(lesson) });
const keepPicture = (lesson, { id, file, job }) => kept?.put({ id, kind: "picture", lesson: lesson.id, file, job });

function leaveOut(lesson, entry) {
  lesson.pictures.splice(lesson.pictures.indexOf(entry), 1);
  entry.item.remove();
  kept?.drop(entry.id);
}

/** Put a picture into a lesson, where it was if it is put back. */
function place(lesson, entry, at = lesson.pictures.length) {
  const { file } = entry;
  if (!entry.item) {
    const away = make("button", { type: "button", "aria-label": `Leave out ${file.name}`, onclick: () => {
      const now = lesson.pictures.indexOf(entry);
      leaveOut(lesson, entry);
      removed(`“${file.name}” left out.`, () => {
        if (!lessons.includes(lesson)) attach(lesson);
        place(lesson, entry, now);
        show();
      });
      show();
    } }, icon("cross"));
    entry.item = make("li", {}, thumbnail(file, 160), away);
  }
  lesson.pictures.splice(at, 0, entry);
  lesson.thumbs.insertBefore(entry.item, lesson.thumbs.children[at] || null);
  mark(entry);
  keepPicture(lesson, entry);
}

/** Pictures that are being learned stay where they are until they were. */
function mark(entry) {
  entry.item.classList.toggle("sent", Boolean(entry.job));
  entry.item.querySelector("button").hidden = Boolean(entry.job);
}

function put(lesson, files) {
  const large = files.filter((file) => file.size > limits.picture_bytes);
  if (large.length) notice(`Left out, for they are larger than ${Math.floor(limits.picture_bytes / 2 ** 20)} MB: ${large.map(({ name }) => name).join(", ")}.`);
  keepLesson(lesson);
  const entries = files.filter((file) => !large.includes(file)).map((file) => ({ id: newId(), file, job: null }));
  for (const entry of entries) place(lesson, entry);
  show();
  return entries;
}

function detach(lesson) {
  lessons.splice(lessons.indexOf(lesson), 1);
  lesson.card.remove();
  kept?.drop(lesson.id);
  for (const { id } of lesson.pictures) kept?.drop(id);
  if (!lessons.length) addLesson();
}

function attach(lesson) {
  const [only] = lessons;
  if (lessons.length === 1 && !nameOf(only) && !only.pictures.length) { lessons.pop(); only.card.remove(); }
  lessons.push(lesson);
  byId("lessons").append(lesson.card);
  keepLesson(lesson);
  for (const entry of lesson.pictures) keepPicture(lesson, entry);
}

function addLesson(name = "", id = newId()) {
  const field = make("input", { list: "known", maxlength: 200, placeholder: "Kettle", autocomplete: "off", oninput: () => { show(); keepLesson(lesson); } });
  field.value = name;
  const lesson = { id, field, pictures: [], thumbs: make("ul", { class: "thumbs" }) };
  const away = make("button", { type: "button", class: "small", onclick: () => {
    const of = lesson.pictures.length;
    if (lesson.pictures.some(({ job }) => job)) return notice("These pictures are being learned.");
    detach(lesson);
    if (of || nameOf(lesson)) removed(`${nameOf(lesson) ? `“${nameOf(lesson)}”` : "A class"} with ${count(of, "picture")} left out.`, () => { attach(lesson); show(); });
    return show();
  } }, "Leave out this class");
  lesson.card = make("div", { class: "panel lesson" },
    make("div", { class: "side" }, make("label", {}, "Class name", field), away),
    make("div", {}, dropArea("Drop pictures of it here, or", (files) => put(lesson, files), true), lesson.thumbs));
  lessons.push(lesson);
  byId("lessons").append(lesson.card);
  show();
  return lesson;
}

/** The lesson of a class, made where there is none. */
function lessonOf(name) {
  const free = lessons.find((lesson) => !nameOf(lesson) && !lesson.pictures.length);
  const lesson = lessons.find((entry) => nameOf(entry) === name) || free || addLesson(name);
  lesson.field.value = name;
  return lesson;
}

/** Keep a picture for the next update; gives back what takes it out again. */
export function keep(file, name) {
  const lesson = lessonOf(name), [entry] = put(lesson, [file]);
  return () => {
    if (!entry || !lesson.pictures.includes(entry) || entry.job) return;
    leaveOut(lesson, entry);
    if (!lesson.pictures.length) detach(lesson);
    show();
  };
}

/** Gather whole folders, each as the class that it is called. */
export function gatherFolders(folders) {
  for (const { name, files } of folders) put(lessonOf(name.trim().slice(0, 200)), files);
}

export const paste = (files) => put(lessons.at(-1), files);

/** Take away what was learned; what was added meanwhile stays for the next update. */
function clear(learned) {
  for (const lesson of [...lessons]) {
    const gone = lesson.pictures.filter((entry) => learned(entry));
    for (const entry of gone) leaveOut(lesson, entry);
    if (gone.length && !lesson.pictures.length) detach(lesson);
  }
  show();
}

/** Mark pictures as those of a job, or, without one, as not yet learned. */
function assign(entries, job) {
  for (const lesson of lessons) {
    for (const entry of lesson.pictures.filter((one) => entries.includes(one))) {
      entry.job = job;
      mark(entry);
      keepPicture(lesson, entry);
    }
  }
}

const sentWith = (job) => gathered().map(({ entry }) => entry).filter((entry) => entry.job === job);

/** After the end of a job: what it has learned goes, and all else stays. */
function settle(job, state) {
  if (state === "done") clear((entry) => entry.job === job);
  else assign(sentWith(job), null);
  show();
}

/** Bring back what the browser kept of this model's tray. */
export async function restore(model) {
  const store = await tray(model), records = (await store.all()).sort((one, other) => (one.id < other.id ? -1 : 1));
  kept = store;
  for (const lesson of lessons.filter(({ pictures, field }) => pictures.length || field.value)) {
    keepLesson(lesson);
    for (const entry of lesson.pictures) keepPicture(lesson, entry);
  }
  for (const { id, name } of records.filter(({ kind }) => kind === "lesson")) {
    if (!records.some(({ lesson }) => lesson === id) && !name) { store.drop(id); continue; }
    const [only] = lessons;
    if (lessons.length === 1 && !nameOf(only) && !only.pictures.length) { lessons.pop(); only.card.remove(); }
    addLesson(name, id);
  }
  for (const { id, lesson, file, job } of records.filter(({ kind }) => kind === "picture")) {
    const of = lessons.find((one) => one.id === lesson);
    if (of) place(of, { id, file, job }); else store.drop(id);
  }
  show();
  for (const job of new Set(gathered().map(({ entry }) => entry.job).filter(Boolean))) {
    get(`/jobs/${job}`).then((state) => (isOver(state) ? settle(job, state.state) : watch(job)), () => settle(job, "unknown"));
  }
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
  if (report.accuracy != null) add(`Of the held-back pictures of the new classes ${Math.round(report.accuracy)} % are recognised${report.held_back < 20 ? `; with ${count(report.held_back, "held-back picture")} in all that is a rough figure` : ""}.`, report.accuracy >= 80 ? "good" : "bad");
  for (const [name, share] of Object.entries(report.accuracies)) add(`“${name}”: ${Math.round(share)} % recognised.`, share >= 80 ? "" : "bad");
  if (report.unjudged.length) add(`Not checked, for too few pictures (four are needed): ${listed(report.unjudged)}.`);
  if (report.estimate) {
    const { before, after, losses, pictures } = report.estimate;
    const how = pictures ? `measured on ${count(pictures, "picture")} left out or held back` : "estimated";
    if (!losses.length) add(`No old class got noticeably worse (${how}: ${Math.round(before)} % before, ${Math.round(after)} % now).`, "good");
    for (const loss of losses) add(`Worse: “${loss.name}” lost ${Math.round(loss.points)} points${loss.to ? `, mostly to “${loss.to}”` : ""} (${loss.pictures ? `of ${count(loss.pictures, "picture")}` : "estimated"}).`, "bad");
  }
  const skipped = report.skipped.map((entry) => make("li", { class: "bad" }, `Skipped ${entry.name}: ${entry.reason}`));
  lines.push(...skipped.slice(0, 10));
  if (skipped.length > 10) lines.push(make("li", {}, make("details", {}, make("summary", {}, `${skipped.length - 10} more were skipped`), make("ul", {}, ...skipped.slice(10)))));
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
  const still = sentWith(state.id).length ? " The pictures are all still here." : "";
  if (state.state === "cancelled") return tell("Stopped", make("p", {}, `The model is as it was.${still}`));
  if (state.state === "failed") return tell("That did not work", make("p", { class: "bad" }, said({ message: state.error.error, remedy: state.error.remedy }) + still));
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
  notice("");
  show();
  byId("report").hidden = true;
  byId("job-stop").onclick = () => drop(`/jobs/${job}`).catch((error) => notice(said(error)));
  let end = "unknown";
  try {
    const state = await follow(job, progress);
    end = state.state;
    finish(state);
  } catch (error) {
    byId("job").hidden = true;
    notice(said(error));
  }
  busy = false;
  settle(job, end);
  changed();
}

/** A name as it sounds: two spellings of it are meant for one class. */
const plain = (name) => name.normalize("NFKC").toLowerCase().replace(/[\s_-]+/g, " ").trim();
const alike = (one, other) => plain(one) === plain(other) || plain(one) === `${plain(other)}s` || plain(other) === `${plain(one)}s`;

/** Ask about names that look like two spellings of one class; true if all is settled. */
async function spelt() {
  const known = [...byId("known").options].map((option) => option.value);
  const apart = new Set();
  for (const lesson of lessons.filter(({ pictures }) => pictures.length)) {
    for (;;) {
      const name = nameOf(lesson);
      const others = [...known, ...lessons.filter((one) => one !== lesson && one.pictures.length).map(nameOf)];
      const other = known.includes(name) ? null : others.find((one) => one !== name && alike(one, name) && !apart.has([one, name].sort().join("\n")));
      if (!other) break;
      const text = known.includes(other) ? "The model knows that class already. Two spellings would become two classes." : "Two spellings would become two classes.";
      const same = await ask({ title: `Is “${name}” the same as “${other}”?`, text, yes: `Yes: call it “${other}”`, no: "No, keep both" });
      if (same === null) return false;
      if (same) { lesson.field.value = other; keepLesson(lesson); } else apart.add([other, name].sort().join("\n"));
    }
  }
  show();
  return true;
}

async function teach() {
  if (!(await spelt())) return undefined;
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
    assign(pictures.map(({ entry }) => entry), job.id);
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
  const input = make("input", { type: "file", webkitdirectory: true, hidden: true, "aria-label": "Folder", onchange: () => {
    const folders = chosen(input.files);
    if (folders.length) gatherFolders(folders); else notice("There is no picture in that folder.");
    input.value = "";
  } });
  byId("add-folder").after(input);
  byId("add-folder").addEventListener("click", () => input.click());
  byId("add-class").addEventListener("click", () => addLesson().field.focus());
  byId("teach-now").addEventListener("click", teach);
}
