// What is embedded in the page: an index of all trajectories, and their bodies in chunks that are unpacked when needed.

const KEPT_CHUNKS = 8;
const MAX_KEPT_TEXT = 1 << 28;

function fromBase64(text) {
  // Far quicker, and in browsers since 2025.
  if ("fromBase64" in Uint8Array) return Uint8Array.fromBase64(text);
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  return bytes;
}

async function unpack(id) {
  let element = document.getElementById(id);
  if (element === null && document.readyState === "loading") {
    // The list is drawn before the browser has read the rest of the file.
    await new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve, { once: true }));
    element = document.getElementById(id);
  }
  const gunzip = new DecompressionStream("gzip");
  const writer = gunzip.writable.getWriter();
  writer.write(fromBase64(element.textContent));
  writer.close();
  return parseJson(await new Response(gunzip.readable).text());
}

// JavaScript rounds whole numbers above 2^53: they stay as they are written.
function parseJson(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? JSON.rawJSON(context.source) : value);
}

async function readIndex(columns) {
  const lines = await unpack("index");
  document.getElementById("index").remove();
  return lines.map((line, number) => {
    const row = { number };
    columns.forEach((column, i) => (row[column] = line[i]));
    return row;
  });
}

// Every text of a trajectory that a person would look for, in lower case.
function searchText(body) {
  const texts = [];
  const walk = (value) => {
    if (typeof value === "string") texts.push(value);
    else if (Array.isArray(value)) value.forEach(walk);
    else if (value !== null && typeof value === "object") Object.values(value).forEach(walk);
  };
  for (const message of body.messages) {
    for (const [key, value] of Object.entries(message)) if (key !== "role") walk(value);
  }
  walk([body.id, body.tag, body.expected_answer, body.error, body.metadata, body.model, body.providers]);
  return texts.join("\n").toLowerCase();
}

class Bodies {
  #chunks = new Map();
  #texts = new Map();
  #numChars = 0;

  async get(row) {
    return (await this.#chunk(row.chunk))[row.place];
  }

  // The texts of a chunk's trajectories, kept as long as there is room, since people search more than once.
  async texts(number) {
    const known = this.#texts.get(number);
    if (known !== undefined) return known;
    const texts = (this.#chunks.get(number) ?? (await unpack(`chunk-${number}`))).map(searchText);
    const numChars = texts.reduce((sum, text) => sum + text.length, 0);
    if (this.#numChars + numChars <= MAX_KEPT_TEXT) {
      this.#numChars += numChars;
      this.#texts.set(number, texts);
    }
    return texts;
  }

  async #chunk(number) {
    const known = this.#chunks.get(number) ?? (await unpack(`chunk-${number}`));
    this.#chunks.delete(number);
    this.#chunks.set(number, known);
    if (this.#chunks.size > KEPT_CHUNKS) this.#chunks.delete(this.#chunks.keys().next().value);
    return known;
  }
}

// Words that must all occur; those in double quotes as they stand.
function searchTerms(query) {
  return [...query.toLowerCase().matchAll(/"([^"]+)"|[^\s"]+/g)].map((match) => match[1] ?? match[0]);
}

// Goes through every chunk, and says after each few frames which rows match so far. A newer search ends an older one.
class Search {
  #latest = 0;

  constructor(bodies, rows) {
    this.bodies = bodies;
    this.firstOfChunk = [];
    for (const row of rows) this.firstOfChunk[row.chunk] ??= row.number;
  }

  async run(terms, onProgress) {
    const mine = ++this.#latest;
    const matching = new Set();
    if (terms.length === 0) return onProgress(null, 1);
    let reportedAt = performance.now();
    for (const [chunk, first] of this.firstOfChunk.entries()) {
      const texts = await this.bodies.texts(chunk);
      if (mine !== this.#latest) return;
      texts.forEach((text, place) => {
        if (terms.every((term) => text.includes(term))) matching.add(first + place);
      });
      if (performance.now() - reportedAt > 100) {
        onProgress(matching, chunk / this.firstOfChunk.length);
        await new Promise((resolve) => setTimeout(resolve));
        if (mine !== this.#latest) return;
        reportedAt = performance.now();
      }
    }
    onProgress(matching, 1);
  }
}
