// What all pages do in the browser: times and numbers as the reader writes them, live parts, keys.
import htmx from "htmx.org";

htmx.config.allowEval = false;
htmx.config.includeIndicatorStyles = false;
htmx.config.selfRequestsOnly = true;
htmx.config.historyCacheSize = 0;
htmx.config.responseHandling = [
  { code: "204", swap: false },
  { code: "[2345]..", swap: true },
];

// --- times and numbers ---

const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const number = new Intl.NumberFormat(undefined, { maximumFractionDigits: 3 });

function localise(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const when = new Date(each.dateTime);
    if (Number.isNaN(when.getTime())) continue;
    const text = each.dataset.form === "clock" ? clock.format(when) : `${day.format(when)}, ${clock.format(when)}`;
    if (each.textContent !== text) each.textContent = text;
    each.title = `${each.dateTime.replace("T", " ").replace("Z", "")} UTC`;
  }
  for (const each of root.querySelectorAll("data[value]")) {
    const value = Number(each.value);
    if (!Number.isNaN(value)) each.textContent = number.format(value);
  }
}

// --- live parts: a page names its stream, the stream names the parts it replaces ---

const LOST = "connection lost; reconnecting";

function follow(page) {
  const stream = new EventSource(page.dataset.live);
  const said = document.querySelector(".connection");
  const state = (name, text) => {
    page.dataset.connection = name;
    if (said) {
      said.dataset.connection = name;
      said.textContent = text;
    }
  };
  stream.onopen = () => state("live", "live");
  stream.onerror = () => {
    state("lost", LOST);
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => follow(page), 2000);
  };
  stream.addEventListener("part", (event) => {
    const { id, html } = JSON.parse(event.data);
    const part = document.getElementById(id);
    if (!part || part.dataset.paused === "yes") return;
    part.innerHTML = html;
    htmx.process(part);
    localise(part);
  });
  stream.addEventListener("rows", (event) => {
    const { id, html, most } = JSON.parse(event.data);
    const part = document.getElementById(id);
    if (!part || part.dataset.paused === "yes") return;
    part.insertAdjacentHTML("afterbegin", html);
    while (part.children.length > most) part.lastElementChild.remove();
    localise(part);
    document.getElementById("none-yet")?.remove();
  });
  stream.addEventListener("end", () => {
    stream.close();
    state("lost", "the deployment has stopped; reconnecting");
    setTimeout(() => follow(page), 2000);
  });
  addEventListener("pagehide", () => stream.close());
}

// --- keys: g and a letter goes to a page, / to the search field, ? to the list of keys ---

let leading = 0;

function typed(event) {
  const field = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Escape") document.activeElement?.blur();
  if (field || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key === "?") {
    document.getElementById("keys")?.showModal();
  } else if (event.key === "g") {
    leading = Date.now();
  } else if (Date.now() - leading < 1500) {
    document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
    leading = 0;
  }
}

function clicked(event) {
  const button = event.target.closest("[data-does]");
  if (!button) return;
  if (button.dataset.does === "pause") {
    const part = document.getElementById(button.dataset.of);
    const paused = part.dataset.paused === "yes";
    part.dataset.paused = paused ? "no" : "yes";
    button.textContent = paused ? "Pause" : "Resume";
    button.setAttribute("aria-pressed", String(!paused));
  } else if (button.dataset.does === "copy") {
    navigator.clipboard?.writeText(location.href);
    button.textContent = "Copied";
  } else if (button.dataset.does === "close") {
    button.closest("dialog").close();
  }
}

document.addEventListener("DOMContentLoaded", () => {
  localise(document);
  const page = document.querySelector("[data-live]");
  if (page) follow(page);
});
document.addEventListener("htmx:afterSwap", (event) => localise(event.detail.target));
document.addEventListener("keydown", typed);
document.addEventListener("click", clicked);
