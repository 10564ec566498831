// The page, put together: which part is shown, what state the server is in, and pictures pasted anywhere.

import * as classify from "./classify.js";
import * as model from "./model.js";
import { enter, get } from "./server.js";
import * as teach from "./teach.js";
import { beginRemovals, byId, count, dropped, notice, said } from "./tools.js";

const PARTS = ["classify", "teach", "model"];
const LOOK_EVERY = 3000, LOOK_WHILE_LOADING = 500;
let seen = "", restored = null;

function part() {
  const asked = location.hash.slice(1);
  return PARTS.includes(asked) ? asked : "classify";
}

function turn(focus) {
  if (!byId("token-form").hidden) return;
  for (const name of PARTS) byId(`${name}-part`).hidden = name !== part();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${part()}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  if (focus) { byId("main").focus({ preventScroll: true }); scrollTo(0, 0); }
}

function state(about, classes) {
  const words = { loading: "Loading the model…", failed: "The model cannot be loaded", empty: "Knows nothing yet" };
  return about.job ? (about.job.kind === "learn" ? "Learning…" : "At work…") : words[about.model] || count(classes, "class", "classes");
}

let last = null, loading = false;
async function look() {
  try {
    const about = await get("/about");
    const mark = JSON.stringify([about.model, about.changes, about.can_undo, about.job?.id, about.error]);
    byId("file").textContent = about.file;
    document.title = `${about.file} · smope`;
    classify.setLimit(about.limits.picture_bytes);
    teach.setLimits(about.limits);
    if (about.file !== restored) { restored = about.file; await teach.restore(about.file); }
    if (mark !== seen || last === null) {
      seen = mark;
      last = await model.refresh(about);
      byId("classify-empty").hidden = about.model !== "empty";
      byId("classify-loading").hidden = about.model !== "loading";
      if (about.model === "failed") notice(said({ message: about.error.error, remedy: about.error.remedy }));
    }
    loading = about.model === "loading";
    byId("state").textContent = state(about, last.length);
    if (about.job) teach.watchOthers(about.job.id);
    return true;
  } catch (error) {
    if (error.status === 401) return false;
    byId("state").textContent = said(error);
    return true;
  }
}

const changed = () => { last = null; look(); };

function decoded(token) {
  try { return decodeURIComponent(token); } catch { return token; } // typed by hand
}

/** Until a token is right. The form listens all the while: what is sent in the middle of another answer counts too. */
const entered = (form) => new Promise((done) => {
  form.onsubmit = (event) => {
    event.preventDefault();
    enter(byId("token").value.trim()).then(() => { notice(""); done(); }, (error) => notice(said(error)));
  };
});

/** Look, and ask for the token where the server does: at the beginning, or when it was started anew with another one. */
async function letIn() {
  const form = byId("token-form");
  const [, token] = /^#token=(.+)$/.exec(location.hash) || [];
  if (token) {
    history.replaceState(null, "", "#classify");
    await enter(decoded(token)).catch(() => {});
  }
  while (!(await look())) {
    byId("state").textContent = "Locked";
    form.hidden = false;
    await entered(form);
  }
  if (!form.hidden) { form.hidden = true; turn(false); }
}

model.begin(changed, teach.watch);
teach.begin(changed);
beginRemovals();
const take = classify.begin(teach.keep);
addEventListener("hashchange", () => { notice(""); turn(true); });
addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (!files.length) return;
  event.preventDefault();
  if (part() === "teach") teach.paste(files);
  else { location.hash = "#classify"; take(files); }
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", async (event) => { // anywhere on the page counts
  event.preventDefault();
  const { files, folders } = await dropped(event.dataTransfer);
  if (folders.length) {
    teach.gatherFolders(folders);
    location.hash = "#teach";
  }
  if (!files.length) return;
  if (part() === "teach") teach.paste(files);
  else { location.hash = "#classify"; take(files); }
});
if (!location.hash.startsWith("#token=")) turn(false);
await letIn();
turn(false);
const lookOn = () => setTimeout(() => letIn().finally(lookOn), loading ? LOOK_WHILE_LOADING : LOOK_EVERY);
lookOn();
