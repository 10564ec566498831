// The server, as the page asks it. Errors carry the server's own words.

export class Refused extends Error {
  constructor(status, told, after = null) {
    super(told.error || `The server answered ${status}.`);
    this.status = status;
    this.remedy = told.remedy || "";
    this.after = after; // seconds after which to ask again; null where that is no use
  }
}

const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

async function answer(response) {
  if (response.ok) return response.status === 204 ? null : response.json();
  const after = response.headers.get("Retry-After");
  throw new Refused(response.status, await response.json().catch(() => ({})), after && Number(after));
}

const away = { error: "The server cannot be reached.", remedy: "Is it still running?" };

export const get = (path) => fetch(path).then(answer, () => { throw new Refused(0, away); });

export const post = (path, body) => fetch(path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body ?? {}),
}).then(answer, () => { throw new Refused(0, away); });

export const drop = (path) => fetch(path, { method: "DELETE" }).then(answer);

/** Trade the token for a cookie. */
export const enter = (token) => fetch("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } }).then(answer);

/** Ask about one picture; where the server is busy or still loads its model, `waits` is told so, and it is asked again. */
export async function predict(file, waits, tries = 300) {
  const form = new FormData();
  form.append("picture", file, file.name);
  try {
    const told = await fetch("/predict", { method: "POST", body: form }).then(answer, () => { throw new Refused(0, away); });
    return told.predictions[0];
  } catch (error) {
    if (error.after == null || tries <= 0) throw error;
    waits(error.message);
    await wait(error.after);
    return predict(file, waits, tries - 1);
  }
}

/** Send pictures to learn: a list of {file, name}. `sent` is told the share that is on its way. */
export function learn(pictures, sent) {
  const form = new FormData();
  for (const { file, name } of pictures) {
    form.append("class", name);
    form.append("picture", file, file.name);
  }
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/learn");
    request.responseType = "json";
    request.upload.onprogress = (event) => { if (event.lengthComputable) sent(event.loaded / event.total); };
    request.onerror = () => failed(new Refused(0, away));
    request.onload = () => (request.status < 300 ? done(request.response) : failed(new Refused(request.status, request.response || {})));
    request.send(form);
  });
}

/** Follow a job to its end; `seen` gets each state. Where the stream breaks, it is asked for again. */
export function follow(job, seen) {
  return new Promise((done, failed) => {
    const events = new EventSource(`/jobs/${job}/events`);
    let misses = 0;
    events.onmessage = (event) => {
      misses = 0;
      const state = JSON.parse(event.data);
      seen(state);
      if (["done", "failed", "cancelled"].includes(state.state)) { events.close(); done(state); }
    };
    events.onerror = () => {
      misses += 1;
      if (misses > 5 || events.readyState === EventSource.CLOSED) { events.close(); failed(new Refused(0, away)); }
    };
  });
}
