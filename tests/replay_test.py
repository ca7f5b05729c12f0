#!/usr/bin/env python3
"""R36: what a power cut could leave of a run. The calls of a whole run are recorded; then, for every moment, each
directory is built that a disk may hold which had not yet got what was not synced. Standard library only."""
import itertools
import shutil
import unittest
from pathlib import Path

from checkpoint_file import CheckpointFile
from faults import FaultCase


class Disk:
    """Files as the program left them and as a medium may hold them. A file is a list [content, bytes on the medium,
    length on the medium]; names lead to files, and changes of names wait for a sync of the directory."""

    def __init__(self) -> None:
        self.now: dict[str, list] = {}
        self.durable: dict[str, list] = {}
        self.waiting: list[tuple] = []  # changes of names not yet synced: (name, file or None) pairs

    def change(self, *pairs: tuple) -> None:
        for name, file in pairs:
            self.name(self.now, name, file)
        self.waiting.append(pairs)

    @staticmethod
    def name(names: dict, name: str, file: list | None) -> None:
        names.pop(name, None)
        if file is not None:
            names[name] = file

    def apply(self, line: str) -> None:
        call, *words = line.split(" ")
        file = self.now.get(words[0])
        if call == "create":
            self.change((words[0], [bytearray(), b""]))
        elif call == "write":
            data, at = bytes.fromhex(words[2]), int(words[1])
            file[0][len(file[0]):] = bytes(max(0, at - len(file[0])))
            file[0][at:at + len(data)] = data
        elif call == "truncate":
            del file[0][int(words[1]):]
        elif call == "allocate":
            file[0][len(file[0]):] = bytes(int(words[1]) - len(file[0]))
        elif call == "sync" and words[0] == ".":
            self.durable, self.waiting = dict(self.now), []
        elif call == "sync":
            file[1] = bytes(file[0])
        elif call == "rename":
            self.change((words[0], None), (words[1], file))
        elif call == "unlink":
            self.change((words[0], None))

    def outcomes(self):
        """Every choice of waiting changes of names, each with unsynced data written, missing, zero or half there."""
        for chosen in itertools.product((True, False), repeat=len(self.waiting)):
            names = dict(self.durable)
            for pairs in itertools.compress(self.waiting, chosen):
                for name, file in pairs:
                    self.name(names, name, file)
            for version in (lambda now, synced: now, lambda now, synced: synced,
                            lambda now, synced: synced + bytes(max(0, len(now) - len(synced))),
                            lambda now, synced: now[:(len(now) + len(synced)) // 2]):
                yield {name: version(bytes(file[0]), file[1]) for name, file in names.items()}


class PowerCuts(FaultCase):
    def replay(self, lines: list[str], reference: Path, start: Path | None = None) -> tuple[int, int]:
        disk, tried, different = Disk(), 0, set()
        for path in sorted(start.iterdir()) if start else []:
            content = path.read_bytes()
            disk.now[path.name] = [bytearray(content), content]
        disk.durable = dict(disk.now)
        saved = -1
        for number, line in enumerate(lines):
            disk.apply(line)
            if line.startswith("write metrics") or (line.startswith("write ") and number % 7):
                continue  # inside a row of writes nothing new can be left
            self.assertLessEqual(len(disk.waiting), 8, "changes of names are synced soon")
            for files in disk.outcomes():
                tried += 1
                visible = frozenset((name, content) for name, content in files.items() if not name.startswith("."))
                if visible in different:
                    continue
                different.add(visible)
                shutil.rmtree(self.run_dir, ignore_errors=True)
                self.run_dir.mkdir()
                for name, content in files.items():
                    (self.run_dir / name).write_bytes(content)
                with self.subTest(line=number, call=line[:60]):
                    self.assert_safe(self.run_dir, reference, saved)
            # what a sync of the directory made durable would be said to be saved
            if line == "sync ." and "last.safetensors" in disk.durable:
                saved = CheckpointFile(disk.durable["last.safetensors"][1]).step
        return tried, len(different)

    def record(self, *arguments: str) -> list[str]:
        trace = self.dir / "trace"
        process = self.faulty(*arguments, trace=str(trace))
        self.assertEqual(process.returncode, 0, process.stderr)
        return [line for line in trace.read_text().splitlines() if not line.startswith("> ")]

    def test_R36_every_directory_that_a_power_cut_can_leave(self) -> None:
        reference = self.reference()
        lines = self.record()
        self.assertGreater(sum(line.startswith("sync ") for line in lines), 20)
        tried, different = self.replay(lines, reference)
        print(f"R36: {tried} outcomes of power cuts, {different} different directories, {len(self.seen)} resumed")
        self.assertGreater(different, 30)


if __name__ == "__main__":
    unittest.main()
