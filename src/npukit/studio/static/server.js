// The studio's server.
import { look, word } from "./look.js";

export const session = {}; // what the server says about itself, see app.py

// Ask a route; with a body it is a POST. What goes wrong is an Error whose message can be shown.
export async function api(path, body) {
  const headers = { "Accept-Language": look.language };
  const options = { headers };
  if (body !== undefined) {
    Object.assign(headers, { "Content-Type": "application/json", "X-Npukit-CSRF": session.csrf });
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  const response = await fetch(`api/${path}`, options).catch(() => null);
  if (!response) throw new Error(word("unreachable"));
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(answer?.error?.message ?? `${response.status} ${response.statusText}`);
  return answer;
}

export const query = (path, values) => api(`${path}?${new URLSearchParams(values)}`);
