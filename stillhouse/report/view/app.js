// Ties list, filters, search and reader together; the address says what is shown, so that it can be handed on.

const app = document.getElementById("app");
const query = document.getElementById("query");
const list = document.getElementById("list");
const reader = document.getElementById("reader");
const help = document.getElementById("help");
const SEARCH_AFTER_MS = 120;
const WIDE = matchMedia("(min-width: 821px)");
const MAX_COMPARED = 12;

class Page {
  #matching = null;
  #progress = 1;
  #timer = 0;
  #open = null;
  #wasRead = false;

  constructor(rows) {
    this.rows = rows;
    this.byId = new Map(rows.map((row) => [row.id, row]));
    this.byPrompt = Map.groupBy(rows.filter((row) => row.prompt !== null), (row) => row.prompt);
    this.bodies = new Bodies();
    this.search = new Search(this.bodies, rows);
    this.list = new List(list, document.getElementById("rows"), (row) => this.open(row, { focus: true }));
    document.getElementById("filters").append(...buildFilters(rows, (name, value) => this.change(name, value)));
    query.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.change("q", query.value), SEARCH_AFTER_MS);
    });
    addEventListener("hashchange", () => this.readAddress());
    this.readAddress();
  }

  // The address after #: `t` is the trajectory that is open, the others are filters, order and query.
  readAddress() {
    const address = new URLSearchParams(location.hash.slice(1));
    this.state = { q: "", min: "", max: "", sort: "sampled", ...Object.fromEntries(address) };
    this.#showControls();
    this.#find();
    const row = this.byId.get(address.get("t"));
    const isFirst = !this.#wasRead;
    this.#wasRead = true;
    if (row) this.open(row);
    // There is room for both list and trajectory.
    else if (isFirst && this.list.rows.length > 0 && !address.has("t") && WIDE.matches) this.open(this.list.rows[0]);
    else if (address.has("t")) this.#say(`No trajectory ${address.get("t")} on this page.`);
    else this.close();
  }

  change(name, value) {
    this.state[name] = value;
    this.#showControls();
    this.#writeAddress();
    if (name === "q") {
      this.#find();
      return;
    }
    this.#filter();
    // What is open beside a list that lacks it would seem to be of the list.
    if (this.#open !== null && WIDE.matches && !this.list.rows.includes(this.#open)) {
      if (this.list.rows.length > 0) this.open(this.list.rows[0]);
      else this.close();
    }
  }

  clear() {
    this.state = { ...this.state, q: "", ...Object.fromEntries(FILTERS.map((name) => [name, ""])) };
    this.#showControls();
    this.#writeAddress();
    this.#find();
  }

  async open(row, { focus = false } = {}) {
    if (!row) return;
    this.#open = row;
    this.state.t = row.id;
    this.#writeAddress();
    this.list.mark(row);
    const alternatives = this.alternatives(row);
    const compares = this.state.compare && alternatives.length > 1;
    const shown = compares ? alternatives : [row];
    const bodies = await Promise.all(shown.map((each) => this.bodies.get(each)));
    const body = bodies[shown.indexOf(row)];
    // Somebody may have gone on meanwhile.
    if (this.#open !== row) return;
    app.classList.add("reading");
    const back = make("button", { type: "button", class: "back", text: "Back to the list", onclick: () => this.close({ focus: true }) });
    const copy = make("button", { type: "button", class: "quiet", text: "Copy as JSON", onclick: () => this.#copy(copy, body) });
    const fold = make("button", { type: "button", class: "quiet", text: "Fold all", onclick: () => this.fold() });
    const text = compares ? "One alone" : `Compare ${count(alternatives.length)} answers`;
    const compare = alternatives.length > 1 ? make("button", { type: "button", class: "compare", text, onclick: () => this.compare() }) : null;
    const view = compares ? comparisonView(row, shown, bodies, (each) => this.open(each)) : trajectoryView(row, body);
    reader.replaceChildren(make("nav", { class: "bar", "aria-label": "Trajectory" }, back, compare, fold, copy), view);
    reader.scrollTop = 0;
    this.#highlight();
    if (focus) reader.focus({ preventScroll: true });
  }

  // The first answer of each model and stage to the prompt of a row, the row's own among them.
  alternatives(row) {
    const first = new Map();
    for (const each of this.byPrompt.get(row.prompt) ?? []) {
      const key = `${each.stage}\n${each.model}`;
      if (!first.has(key) || each === row) first.set(key, each);
    }
    return [...first.values()].slice(0, MAX_COMPARED);
  }

  compare() {
    this.state.compare = this.state.compare ? "" : "1";
    this.open(this.#open);
  }

  close({ focus = false } = {}) {
    this.#open = null;
    delete this.state.t;
    this.#writeAddress();
    app.classList.remove("reading");
    this.list.mark(null);
    this.#say(this.rows.length === 0 ? "There is no trajectory on this page." : "Choose a trajectory, or press j.");
    if (focus) list.focus();
  }

  step(distance) {
    this.open(this.list.neighbour(distance));
  }

  fold() {
    const messages = [...reader.querySelectorAll("details.message")];
    const open = messages.some((message) => message.open);
    for (const message of messages) message.open = !open;
    const button = reader.querySelector(".bar .quiet");
    if (button) button.textContent = open ? "Unfold all" : "Fold all";
  }

  #showControls() {
    if (query.value !== this.state.q) query.value = this.state.q;
    for (const control of document.querySelectorAll("#filters [id^=by-]")) {
      const name = control.id.slice(3);
      const value = this.state[name] ?? "";
      if (control.value !== value) control.value = value;
      control.toggleAttribute("data-set", FILTERS.includes(name) && value !== "");
    }
  }

  #find() {
    const terms = searchTerms(this.state.q);
    if (terms.length > 0) {
      this.#progress = 0;
      this.#filter();
    }
    this.search.run(terms, (matching, progress) => {
      this.#matching = matching;
      this.#progress = progress;
      this.#filter();
      this.#highlight();
    });
  }

  #filter() {
    const rows = this.rows.filter((row) => (this.#matching === null || this.#matching.has(row.number)) && matches(row, this.state));
    const order = ORDERS[this.state.sort] ?? ORDERS.sampled;
    this.list.show(rows.sort(order.compare));
    if (this.#open !== null) this.list.mark(this.#open);
    this.#count(rows);
  }

  #count(rows) {
    const all = rows.length === this.rows.length;
    const parts = [all ? `${count(rows.length)} trajectories` : `${count(rows.length)} of ${count(this.rows.length)}`];
    if (this.#progress < 1) parts.push(`searching, ${Math.round(100 * this.#progress)} %`);
    const right = rows.filter((row) => row.outcome === "right").length;
    const wrong = rows.filter((row) => row.outcome === "wrong").length;
    if (right + wrong > 0) parts.push(`${((100 * right) / (right + wrong)).toFixed(1)} % right`);
    if (rows.length > 0 && rows.every((row) => row.usd !== null)) parts.push(dollars(rows.reduce((sum, row) => sum + row.usd, 0)));
    const filtered = this.state.q || FILTERS.some((name) => this.state[name]);
    const clear = filtered ? make("button", { type: "button", class: "quiet", text: "Clear", onclick: () => this.clear() }) : null;
    document.getElementById("count").replaceChildren(...parts.map((text) => make("span", { text })), clear ?? "");
  }

  #writeAddress() {
    const entries = Object.entries(this.state).filter(([name, value]) => value && !(name === "sort" && value === "sampled"));
    const hash = new URLSearchParams(entries).toString();
    history.replaceState(null, "", `#${hash}`);
  }

  #say(text) {
    reader.replaceChildren(make("p", { class: "empty", text }));
  }

  async #copy(button, body) {
    await navigator.clipboard.writeText(JSON.stringify(body, null, 2));
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy as JSON"), 1500);
  }

  // Marks what was searched for, without touching the document.
  #highlight() {
    if (!("highlights" in CSS)) return;
    const terms = searchTerms(this.state.q);
    const ranges = [];
    const walker = document.createTreeWalker(reader, NodeFilter.SHOW_TEXT);
    while (terms.length > 0 && walker.nextNode() && ranges.length < 1000) {
      const node = walker.currentNode;
      const text = node.data.toLowerCase();
      // A letter whose lower case is longer would shift every place after it.
      if (text.length !== node.data.length) continue;
      for (const term of terms) {
        for (let at = text.indexOf(term); at >= 0; at = text.indexOf(term, at + term.length)) {
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + term.length);
          ranges.push(range);
        }
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  }
}

