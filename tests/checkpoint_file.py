"""Checkpoints read, changed and sealed again by a second implementation of their format."""
import hashlib
import json
import struct
from pathlib import Path

DIGEST = 32


def seal(data: bytes) -> bytes:
    """The same file with a right checksum in its last 32 bytes."""
    return data[:-DIGEST] + hashlib.sha256(data[:-DIGEST]).digest()


class CheckpointFile:
    """Raises ValueError unless the file is whole."""

    def __init__(self, data: bytes) -> None:
        if len(data) < 8 + DIGEST or seal(data) != data:
            raise ValueError("the checksum does not match")
        size = int.from_bytes(data[:8], "little")
        self.header = json.loads(data[8:8 + size])
        self.metadata = self.header.pop("__metadata__")
        self.body = bytearray(data[8 + size:-DIGEST])

    @classmethod
    def of(cls, path: Path) -> "CheckpointFile":
        return cls(path.read_bytes())

    def place(self, name: str) -> slice:
        return slice(*self.header[name]["data_offsets"])

    def floats(self, name: str) -> tuple[float, ...]:
        data = self.body[self.place(name)]
        return struct.unpack(f"<{len(data) // 4}f", data)

    def set_floats(self, name: str, values: list[float]) -> None:
        self.body[self.place(name)] = struct.pack(f"<{len(values)}f", *values)

    def number(self, name: str) -> float:
        return struct.unpack("<d" if name == "best_val_loss" else "<q", self.body[self.place("qkgpt." + name)])[0]

    @property
    def step(self) -> int:
        return int(self.number("step"))

    @property
    def best(self) -> tuple[int, float]:
        """Step and validation loss of the best state that this one knows of; step -1: none."""
        return int(self.number("best_step")), self.number("best_val_loss")

    def tensors(self) -> dict[str, bytes]:
        return {name: bytes(self.body[self.place(name)]) for name in self.header if name != "~sha256"}

    def bytes(self) -> bytes:
        text = json.dumps({"__metadata__": self.metadata} | self.header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return seal(len(text).to_bytes(8, "little") + text + bytes(self.body) + bytes(DIGEST))
