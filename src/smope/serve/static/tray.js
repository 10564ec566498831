// The pictures gathered for the next update, kept by the browser: a reload, a crash or a failed update loses none of them.

const DATABASE = "smope", STORE = "tray";

const done = (request) => new Promise((good, bad) => { request.onsuccess = () => good(request.result); request.onerror = () => bad(request.error); });

/** The tray of one model: records {id, kind, ...}. Where the browser keeps nothing (some private windows), it forgets on reload. */
export async function tray(model) {
  let base = null;
  try {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    base = await done(request);
  } catch { /* kept in memory alone */ }
  const within = async (mode, does) => {
    try {
      return base && await done(does(base.transaction(STORE, mode).objectStore(STORE)));
    } catch { return null; } // full, or taken away by the user: the page goes on
  };
  return {
    all: async () => ((await within("readonly", (store) => store.getAll())) || []).filter((record) => record.model === model),
    put: (record) => within("readwrite", (store) => store.put({ ...record, model })),
    drop: (id) => within("readwrite", (store) => store.delete(id)),
  };
}

let made = 0;
/** Sorts in the order of making. */
export const newId = () => `${Date.now().toString().padStart(15, "0")}-${String(made += 1).padStart(8, "0")}-${Math.random().toString(36).slice(2, 8)}`;
