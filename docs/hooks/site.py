"""Hooks of mkdocs: pages made from code and from files of the repository, mathematics as MathML,
checks of the site.

Mkdocs loads this file by its path (`hooks` in mkdocs.yml); the other files of this folder are its
parts.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from built_site import find_faults
from command_notes import leave_out_notes
from figure_gallery import show_figures
from formulas import render_formulas
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from notebook_pages import notebook_pages
from reference import reference_pages
from repository_pages import RepositoryPages
from scrolling_boxes import reach_boxes

from ditlab import __version__

CHECKOUT = Path(__file__).parents[2]


def on_config(config: Any) -> Any:
    """Name the version that the site is of, below every page."""
    config["copyright"] = f"DiTLab {__version__}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the reference, the notebooks, and a page for each file of the repository that a page
    links to.
    """
    for uri, text in (reference_pages() | notebook_pages(Path(config["docs_dir"]))).items():
        files.append(File.generated(config, uri, content=text))
    repository = config["extra"]["repository"] = RepositoryPages(CHECKOUT, Path(config["docs_dir"]))
    pages = {file.src_uri: file.content_string for file in files if file.is_documentation_page()}
    for uri, text in repository.linked_from(pages).items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links out of docs/ to the pages of those files; show figures, and why commands are not
    run.
    """
    linked = config["extra"]["repository"].relinked(markdown, page.file.src_uri)
    return leave_out_notes(show_figures(linked, page.file.src_uri, Path(config["docs_dir"])))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Write formulas as MathML, and let the keyboard reach what scrolls."""
    return reach_boxes(render_formulas(html))


def on_post_build(config: Any) -> None:
    """Check the built pages. Raises PluginError with every fault."""
    if faults := find_faults(Path(config["site_dir"])):
        raise PluginError("faults of the built site:\n" + "\n".join(faults))
