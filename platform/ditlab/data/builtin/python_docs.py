"""Store of the documentation that Python carries, as rows of tokens."""

import platform

from ditlab.data.builtin.python_corpus import PythonDocs
from ditlab.data.stores.manifest import MANIFEST_NAME, Source
from ditlab.data.stores.store import Store
from ditlab.data.text.token_store import TokenStoreRequest, write_token_store
from ditlab.home import Home
from ditlab.progress import ignore_progress
from ditlab.spec.data import TextData


def open_python_docs(spec: TextData, home: Home, verify: bool = True) -> Store:
    """Open the spec's store under `home.stores`, written at its first use.

    Two processes may write it at once: they write the same files.
    """
    request = TokenStoreRequest(spec.tokenizer, spec.vocabulary, spec.length, knobs="data.", processes=1)
    name = f"python-docs-{request.label}"
    if not (home.stores / name / MANIFEST_NAME).exists():
        version = platform.python_version()
        source = Source(
            kind="text",
            citation=f"the documentation that Python {version} carries",
            license="PSF-2.0",
            note=f"pydoc_data.topics and the standard library's docstrings of Python {version}; other versions differ",
        )
        description = f"documentation of Python {version} in rows of {spec.length:,} tokens"
        write_token_store(
            home.ensure().stores, name, PythonDocs(), request, lambda: source, description, ignore_progress
        )
    return Store.open(home.stores / name, verify)
