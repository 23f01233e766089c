// Starts `kaicep lsp` and lets it help. All that it knows of the languages is in there.
const { workspace } = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

exports.activate = async () => {
  const settings = workspace.getConfiguration("kaicep");
  const deployment = settings.get("deployment");
  const args = ["lsp", ...(deployment ? ["--deployment", deployment] : [])];
  const cwd = workspace.workspaceFolders?.[0]?.uri.fsPath;
  client = new LanguageClient(
    "kaicep",
    { command: settings.get("command"), args, transport: TransportKind.stdio, options: { cwd } },
    { documentSelector: [{ language: "chi-cep" }, { language: "ep-sparql" }] },
  );
  await client.start();
};

exports.deactivate = () => client?.stop();
