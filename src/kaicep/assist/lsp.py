"""The language server: answers to editors over the Language Server Protocol, by `help`.

A query belongs to the nearest `kaicep.toml` at or above its folder, which says what streams and knowledge
there are.
"""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from kaicep import __version__
from kaicep.assist import help
from kaicep.assist.help import Situation
from kaicep.errors import Mistake, SourceText

_log = logging.getLogger("kaicep.lsp")
_FILE = "kaicep.toml"
_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "hint": types.DiagnosticSeverity.Hint,
}
_KINDS = {
    "keyword": types.CompletionItemKind.Keyword,
    "stream": types.CompletionItemKind.Class,
    "attribute": types.CompletionItemKind.Field,
    "concept": types.CompletionItemKind.Interface,
    "entity": types.CompletionItemKind.Constant,
    "variable": types.CompletionItemKind.Variable,
    "function": types.CompletionItemKind.Function,
}


class _Deployments:
    """The situations of the deployments that queries belong to, each read once and kept up with."""

    def __init__(self, given: Path | None) -> None:
        self._given = given
        self._known: dict[Path, Situation] = {}

    def of(self, query: Path) -> Situation:
        """That of a query; a mistake where there is none, or where its file is wrong."""
        path = self._given or next(
            (each / _FILE for each in query.resolve().parents if (each / _FILE).is_file()), None
        )
        if path is None:
            raise Mistake(f"no {_FILE} beside {query.name} or above it: streams and knowledge are unknown")
        if path not in self._known:
            self._known[path] = Situation(path)
        self._known[path].refresh()
        return self._known[path]


def serve(deployment: Path | None) -> None:
    """Answers on standard output until the editor is done."""
    make_server(deployment).start_io()


def make_server(deployment: Path | None) -> LanguageServer:
    """The server with all that it can do."""
    server = LanguageServer("kaicep", __version__)
    deployments = _Deployments(deployment)

    def check(uri: str) -> None:
        path, text = _path(uri), server.workspace.get_text_document(uri).source
        try:
            found = help.diagnose(deployments.of(path), path.stem, path.suffix, text)
        except Mistake as mistake:
            message = "; ".join(each.message for each in mistake.diagnostics)
            found = [help.Finding(0, 0, 1, 1, "warning", message)]
        said = [_diagnostic(each, text) for each in found]
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, said))

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        check(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        check(params.text_document.uri)

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=[":", ".", "?", "("])
    )
    def complete(params: types.CompletionParams) -> types.CompletionList:
        path, text, offset = _asked(server, params)
        made = help.complete(deployments.of(path), path.suffix, text, offset)
        area = types.Range(_position(text, made.start), params.position)
        return types.CompletionList(True, [_item(each, area) for each in made.items])

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        path, text, offset = _asked(server, params)
        found = help.hover(deployments.of(path), path.suffix, text, offset)
        if found is None:
            return None
        said = types.MarkupContent(types.MarkupKind.PlainText, found.text)
        return types.Hover(said, types.Range(_position(text, found.start), _position(text, found.end)))

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def define(params: types.DefinitionParams) -> types.Location | None:
        path, text, offset = _asked(server, params)
        found = help.find_definition(deployments.of(path), path.suffix, text, offset)
        if found is None:
            return None
        if found.path is None:
            uri, there = params.text_document.uri, text
        else:
            uri, there = Path(found.path).resolve().as_uri(), Path(found.path).read_text("utf-8")
        return types.Location(uri, types.Range(_position(there, found.start), _position(there, found.end)))

    return server


def _asked(
    server: LanguageServer, params: types.CompletionParams | types.HoverParams | types.DefinitionParams
) -> tuple[Path, str, int]:
    """The file, its text, and the offset that is asked about."""
    document = server.workspace.get_text_document(params.text_document.uri)
    return _path(params.text_document.uri), document.source, document.offset_at_position(params.position)


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def _position(text: str, offset: int) -> types.Position:
    """A place as the protocol counts: lines and UTF-16 units from 0."""
    line, column = SourceText("", text).position(offset)
    before = SourceText("", text).line(line)[: column - 1]
    return types.Position(line - 1, len(before.encode("utf-16-le")) // 2)


def _diagnostic(found: help.Finding, text: str) -> types.Diagnostic:
    area = types.Range(_position(text, found.start), _position(text, max(found.end, found.start + 1)))
    message = f"{found.message}\n{found.hint}" if found.hint else found.message
    return types.Diagnostic(area, message, _SEVERITIES.get(found.severity), source="kaicep")


def _item(item: help.Item, area: types.Range) -> types.CompletionItem:
    return types.CompletionItem(
        label=item.label,
        kind=_KINDS.get(item.kind),
        detail=item.detail or None,
        documentation=item.about or None,
        filter_text=f"{item.label} {item.detail}",
        text_edit=types.TextEdit(area, item.insert),
    )
