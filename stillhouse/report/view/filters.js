// Which trajectories are listed, and in which order.

const FACETS = [
  { name: "outcome", any: "Any outcome", values: (row) => [row.outcome] },
  { name: "kept", any: "Kept or dropped", values: (row) => (row.kept === null ? [] : [row.kept ? "kept" : "dropped"]) },
  { name: "stop", any: "Any stop reason", values: (row) => (row.stop_reason === null ? [] : [row.stop_reason]) },
  { name: "tool", any: "Any tool", values: (row) => (row.tools.length === 0 ? ["(none)"] : row.tools), asWritten: true },
  {
    name: "trouble",
    any: "Any tool result",
    values: (row) => (row.tool_errors === null ? [] : [row.tool_errors > 0 ? "with tool errors" : "without tool errors"]),
  },
  { name: "stage", any: "Any stage", values: (row) => (row.stage ? [row.stage] : []) },
  { name: "model", any: "Any model", values: (row) => (row.model === null ? [] : [row.model]), asWritten: true },
  { name: "tag", any: "Any tag", values: (row) => (row.tag === null ? [] : [row.tag]), asWritten: true },
];
const FILTERS = [...FACETS.map((facet) => facet.name), "min", "max"];
const MAX_CHOICES = 200;

const most = (column) => (a, b) => (b[column] ?? -Infinity) - (a[column] ?? -Infinity) || a.number - b.number;
const least = (column) => (a, b) => (a[column] ?? Infinity) - (b[column] ?? Infinity) || a.number - b.number;
const ORDERS = {
  sampled: { label: "As sampled", compare: (a, b) => a.number - b.number },
  longest: { label: "Longest first", compare: most("chars"), column: "chars" },
  tokens: { label: "Most tokens first", compare: most("completion_tokens"), column: "completion_tokens" },
  turns: { label: "Most turns first", compare: most("turns"), column: "turns" },
  slowest: { label: "Slowest first", compare: most("latency_s"), column: "latency_s" },
  cost: { label: "Most expensive first", compare: most("usd"), column: "usd" },
  worst: { label: "Lowest score first", compare: least("score"), column: "score" },
  best: { label: "Highest score first", compare: most("score"), column: "score" },
};

function matches(row, state) {
  for (const facet of FACETS) {
    const wanted = state[facet.name];
    if (wanted && !facet.values(row).includes(wanted)) return false;
  }
  if (state.min !== "" && !(row.score !== null && row.score >= Number(state.min))) return false;
  if (state.max !== "" && !(row.score !== null && row.score <= Number(state.max))) return false;
  return true;
}

function counted(rows, facet) {
  const counts = new Map();
  for (const row of rows) for (const value of facet.values(row)) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

function choice(name, label, options, onChange) {
  const element = make("select", { id: `by-${name}`, "aria-label": label, onchange: () => onChange(name, element.value) });
  for (const [value, text] of options) element.append(make("option", { value, text }));
  return element;
}

function scoreBound(name, label, placeholder, onChange) {
  const change = () => onChange(name, element.value);
  const element = make("input", { id: `by-${name}`, type: "number", step: "any", placeholder, "aria-label": label, oninput: change });
  return element;
}

// The controls that these trajectories have a use for: a facet with one value would filter nothing.
function buildFilters(rows, onChange) {
  const controls = [];
  for (const facet of FACETS) {
    const counts = counted(rows, facet);
    if (counts.length < 2) continue;
    const shown = counts.slice(0, MAX_CHOICES);
    const options = shown.map(([value, number]) => [value, `${facet.asWritten ? value : spaced(value)} (${count(number)})`]);
    controls.push(choice(facet.name, facet.any, [["", facet.any], ...options], onChange));
  }
  if (rows.some((row) => row.score !== null)) {
    controls.push(
      make("span", { class: "score" }, "Score",
        scoreBound("min", "Lowest score", "from", onChange), scoreBound("max", "Highest score", "to", onChange)),
    );
  }
  const known = Object.entries(ORDERS).filter(([, { column }]) => !column || rows.some((row) => row[column] !== null));
  controls.push(choice("sort", "Order", known.map(([name, { label }]) => [name, label]), onChange));
  return controls;
}
