// The interface, from its own description: the usual viewers come from other servers.

import { get } from "./server.js";
import { byId, make } from "./tools.js";

const description = await get("/openapi.json");
const named = (schema) => schema?.$ref?.split("/").pop();

function fields(schema) {
  const resolved = named(schema) ? description.components.schemas[named(schema)] : schema;
  if (resolved?.type === "array") return fields(resolved.items);
  const rows = Object.entries(resolved?.properties || {}).map(([name, { description: words, type, items }]) =>
    make("li", {}, make("code", {}, name), ` ${type || ""}${items?.format === "binary" ? " of files" : ""}${words ? `: ${words}` : ""}`));
  return rows.length ? make("ul", {}, ...rows) : null;
}

for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, about] of Object.entries(methods)) {
    const asked = Object.values(about.requestBody?.content || {})[0]?.schema;
    const told = Object.entries(about.responses).find(([status]) => status.startsWith("2"))?.[1];
    const answer = Object.values(told?.content || {})[0]?.schema;
    byId("operations").append(make("div", { class: "panel" },
      make("h2", {}, make("code", {}, `${method.toUpperCase()} ${path}`)), make("p", {}, about.description || ""),
      asked ? make("p", {}, "Asked:") : null, asked ? fields(asked) : null,
      answer ? fields(answer) && make("p", {}, "Answered:") : null, answer ? fields(answer) : null,
      make("p", { class: "hint" }, `Statuses: ${Object.keys(about.responses).join(", ")}`)));
  }
}
