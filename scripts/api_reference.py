#!/usr/bin/env python3
"""Writes demi's API reference as Markdown: a page for each folder, a section for each public header.

    python3 scripts/api_reference.py OUT_FOLDER

Of a header it shows the comment at its top, then its declarations with their comments (long lines filled anew), without
bodies, private members, backends' declarations and macros' definitions.
"""
import html
import itertools
import pathlib
import re
import sys
import textwrap

TOP = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = {"core": "Tensors, devices, memory", "kernels": "The operations, on plain tensors", "autograd": "Gradients",
           "optim": "Optimizers and schedules", "amp": "Mixed precision", "nn": "Layers and operations with gradients",
           "data": "Data"}
INTERNAL = ("/cpu/", "/cuda/", "kernels/dispatch.h", "kernels/unary_functors.h")

# Declarations that say nothing here: classes to come, members of templates that their class has shown, formatters.
ELSEWHERE = re.compile(r"(?:(?:class|struct) \w+;\n)+$|"
                       r"template <[^>]*>\n(?:struct fmt::|.*\bdemi::.*::\w+\(|[^/(]*\b[A-Z]\w*::\w+\()")


def closing(text, start, pair):
    """The index after the bracket that closes the one at `start`; comments and strings hold no odd brackets here."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i + 1
    return len(text)


def without_bodies(text):
    """f() const { ... } -> f() const; constructors lose their initializers as well."""
    head = re.compile(r"\)((?: const| noexcept| override|&&?)*)(?:\s*:\s[^;]*?[)}])?\s*\{")
    at = 0
    while found := head.search(text, at):
        at = found.start() + 1
        if "//" not in text[text.rfind("\n", 0, at) + 1:at]:  # comments stay as they are
            text = text[:found.start()] + ")" + found[1] + ";" + text[closing(text, found.end() - 1, "{}"):]
    return text


def aligned(piece):
    """Comments at the ends of neighbouring lines, which lost bodies in between, below one another again."""
    tail = re.compile(r"(.*\S)  +(// .*)")
    lines = []
    for has_tail, group in itertools.groupby(piece.split("\n"), lambda line: bool(tail.fullmatch(line))):
        group = list(group)
        if has_tail:
            pairs = [tail.fullmatch(line).groups() for line in group]
            width = max(len(code) for code, _ in pairs)
            if width + 2 + max(len(comment) for _, comment in pairs) <= 120:
                group = [f"{code:<{width}}  {comment}" for code, comment in pairs]
        lines += group
    return "\n".join(lines)


def refilled(piece, width=96):
    """Comments whose lines are longer than the page is wide, as paragraphs of `width`; lists and examples as they are."""
    def fill(found):
        lines, start = found[0].rstrip("\n").split("\n"), found[1] + "// "
        if max(map(len, lines)) <= width:
            return found[0]
        text = " ".join(line[len(start):].strip() for line in lines)
        return textwrap.fill(text, width, initial_indent=start, subsequent_indent=start, break_long_words=False,
                             break_on_hyphens=False) + "\n"
    return re.sub(r"^( *)// \S.*\n(?:\1// \S.*\n)*", fill, piece, flags=re.M)


def without_private(text):
    return re.sub(r"\n( *) (?:private|protected):\n.*?(?=\n\1 public:|\n\1\};)", "", text, flags=re.S)


def without_macros(text):
    text = re.sub(r"^#(?:.*\\\n)*.*\n", "", text, flags=re.M)
    while found := re.search(r"^(?:// [^\n]*\n)*DEMI_BACKENDS\(", text, flags=re.M):
        text = text[:found.start()] + text[closing(text, found.end() - 1, "()"):]
    return text


def backend_comments(text):
    """The comments on what both backends declare, by name and parameters. One before them all belongs to the first."""
    comments = {}
    for block in re.finditer(r"^((?:// [^\n]*\n)*)DEMI_BACKENDS\(", text, flags=re.M):
        before, inside = block[1], text[block.end():closing(text, block.end() - 1, "()") - 1]
        for found in re.finditer(r"((?:^ *//[^\n]*\n)*) *void (\w+)(\([^;]*\));", inside, flags=re.M):
            comments[found[2], " ".join(found[3].split())] = before + re.sub(r"^ *", "", found[1], flags=re.M)
            before = ""
    return comments


def with_comments(piece, comments):
    """A public function that takes the same as the backends' does the same: their comment first, then its own."""
    def add(found):
        return comments.get((found[2].removesuffix("_into"), " ".join(found[3].split())), "") + found[0]
    return re.sub(r"^((?:// [^\n]*\n)*)inline void (\w+)(\([^;]*\));", add, piece, flags=re.M)


