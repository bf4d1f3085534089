"""Turns a C header into a Markdown page: each comment becomes text, and each declaration becomes code under its name.
"""
import re
import textwrap

NAME = re.compile(r"^#define (\w+)|^typedef enum (\w+)|^typedef struct (\w+)|KVANT_API[^;(]*?\b(\w+)\(|^typedef [^;]*?\b(\w+);", re.MULTILINE)


def page(header):
    text = prose(re.match(r"/\*(.*?)\*/", header, re.DOTALL).group(1)) + "\n"
    body = header[header.index("#define KVANT_API\n#endif") + len("#define KVANT_API\n#endif"):]
    body = body[:body.rindex("#ifdef __cplusplus")]
    for part in parts(body):
        text += "\n" + part
    return text


def prose(comment):
    """Returns a comment's text without stars, and without line breaks inside paragraphs. Indented lines become code."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.strip("\n").split("\n")]
    paragraphs = "\n".join(lines).strip().split("\n\n")
    return "\n\n".join(code(paragraph) if paragraph.startswith("  ") else " ".join(paragraph.split())
                       for paragraph in paragraphs)


def code(paragraph):
    return "```\n" + textwrap.dedent(paragraph) + "\n```"


def parts(body):
    """Yields declarations with the comments before them. A comment without a declaration becomes text between them."""
    for block in top_level_blocks(body):
        comment = re.match(r"/\*(.*?)\*/\s*", block, re.DOTALL)
        text = prose(comment.group(1)) + "\n" if comment else ""
        code = block[comment.end():] if comment else block
        if not code.strip():
            yield text
            continue
        title = next(filter(None, NAME.search(code).groups()))
        yield f"## {title}\n\n" + (text + "\n" if text else "") + f"```c\n{code.strip()}\n```\n"


def top_level_blocks(body):
    """Yields the pieces between blank lines at which no brace and no comment is open."""
    piece, depth, commented = [], 0, False
    for line in body.split("\n"):
        if not line.strip() and depth == 0 and not commented:
            if piece:
                yield "\n".join(piece)
            piece = []
            continue
        piece.append(line)
        bare = re.sub(r"/\*.*?\*/", "", line)
        commented = "/*" in bare or (commented and "*/" not in bare)
        depth += bare.count("{") - bare.count("}")
    if piece:
        yield "\n".join(piece)
