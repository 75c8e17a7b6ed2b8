"""Text files, JSON lines and Parquet as rows of tokens."""

from ditlab.data.importing import Imported, ImportRequest
from ditlab.data.stores.manifest import Source
from ditlab.data.text.documents import TextFiles
from ditlab.data.text.token_store import DEFAULT_VOCABULARY, TextRequest, folder_name, write_text_store
from ditlab.spec.importing import TextOptions

OPTIONS = TextOptions


def run(request: ImportRequest[TextOptions]) -> list[Imported]:
    """Write one store of tokens and its tokeniser: see `text_store.write_text_store`, which says what is refused."""
    options = request.options
    corpus = TextFiles(options.source, options.column)
    asked = TextRequest(
        options.tokenizer, options.vocabulary or DEFAULT_VOCABULARY, options.length, processes=options.processes
    )
    path = options.source.resolve()
    num = len(corpus.files)
    source = Source(kind="text", note=f"read from {path.name}" + (f" ({num:,} files)" if num > 1 else ""))
    name = options.name or f"text-{folder_name(path.stem)}-{asked.label}"
    description = f"text of {path.name} in rows of {options.length:,} tokens"
    return [write_text_store(request.out, name, corpus, asked, source, description, request.progress)]
