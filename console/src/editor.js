// The editor of the workbench. What it knows of the language it asks the server, as `kaicep lsp` does.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { StreamLanguage, HighlightStyle, syntaxHighlighting, bracketMatching } from "@codemirror/language";
import { linter, lintKeymap, lintGutter } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { EditorView, drawSelection, highlightActiveLine, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const holder = document.getElementById("editor");
const field = document.getElementById("text");
const language = document.getElementById("language");
const words = new Set(holder.dataset.keywords.split(" "));

// --- highlighting ---

const TOKENS = [
  [/#.*/, "comment"],
  [/"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?/, "string"],
  [/<[^<>"{}|^`\s]*>/, "link"],
  [/\d{4}-\d\d-\d\d(?:T[\d:.]+(?:Z|[+-][\d:]+)?)?/, "number"],
  [/\d+(?:\.\d+)?\s*(?:us|ms|s|min|h|d)\b|\d+(?:\.\d+)?/, "number"],
  [/[?$]\w+/, "variableName"],
  [/[A-Za-z][\w.-]*:[\w-]*|:[\w-]+/, "typeName"],
];

const highlighting = StreamLanguage.define({
  token(stream) {
    if (stream.eatSpace()) return null;
    for (const [pattern, kind] of TOKENS) {
      if (stream.match(pattern)) return kind;
    }
    const word = stream.match(/[A-Za-z_]\w*/);
    if (word) return words.has(word[0].toUpperCase()) ? "keyword" : "propertyName";
    stream.next();
    return "operator";
  },
});

const colours = HighlightStyle.define([
  { tag: tags.keyword, class: "tok-keyword" },
  { tag: tags.comment, class: "tok-comment" },
  { tag: tags.string, class: "tok-string" },
  { tag: tags.link, class: "tok-iri" },
  { tag: tags.number, class: "tok-number" },
  { tag: tags.variableName, class: "tok-variable" },
  { tag: tags.typeName, class: "tok-concept" },
  { tag: tags.operator, class: "tok-operator" },
]);

// --- what the server knows ---

async function ask(what, more = {}) {
  const body = JSON.stringify({ text: view.state.doc.toString(), language: language.value, ...more });
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(`/console/language/${what}`, { method: "POST", headers, body });
  return answer.ok ? answer.json() : null;
}

const problems = document.getElementById("problems");

async function diagnose() {
  if (!view.state.doc.length) {
    problems.replaceChildren();
    return [];
  }
  const found = (await ask("diagnostics")) ?? [];
  const most = view.state.doc.length;
  problems.replaceChildren(...found.map(row));
  if (!found.some((each) => each.severity === "error")) document.body.dispatchEvent(new CustomEvent("checked"));
  return found.map((each) => ({
    from: Math.min(each.start, most),
    to: Math.min(Math.max(each.end, each.start + 1), most),
    severity: each.severity === "error" ? "error" : each.severity === "warning" ? "warning" : "info",
    message: each.hint ? `${each.message}\n${each.hint}` : each.message,
  }));
}

function row(each) {
  const item = document.createElement("li");
  item.className = `problem ${each.severity}`;
  const place = document.createElement("button");
  place.type = "button";
  place.textContent = `${each.line}:${each.column}`;
  place.addEventListener("click", () => {
    view.dispatch({ selection: { anchor: Math.min(each.start, view.state.doc.length) }, scrollIntoView: true });
    view.focus();
  });
  const text = document.createElement("span");
  text.textContent = each.hint ? `${each.message} (${each.hint})` : each.message;
  item.append(place, text);
  return item;
}

const KINDS = { keyword: "keyword", stream: "class", attribute: "property", concept: "type", entity: "constant", variable: "variable", path: "text", function: "function" };

async function complete(context) {
  const before = context.matchBefore(/[\w:?.<-]*$/);
  if (!context.explicit && (!before || before.from === before.to)) return null;
  const found = await ask("completions", { offset: context.pos });
  if (!found || context.aborted) return null;
  return {
    from: found.start,
    options: found.items.map((each) => ({
      label: each.label,
      apply: each.insert,
      detail: each.detail,
      info: each.about || undefined,
      type: KINDS[each.kind] ?? "text",
    })),
    filter: false,
  };
}

const hover = hoverTooltip(async (_, at) => {
  const found = await ask("hover", { offset: at });
  if (!found) return null;
  return {
    pos: found.start,
    end: found.end,
    create() {
      const dom = document.createElement("div");
      dom.className = "hover";
      dom.textContent = found.text;
      return { dom };
    },
  };
});

const view = new EditorView({
  parent: holder,
  state: EditorState.create({
    doc: field.value,
    extensions: [
      EditorView.cspNonce.of(holder.dataset.nonce),
      lineNumbers(),
      history(),
      drawSelection(),
      highlightActiveLine(),
      bracketMatching(),
      closeBrackets(),
      highlighting,
      syntaxHighlighting(colours),
      linter(diagnose, { delay: 300 }),
      lintGutter(),
      autocompletion({ override: [complete], activateOnTypingDelay: 120 }),
      hover,
      keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap, ...lintKeymap]),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ "aria-label": "the query" }),
      EditorView.updateListener.of((update) => {
        if (update.docChanged) field.value = update.state.doc.toString();
      }),
    ],
  }),
});
field.hidden = true;
document.querySelector("label[for=text]")?.setAttribute("hidden", "");
language.addEventListener("change", () => view.dispatch({ changes: { from: 0, insert: "" } }));

// A suggested PATH is about ?e: it goes to where the cursor was, or to the end, and speaks of the query's own variable.
let visited = false;
view.contentDOM.addEventListener("focus", () => { visited = true; });

document.addEventListener("click", (event) => {
  const chosen = event.target.closest("[data-insert]");
  if (!chosen) return;
  const own = view.state.doc.toString().match(/\(\s*(\?\w+)\s*,/)?.[1] ?? "?e";
  const text = chosen.dataset.insert.replace(/\?e\b/g, own);
  if (!visited) view.dispatch({ selection: { anchor: view.state.doc.length } });
  view.dispatch(view.state.replaceSelection(text));
  view.focus();
});
