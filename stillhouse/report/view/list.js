// The list: only the rows on screen are in the document, whatever the number of trajectories.

const ROW_HEIGHT = 66;
const MARGIN_ROWS = 8;

class List {
  #rows = [];
  #open = null;
  #drawn = "";

  constructor(viewport, space, onOpen) {
    this.viewport = viewport;
    this.space = space;
    this.onOpen = onOpen;
    viewport.addEventListener("scroll", () => this.#draw(), { passive: true });
    new ResizeObserver(() => this.#draw()).observe(viewport);
    space.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.onOpen(this.#rows[Number(option.dataset.at)]);
    });
  }

  get rows() {
    return this.#rows;
  }

  show(rows) {
    this.#rows = rows;
    this.space.style.height = `${rows.length * ROW_HEIGHT}px`;
    this.#drawn = "";
    this.#draw();
  }

  // Marks a trajectory as the one that is open and brings it into view; null marks none.
  mark(row) {
    this.#open = row;
    const at = this.#rows.indexOf(row);
    if (at >= 0) {
      const top = at * ROW_HEIGHT;
      const { scrollTop, clientHeight } = this.viewport;
      if (top < scrollTop) this.viewport.scrollTop = top;
      else if (top + ROW_HEIGHT > scrollTop + clientHeight) this.viewport.scrollTop = top + ROW_HEIGHT - clientHeight;
    }
    this.#drawn = "";
    this.#draw();
  }

  // The trajectory that many places after the open one; the first or last where there is none.
  neighbour(distance) {
    const at = this.#rows.indexOf(this.#open);
    if (at < 0) return this.#rows[0] ?? null;
    return this.#rows[Math.min(Math.max(at + distance, 0), this.#rows.length - 1)];
  }

  #draw() {
    const first = Math.max(Math.floor(this.viewport.scrollTop / ROW_HEIGHT) - MARGIN_ROWS, 0);
    const shown = Math.ceil(this.viewport.clientHeight / ROW_HEIGHT) + 2 * MARGIN_ROWS;
    const last = Math.min(first + shown, this.#rows.length);
    if (this.#drawn === `${first}-${last}`) return;
    this.#drawn = `${first}-${last}`;
    const options = [];
    for (let at = first; at < last; at++) options.push(this.#option(this.#rows[at], at));
    this.space.replaceChildren(...options);
    const open = this.space.querySelector("[aria-selected=true]");
    if (open) this.viewport.setAttribute("aria-activedescendant", open.id);
    else this.viewport.removeAttribute("aria-activedescendant");
  }

  #option(row, at) {
    const option = make(
      "div",
      {
        id: `option-${row.number}`, class: `option ${row.outcome}`, role: "option", "data-at": at,
        "aria-selected": String(row === this.#open), "aria-posinset": at + 1, "aria-setsize": this.#rows.length,
      },
      make("span", { class: "question", dir: "auto", text: row.question || "(no user message)" }),
      make("span", { class: "facts" }, make("b", { class: row.outcome, text: row.outcome }), ...factsOf(row)),
    );
    option.style.top = `${at * ROW_HEIGHT}px`;
    return option;
  }
}

// What tells trajectories apart at a glance; what is regular or unknown is left out.
function factsOf(row) {
  const facts = [];
  if (row.kept === false) facts.push("dropped");
  if (row.stop_reason !== null && row.stop_reason !== "answered" && row.outcome !== "failed") facts.push(spaced(row.stop_reason));
  facts.push(plural(row.turns, "turn"));
  if (row.tool_errors) facts.push(plural(row.tool_errors, "tool error"));
  if (row.completion_tokens !== null) facts.push(`${count(row.completion_tokens)} tok`);
  if (row.usd !== null) facts.push(dollars(row.usd));
  if (row.latency_s !== null) facts.push(seconds(row.latency_s));
  return facts.map((text) => make("span", { text }));
}