def declarations(text):
    """Pieces at namespace scope: split at blank lines that no bracket encloses."""
    piece, depth = "", 0
    for line in text.split("\n"):
        if depth == 0 and re.match(r"(namespace [\w:]+ \{|\}  ?// namespace|extern|using namespace)", line):
            line = ""
        code = line.split("//")[0]
        depth += code.count("{") + code.count("(") - code.count("}") - code.count(")")
        if line or depth:
            piece += line + "\n"
        elif piece:
            yield piece
            piece = ""
    if piece:
        yield piece


def prose(comment):
    """Paragraphs as Markdown text, lines that begin with two spaces as blocks of code."""
    text = ""
    for code, lines in itertools.groupby(comment.rstrip().split("\n"), lambda line: line.startswith("  ")):
        block = "\n".join(lines)
        if code:  # statements are C++, the rest formulas and lists
            language = "cpp" if re.search(r";( *//.*)?$|\) \.\.\.$", block, flags=re.M) else "text"
            text += f"\n```{language}\n{block}\n```\n\n"
            continue
        parts = re.split(r"(`[^`]*`)", block)
        text += "".join(p if p.startswith("`") else re.sub(r"([*_\[\]|])", r"\\\1", html.escape(p, quote=False))
                        for p in parts).strip("\n") + "\n"
    return text.rstrip("\n") + "\n"


def section(path):
    text = path.read_text()
    top = re.match(r"(?:// ?[^\n]*\n)*", text)[0]
    name = path.relative_to(TOP).as_posix()
    page = f"\n## {name}\n\n" + prose(re.sub(r"^// ?", "", top, flags=re.M))
    spaces = dict.fromkeys(re.findall(r"^namespace (?!detail)([\w:]+) \{", text, flags=re.M))
    page += "\nIn " + " and ".join(f"`{n}`" for n in spaces) + ".\n"
    comments = backend_comments(text)
    body = without_bodies(without_private(without_macros(text[len(top):])))
    for piece in declarations(re.sub(r"namespace detail \{.*?\}  // namespace detail\n", "", body, flags=re.S)):
        piece = with_comments(piece, comments)
        if re.match(ELSEWHERE, piece):
            continue
        if all(line.startswith("//") for line in piece.rstrip().split("\n")):  # about what follows
            page += "\n" + prose(re.sub(r"^// ?", "", piece, flags=re.M))
            continue
        if found := re.search(r"^(?:class|struct|enum class) (\w+)\b(?!::| *;)", piece, flags=re.M):
            page += f"\n### {found[1]}\n"
        piece = aligned(refilled(piece).rstrip().replace("\n\n};", "\n};").replace("\n\n  };", "\n  };"))
        page += f"\n```cpp\n{piece}\n```\n"
    return page


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    index = ("# API reference\n\nMade from the comments of the public headers. `#include \"demi/demi.h\"` brings what a training needs.\n\n"
             "| folder | holds |\n|---|---|\n")
    for folder, title in FOLDERS.items():
        headers = [h for h in sorted((TOP / folder).rglob("*.h"))
                   if not any(part in h.relative_to(TOP).as_posix() for part in INTERNAL)]
        (out / f"{folder}.md").write_text(f"# {folder}/\n\n{title}.\n" + "".join(map(section, headers)))
        index += f"| [{folder}]({folder}.md) | {title} ({len(headers)} headers) |\n"
    (out / "index.md").write_text(index)


if __name__ == "__main__":
    main()
