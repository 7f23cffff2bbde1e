// How figures and texts are written; an unknown figure is a dash, never a zero.
"use strict";

const DASH = "\u2013";

function count(value) {
  return value === null || value === undefined ? DASH : value.toLocaleString("en-US", { maximumFractionDigits: 0 });
}

function dollars(value) {
  if (value === null || value === undefined) return DASH;
  if (value >= 1 || value === 0) return `$${value.toFixed(2)}`;
  return value < 0.0001 ? "under $0.0001" : `$${value.toFixed(4)}`;
}

function seconds(value) {
  if (value === null || value === undefined) return DASH;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  return whole < 3600
    ? `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`
    : `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

function spaced(name) {
  return String(name).replaceAll("_", " ");
}

// Control characters as pictures of themselves, and marks that would reorder the text around them by their number.
function visible(text) {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\u007f/g, "\u2421")
    .replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => `\u27e8U+${c.charCodeAt(0).toString(16).toUpperCase()}\u27e9`);
}

// An element with text and children; text never becomes markup.
function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") element.textContent = visible(String(value));
    else if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
