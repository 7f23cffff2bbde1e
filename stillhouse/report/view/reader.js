// One trajectory as a person reads it. Everything is put in as text, whatever a model or a tool wrote.

const LONG_CHARS = 1200;
const LONG_LINES = 14;
const CUT_CHARS = 20000;
const PREVIEW_CHARS = 140;

function asText(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function asJson(text) {
  if (typeof text !== "string" || !/^\s*[[{]/.test(text)) return undefined;
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}

// JSON with its keys set apart.
function jsonBlock(value) {
  const text = JSON.stringify(value, null, 2);
  const block = make("pre", { class: "json", tabindex: "0" });
  if (text.length > CUT_CHARS) return longText(block, text);
  let end = 0;
  for (const match of text.matchAll(/("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?/gi)) {
    const kind = match[2] ? "key" : match[1] ? "string" : "value";
    block.append(text.slice(end, match.index), make("span", { class: kind, text: match[1] ?? match[0] }), match[2] ?? "");
    end = match.index + match[0].length;
  }
  block.append(text.slice(end));
  return block;
}

// A text of megabytes would hold the page up: its start, and the rest when asked for.
function longText(block, text) {
  if (text.length <= CUT_CHARS) {
    block.textContent = visible(text);
    return block;
  }
  block.textContent = visible(text.slice(0, CUT_CHARS));
  const all = () => {
    block.textContent = visible(text);
  };
  block.append(make("button", { type: "button", class: "more", text: `Show all ${count(text.length)} characters`, onclick: all }));
  return block;
}

function textBlock(text, mono = false) {
  return longText(make("div", { class: mono ? "text mono" : "text", dir: "auto" }), text);
}

// Structured output is shown as JSON; everything else as it stands.
function contentBlocks(content, mono = false) {
  if (Array.isArray(content)) {
    return content.map((part) =>
      typeof part?.text === "string" ? textBlock(part.text, mono) : folded(`${spaced(part?.type ?? "part")}`, jsonBlock(part)));
  }
  const text = asText(content);
  if (text === "") return [];
  const parsed = asJson(text);
  return [parsed === undefined ? textBlock(text, mono) : jsonBlock(parsed)];
}

function folded(label, ...blocks) {
  return make("details", { class: "fold" }, make("summary", { text: label }), ...blocks);
}

function preview(text) {
  const line = text.slice(0, 4 * PREVIEW_CHARS).replace(/\s+/g, " ").trim();
  return line.length > PREVIEW_CHARS ? `${line.slice(0, PREVIEW_CHARS)}\u2026` : line;
}

function isLong(text) {
  return text.length > LONG_CHARS || text.split("\n", LONG_LINES + 1).length > LONG_LINES;
}

function reasoningOf(message) {
  const reasoning = message.reasoning_content ?? message.reasoning;
  if (reasoning) return [folded(`Reasoning, ${count(asText(reasoning).length)} characters`, textBlock(asText(reasoning)))];
  return message.reasoning_details ? [folded("Reasoning, opaque", jsonBlock(message.reasoning_details))] : [];
}

function callBlock(call) {
  const name = asText(call?.function?.name) || "(no name)";
  const written = call?.function?.arguments;
  const parsed = written !== null && typeof written === "object" ? written : asJson(written);
  const sound = parsed !== undefined && !Array.isArray(parsed);
  return make(
    "div",
    { class: sound ? "call" : "call malformed" },
    make("div", { class: "call-name" }, make("b", { text: name }), sound ? null : make("span", { class: "flag", text: "malformed arguments" })),
    sound ? jsonBlock(parsed) : textBlock(asText(written) || "(nothing)", true),
  );
}

// A tool that failed answers with an object that holds nothing but its error.
function toolError(content) {
  const parsed = asJson(asText(content));
  const keys = parsed === undefined || Array.isArray(parsed) ? [] : Object.keys(parsed);
  return keys.length === 1 && keys[0] === "error" ? asText(parsed.error) : null;
}

function turnLine(turn, number) {
  const usage = turn.usage ?? {};
  const facts = [`turn ${number}`, spaced(turn.finish_reason)];
  if (usage.prompt_tokens !== undefined || usage.completion_tokens !== undefined) {
    const cached = usage.cached_tokens ? ` (${count(usage.cached_tokens)} cached)` : "";
    const thought = usage.reasoning_tokens ? ` (${count(usage.reasoning_tokens)} reasoning)` : "";
    facts.push(`${count(usage.prompt_tokens)}${cached} \u2192 ${count(usage.completion_tokens)}${thought} tokens`);
  }
  if (turn.latency_s !== null) facts.push(seconds(turn.latency_s));
  if (turn.usd !== null) facts.push(dollars(turn.usd));
  facts.push([turn.provider, turn.model].filter(Boolean).join(", "));
  if (turn.tool_errors) facts.push(plural(turn.tool_errors, "tool error"));
  const line = make("p", { class: "turn" });
  line.append(...facts.map((text) => make("span", { text })));
  if (turn.request_id) line.title = `request ${turn.request_id}`;
  return line;
}

function messageBlock(message, callNames, turn, turnNumber) {
  const role = String(message.role ?? "unknown");
  const text = Array.isArray(message.content) ? message.content.map((part) => asText(part?.text)).join(" ") : asText(message.content);
  const failure = role === "tool" ? toolError(message.content) : null;
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
  const blocks = failure === null ? contentBlocks(message.content, role === "tool") : [textBlock(failure, true)];
  const all = [...reasoningOf(message), ...blocks, ...calls.map(callBlock)];
  if (all.length === 0) all.push(make("div", { class: "text quiet", text: "(empty)" }));
  const open = role === "system" ? false : role !== "tool" || !isLong(text);
  const called = role === "tool" ? callNames.get(message.tool_call_id) : undefined;
  const shown = text || calls.map((call) => `${asText(call?.function?.name)}(${asText(call?.function?.arguments)})`).join(" ");
  return make(
    "details",
    { class: `message ${/^(system|user|assistant|tool)$/.test(role) ? role : "other"}${failure === null ? "" : " failure"}`, open },
    make(
      "summary",
      {},
      make("span", { class: "role", text: role }),
      called ? make("code", { text: called }) : null,
      failure === null ? null : make("span", { class: "flag", text: "error" }),
      make("span", { class: "preview", dir: "auto", text: preview(shown) }),
    ),
    make("div", { class: "said" }, ...all, turn ? turnLine(turn, turnNumber) : null),
  );
}

function pill(text, kind = "") {
  return make("span", { class: `pill ${kind}`, text });
}

// A model that comes with Stillhouse, or lies in a folder.
function isLocal(model) {
  return /^(embedded:|[./~])/.test(model ?? "");
}

function factList(body) {
  const tokens = [body.prompt_tokens, body.completion_tokens].map(count).join(" \u2192 ");
  const thought = body.reasoning_tokens ? ` (${count(body.reasoning_tokens)} reasoning)` : "";
  const providers = body.providers.length > 0 ? body.providers.join(", ") : null;
  const errors = body.tool_errors ? `, ${plural(body.tool_errors, "error")}` : "";
  const facts = [
    ["Expected answer", body.expected_answer],
    ["Turns", count(body.turns?.length ?? body.num_turns)],
    ["Tool calls", `${count(body.tool_calls)}${errors}`],
    ["Tokens", `${tokens}${thought}`],
    ["Cost", body.usd !== null ? dollars(body.usd) : isLocal(body.model) ? "local" : "unknown"],
    ["Waited", seconds(body.latency_s)],
    ["Score", body.score === null ? null : String(body.score)],
    ["Model", body.model],
    ["Provider", providers],
    ["Tag", body.tag],
    ["Sample", body.sample_index === null ? null : String(body.sample_index)],
    ["Split", body.split],
    ["Student tokens", body.num_tokens === null || body.num_tokens === undefined ? null : count(body.num_tokens)],
  ];
  const shown = facts.filter(([, value]) => value !== null && value !== undefined);
  return make("dl", { class: "facts" }, ...shown.map(([name, value]) =>
    make("div", {}, make("dt", { text: name }), make("dd", { text: value, dir: "auto" }))));
}

function extras(body) {
  const parts = [];
  if (body.tools.length > 0) {
    const names = body.tools.map((tool) => asText(tool?.function?.name)).join(", ");
    parts.push(folded(`Tools offered: ${names}`, jsonBlock(body.tools)));
  }
  if (body.metadata && Object.keys(body.metadata).length > 0) parts.push(folded("Metadata", jsonBlock(body.metadata)));
  if (typeof body.tokens?.[0]?.text === "string") parts.push(tokensFold(body.tokens));
  return parts;
}

// A token that was sampled in training: a blue one is to become more probable, an orange one less.
function tokenSpan(token, scale) {
  const text = token.text.replaceAll("\n", "\u23ce\n") || "\u25e6";
  if (token.advantage === undefined) return make("span", { class: "read", text });
  // Most advantages are small.
  const level = Math.round(5 * Math.min(1, Math.sqrt(Math.abs(token.advantage) / scale)));
  const figures = Object.entries(token).filter(([name, value]) => name !== "text" && value !== null);
  const title = figures.map(([name, value]) => `${name} ${Number.isInteger(value) ? value : value.toFixed(3)}`).join("  ");
  return make("span", { class: level ? `t ${token.advantage > 0 ? "p" : "n"}${level}` : "t", title, text });
}

function tokensFold(tokens) {
  const sizes = tokens.flatMap((token) => token.advantage === undefined ? [] : [Math.abs(token.advantage)]).sort((a, b) => a - b);
  // The 98th percentile, so that outliers do not drown the rest.
  const scale = sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes.at(-1) || 1;
  const fold = folded(`Tokens by advantage, ${count(sizes.length)} sampled`);
  const show = () => fold.append(make("div", { class: "tokens" }, ...tokens.map((token) => tokenSpan(token, scale))));
  fold.addEventListener("toggle", show, { once: true });
  return fold;
}

function messagesView(body) {
  const callNames = new Map();
  for (const message of body.messages) {
    for (const call of Array.isArray(message.tool_calls) ? message.tool_calls : []) callNames.set(call?.id, asText(call?.function?.name));
  }
  const turns = Array.isArray(body.turns) ? body.turns : [];
  // The prompt may hold answers itself: those sampled are the last ones.
  let number = turns.length - body.messages.filter((message) => message.role === "assistant").length;
  return body.messages.map((message) => {
    const at = message.role === "assistant" ? number++ : -1;
    return messageBlock(message, callNames, turns[at], at + 1);
  });
}

// What of the answer was compared with what.
function comparisonLine(body) {
  return body.comparison ? make("p", { class: "identity", dir: "auto", text: body.comparison }) : null;
}

function trajectoryView(row, body) {
  const reasons = (body.drop_reasons ?? []).map((reason) => pill(spaced(reason)));
  return make(
    "article",
    { class: "trajectory" },
    make("header", {},
      make("div", { class: "pills" },
        pill(row.outcome, row.outcome),
        body.stop_reason ? pill(spaced(body.stop_reason)) : null,
        row.kept === null ? null : pill(row.kept ? "kept" : "dropped", row.kept ? "" : "dropped"),
        ...reasons,
        row.stage ? pill(row.stage) : null),
      make("h2", { text: row.question || "(no user message)", dir: "auto" }),
      comparisonLine(body),
      make("p", { class: "identity" }, make("code", { text: body.id }))),
    body.error ? make("section", { class: "error", role: "alert" },
      make("b", { text: spaced(body.error.kind ?? "error") }),
      body.error.status ? make("span", { text: `HTTP ${body.error.status}` }) : null,
      textBlock(asText(body.error.message), true)) : null,
    factList(body),
    ...extras(body),
    make("div", { class: "messages" }, ...messagesView(body)),
  );
}

// Answers to one prompt in columns: what they share stands above them once.
function comparisonView(row, rows, bodies, onOpen) {
  const text = (message) => JSON.stringify([message?.role, message?.content]);
  let shared = 0;
  while (bodies.every((body) => body.messages[shared] && body.messages[shared].role !== "assistant"
    && text(body.messages[shared]) === text(bodies[0].messages[shared]))) shared++;
  const columns = rows.map((each, i) =>
    make("section", { class: each === row ? "column chosen" : "column" },
      make("header", {},
        make("h3", {}, make("button", { type: "button", text: each.stage || each.model || "answer", onclick: () => onOpen(each) })),
        make("div", { class: "pills" }, pill(each.outcome, each.outcome), pill(plural(each.turns, "turn")),
          each.completion_tokens === null ? null : pill(`${count(each.completion_tokens)} tok`)),
        comparisonLine(bodies[i])),
      make("div", { class: "messages" }, ...messagesView(bodies[i]).slice(shared))));
  return make(
    "article",
    { class: "trajectory comparison" },
    make("header", {},
      make("h2", { text: row.question || "(no user message)", dir: "auto" }),
      bodies[0].expected_answer === null || bodies[0].expected_answer === undefined ? null
        : make("p", { class: "identity", text: `Expected answer: ${bodies[0].expected_answer}` })),
    make("div", { class: "messages" }, ...messagesView(bodies[0]).slice(0, shared)),
    make("div", { class: "columns" }, ...columns),
  );
}