function onKey(page, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.matches("input, select, textarea");
  const inList = event.target === list;
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else page.close({ focus: true });
  } else if (typing) {
    if (event.target !== query || event.key !== "Enter") return;
    list.focus();
  } else if (event.key === "j" || (inList && event.key === "ArrowDown")) page.step(1);
  else if (event.key === "k" || (inList && event.key === "ArrowUp")) page.step(-1);
  else if (inList && event.key === "Home") page.step(-Infinity);
  else if (inList && event.key === "End") page.step(Infinity);
  else if (inList && event.key === "Enter") reader.focus();
  else if (event.key === "/") query.select();
  else if (event.key === "f") page.fold();
  else if (event.key === "c") page.compare();
  else if (event.key === "?") help.showModal();
  else return;
  event.preventDefault();
}

// While a run goes on, the page is written anew every few seconds; what is open stays open by the address.
function reloadRegularly() {
  setInterval(() => {
    if (reader.scrollTop < 40 && document.activeElement !== query && !help.open) location.reload();
  }, 1000 * Number(app.dataset.reload));
}

async function start() {
  if (!("DecompressionStream" in window)) {
    document.getElementById("count").textContent = "This page needs a browser of 2023 or later.";
    return;
  }
  const page = new Page(await readIndex(app.dataset.columns.split(" ")));
  document.addEventListener("keydown", (event) => onKey(page, event));
  if (app.dataset.reload) reloadRegularly();
  document.getElementById("show-help").addEventListener("click", () => help.showModal());
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
}

start();
