// Writes what the pages load into src/kaicep/console/static: one script for all pages, one for the
// editor, the style sheet, and the licences of what is in them.
import { build } from "esbuild";
import { copyFileSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../src/kaicep/console/static");

const made = await build({
  absWorkingDir: here,
  entryPoints: ["src/console.js", "src/editor.js", "src/console.css"],
  outdir: target,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
});

copyFileSync(join(here, "src/icon.svg"), join(target, "icon.svg"));

const packages = new Set();
for (const path of Object.keys(made.metafile.inputs)) {
  const found = path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) packages.add(found[1]);
}
const texts = [...packages].sort().map((name) => {
  const folder = join(here, "node_modules", name);
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  if (!file) throw new Error(`${name} has no licence text`);
  const text = readFileSync(join(folder, file), "utf8").trim();
  return `${name} ${about.version} (${about.license})\n\n${text}\n`;
});
const line = "-".repeat(80);
writeFileSync(join(target, "LICENSES.txt"), texts.join(`\n${line}\n\n`));
