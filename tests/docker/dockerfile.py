"""The Dockerfile, as stages of instructions."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
TARGETS = ["cpu", "gpu"]


class Instruction(NamedTuple):
    """One line, with those that continue it."""

    name: str
    text: str


def stages() -> dict[str, list[Instruction]]:
    """The instructions of each stage, its FROM the first; those before any stage are left out."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    found: dict[str, list[Instruction]] = {}
    for line in filter(None, lines):
        instruction = Instruction(*line.split(maxsplit=1))
        if instruction.name == "FROM":
            current = found.setdefault(instruction.text.split(" AS ")[1], [])
        if found:
            current.append(instruction)
    return found


def lineage(target: str) -> list[Instruction]:
    """What makes an image: its stage's instructions after those of the stages that it is from."""
    found = stages()
    parent = found[target][0].text.split()[0]
    return [*(lineage(parent) if parent in found else []), *found[target]]


def texts(instructions: list[Instruction], name: str) -> list[str]:
    """What follows each instruction of this name."""
    return [instruction.text for instruction in instructions if instruction.name == name]


def variables(target: str) -> dict[str, str]:
    """The image's environment."""
    pairs = " ".join(texts(lineage(target), "ENV")).split()
    return dict(pair.split("=", 1) for pair in pairs)


def pip_commands() -> Iterator[str]:
    """All `pip install` and `pip wheel` of all stages, and of the last step."""
    commands = [text for stage in stages().values() for text in texts(stage, "RUN")]
    commands.append((DOCKERFILE.parent / "finish.sh").read_text())
    for command in commands:
        for part in re.split(r"&&|;|\n", command):
            if re.search(r"\bpip (install|wheel)\b", part):
                yield part
