"""`kaicep lsp`, asked by a real client of the protocol."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient
from tests.deployment.processes import environment, write

PATIENCE = 120.0
TEXT = """PREFIX own: <urn:own:>
SELECT ?e.x
FROM (?e, air)
FILTER (?e.x > 5)
PATH {?e own:of ?thing . ?thing a v:Room}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path,
        {
            "kaicep.toml": '[knowledge]\nfiles = ["k.ttl"]\n[streams.air]\nannotation = "air.json"\n'
            'types = {x = "int64"}\nsource = {kind = "files", path = "air.jsonl", follow = true}\n',
            "air.json": '{"stream": "air", "prefixes": {"v": "urn:v:"}, "types": {"x": "int64"},\n'
            ' "entities": {"k": {"property": "v:of", "iri": "v:{value}"}}, "attributes": {"x": "v:flow"}}',
            "k.ttl": "@prefix v: <urn:v:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .\n"
            'v:Room a rdfs:Class ; rdfs:label "Besprechungsraum" ; rdfs:comment "for meetings" .\n'
            'v:flow rdfs:label "volume of air" . v:k1 a v:Room .',
            "queries/mine.chi": TEXT,
            "air.jsonl": "",
        },
    )
    return tmp_path


class Editor:
    """A client with one open query, and what it was told about it."""

    def __init__(self, client: LanguageClient, path: Path) -> None:
        self.client = client
        self.uri = path.as_uri()
        self.told: asyncio.Queue[list[types.Diagnostic]] = asyncio.Queue()
        self.version = 0

        @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: types.PublishDiagnosticsParams) -> None:
            self.told.put_nowait(list(params.diagnostics))

    async def show(self, text: str) -> list[types.Diagnostic]:
        """Opens the query, or changes it; what is wrong with it."""
        self.version += 1
        if self.version == 1:
            document = types.TextDocumentItem(self.uri, "chi-cep", 1, text)
            self.client.text_document_did_open(types.DidOpenTextDocumentParams(document))
        else:
            whole = types.TextDocumentContentChangeWholeDocument(text)
            document_id = types.VersionedTextDocumentIdentifier(self.version, self.uri)
            self.client.text_document_did_change(types.DidChangeTextDocumentParams(document_id, [whole]))
        self.text = text
        return await asyncio.wait_for(self.told.get(), PATIENCE)

    def at(self, wanted: str, inside: int = 0) -> tuple[types.TextDocumentIdentifier, types.Position]:
        """The place of a text, or a few characters into it."""
        offset = self.text.index(wanted) + inside
        before = self.text[:offset]
        position = types.Position(before.count("\n"), len(before) - before.rfind("\n") - 1)
        return types.TextDocumentIdentifier(self.uri), position


def edit(folder: Path, walk: Callable[[Editor], Awaitable[None]]) -> None:
    async def run() -> None:
        client = LanguageClient("a test", "1")
        await client.start_io(sys.executable, "-m", "kaicep", "lsp", env=environment())
        editor = Editor(client, folder / "queries" / "mine.chi")
        params = types.InitializeParams(types.ClientCapabilities(), root_uri=folder.as_uri())
        made = await asyncio.wait_for(client.initialize_async(params), PATIENCE)
        assert made.capabilities.hover_provider
        client.initialized(types.InitializedParams())
        await walk(editor)
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()

    asyncio.run(asyncio.wait_for(run(), 4 * PATIENCE))


@pytest.mark.slow
def test_an_editor_is_helped(folder: Path) -> None:
    async def walk(editor: Editor) -> None:
        (wrong,) = await editor.show("SELECT ?e.x\nFROM (?e, airs)\n")
        assert "did you mean air?" in wrong.message
        assert wrong.range.start.line == 1
        assert not [
            each for each in await editor.show(TEXT) if each.severity == types.DiagnosticSeverity.Error
        ]

        await editor.show(TEXT.replace("v:Room}", "besp"))
        place = editor.at("besp", 4)
        found = await editor.client.text_document_completion_async(types.CompletionParams(*place))
        assert isinstance(found, types.CompletionList)
        assert [each.label for each in found.items] == ["v:Room"]
        assert found.items[0].text_edit is not None

        await editor.show(TEXT)
        said = await editor.client.text_document_hover_async(types.HoverParams(*editor.at("v:Room", 3)))
        assert said is not None
        assert isinstance(said.contents, types.MarkupContent)
        assert "Besprechungsraum" in said.contents.value
        assert "for meetings" in said.contents.value

        async def defined(text: str, inside: int) -> types.Location:
            params = types.DefinitionParams(*editor.at(text, inside))
            place = await editor.client.text_document_definition_async(params)
            assert isinstance(place, types.Location)
            return place

        stream = await defined("air)", 1)
        assert stream.uri == (folder / "kaicep.toml").as_uri()
        assert stream.range.start.line == 2
        prefix = await defined("own:of", 1)
        assert (prefix.uri, prefix.range.start.line) == (editor.uri, 0)
        elsewhere = await defined("v:Room", 0)
        assert elsewhere.uri == (folder / "air.json").as_uri()
        variable = await defined("?e.x > 5", 1)
        assert (variable.uri, variable.range.start.line) == (editor.uri, 2)

    edit(folder, walk)


@pytest.mark.slow
def test_a_query_without_a_deployment_is_told_so(folder: Path) -> None:
    (folder / "kaicep.toml").unlink()

    async def walk(editor: Editor) -> None:
        (said,) = await editor.show(TEXT)
        assert "no kaicep.toml" in said.message

    edit(folder, walk)
