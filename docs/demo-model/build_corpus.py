"""The corpus: the text of an installed Rust documentation. `rustup component add rust-docs`, then

    build_corpus.py "$(rustc --print sysroot)/share/doc/rust/html" corpus.txt

Paragraphs, code blocks and headings of the books, and the doc comments of the standard library, each once. Documents
are separated by NUL.
"""

import argparse
import hashlib
import re
from pathlib import Path

from lxml import html

BOOKS = {"book", "reference", "rust-by-example", "nomicon", "cargo", "rustc", "rustdoc", "edition-guide",
         "embedded-book", "clippy", "style-guide", "error_codes", "unstable-book"}
LIBRARIES = {"std", "alloc", "proc_macro", "test"}


def pages(root):
    """Books first, then libraries, without source listings and pages that repeat others."""
    skipped = lambda f: f.name in ("print.html", "all.html") or "src" in f.relative_to(root).parts
    files = [f for f in sorted(root.rglob("*.html")) if not skipped(f)]
    for folders in (BOOKS, LIBRARIES):
        yield from ((f, folders is LIBRARIES) for f in files
                    if f.relative_to(root).parts[0] in folders)


def paragraphs(page, library, seen):
    """Pieces of 60 to 3,000 characters (headings from 20) that no page before had."""
    main = (page.xpath("//main") or page.xpath('//section[@id="main-content"]') or [page])[0]
    for element in main.iter("p", "pre", "li", "h1", "h2", "h3"):
        if element.tag == "li" and element.find("p") is not None:
            continue
        if library and not any("docblock" in (a.get("class") or "") for a in element.iterancestors()):
            continue
        text = element.text_content()
        text = text.strip("\n") if element.tag == "pre" else re.sub(r"[ \t]+", " ", text.replace("\n", " ")).strip()
        if not (20 if element.tag[0] == "h" else 60) <= len(text) <= 3000:
            continue
        digest = hashlib.md5(text.encode()).digest()
        if digest not in seen:
            seen.add(digest)
            yield text


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("html", type=Path)
    p.add_argument("corpus", type=Path)
    a = p.parse_args()
    seen, documents = set(), 0
    with a.corpus.open("w") as out:
        for file, library in pages(a.html):
            try:
                page = html.parse(file).getroot()
            except Exception as e:  # a page that lxml cannot read is left out
                print(f"{file}: {e}")
                continue
            pieces = list(paragraphs(page, library, seen)) if page is not None else []
            if sum(map(len, pieces)) > 300:
                out.write("\n\n".join(pieces) + "\n\0\n")
                documents += 1
    print(f"{documents} documents, {a.corpus.stat().st_size} bytes")


if __name__ == "__main__":
    main()
