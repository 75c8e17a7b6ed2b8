"""Importer of text files, JSON lines and Parquet as rows of tokens."""

from ditlab.data.import_request import ImportRequest
from ditlab.data.source_files import real_path, visible_name
from ditlab.data.stores.manifest import Source
from ditlab.data.stores.plain_names import folder_name
from ditlab.data.stores.written import WrittenStore
from ditlab.data.text.documents import TextFiles
from ditlab.data.text.token_store import DEFAULT_VOCABULARY, TokenStoreRequest, write_token_store
from ditlab.spec.importing import TextOptions

OPTIONS = TextOptions


def run(request: ImportRequest[TextOptions]) -> list[WrittenStore]:
    """Write one store of tokens and its tokeniser. Raises UserError as `token_store.write_token_store` does."""
    options = request.options
    corpus = TextFiles(options.source, options.column, options.unreadable)
    tokens = TokenStoreRequest(
        options.tokenizer, options.vocabulary or DEFAULT_VOCABULARY, options.length, processes=options.processes
    )
    path = real_path(options.source)
    num = len(corpus.files)
    note = f"read from {visible_name(path.name)}" + (f" ({num:,} files)" if num > 1 else "")

    def source() -> Source:
        return Source(kind="text", note=f"{note}; {corpus.left_out}" if corpus.left_out else note)

    name = options.name or f"text-{folder_name(path.stem)}-{tokens.label}"
    description = f"text of {visible_name(path.name)} in rows of {options.length:,} tokens"
    return [write_token_store(request.out, name, corpus, tokens, source, description, request.progress)]
