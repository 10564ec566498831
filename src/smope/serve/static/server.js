// The server, as the page asks it. Errors carry the server's own words.

export class Refused extends Error {
  constructor(status, told, after = null) {
    super(told.error || `The server answered ${status}.`);
    this.status = status;
    this.remedy = told.remedy || "";
    this.after = after; // seconds after which to ask again; null where that is no use
  }
}

const KIND = /^application\/json/;
const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

async function answer(response) {
  if (response.ok) return response.status === 204 ? null : KIND.test(response.headers.get("Content-Type")) ? response.json() : response.blob();
  const after = response.headers.get("Retry-After");
  throw new Refused(response.status, await response.json().catch(() => ({})), after && Number(after));
}

const away = { error: "The server cannot be reached.", remedy: "Is it still running?" };

const asked = (path, how) => fetch(path, how).then(answer, () => { throw new Refused(0, away); });

export const get = (path) => asked(path);

export const post = (path, body) => asked(path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body ?? {}),
});

export const drop = (path) => asked(path, { method: "DELETE" });

/** Trade the token for a cookie. */
export const enter = (token) => asked("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });

export const isOver = (job) => ["done", "failed", "cancelled"].includes(job.state);

/** Ask about one picture; where the server is busy or still loads its model, `waits` is told so, and it is asked again. */
export async function predict(file, waits, tries = 300) {
  const form = new FormData();
  form.append("picture", file, file.name);
  try {
    const told = await asked("/predict", { method: "POST", body: form });
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
      if (isOver(state)) { events.close(); done(state); }
    };
    events.onerror = () => {
      misses += 1;
      if (misses <= 5 && events.readyState !== EventSource.CLOSED) return;
      events.close(); // a stream does not say why it ended; the server does, if it is there
      get(`/jobs/${job}`).then((state) => (isOver(state) ? done(state) : failed(new Refused(0, away))), failed);
    };
  });
}
