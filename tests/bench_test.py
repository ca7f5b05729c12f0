#!/usr/bin/env python3
"""`qkgpt bench`: what it prints, and that the updates it times are those of training."""
import json
import os
import re
import struct
import unittest
import zlib

from program import Case

LAST_LINE = re.compile(r"\nbench: loss (\d\.\d{1,9}) crc ([0-9a-f]{8})\n$")
ORDER = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
         "attn.qk_scale", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
         "mlp.c_proj.bias"]


def weights_crc(checkpoint: bytes, layers: int) -> str:
    """CRC-32 of all weights, in the order in which the model lists them."""
    size, = struct.unpack("<Q", checkpoint[:8])
    header = json.loads(checkpoint[8:8 + size])
    names = ["wte.weight", "wpe.weight"] + [f"h.{i}.{part}" for i in range(layers) for part in ORDER]
    crc = 0
    for name in names + ["ln_f.weight", "ln_f.bias"]:
        if tensor := header.get("transformer." + name):
            begin, end = tensor["data_offsets"]
            crc = zlib.crc32(checkpoint[8 + size + begin:8 + size + end], crc)
    return f"{crc:08x}"


class Bench(Case):
    def test_the_updates_are_those_of_training_for_every_number_of_threads(self) -> None:
        for kind in ("standard", "qk_norm"):
            self.train("r", f"--attention={kind}", "--max_iters=12", "--eval_interval=0", "--overwrite")
            trained = weights_crc(self.file("r"), 2)
            loss = self.rows("r", "train")[-1]["loss"]
            for threads in (1, 2, 3, 7):
                with self.subTest(kind=kind, threads=threads):
                    out, _ = self.run_program("bench", "tiny.json", f"--attention={kind}", "--max_iters=12",
                                              "--steps=12", env={"OMP_NUM_THREADS": str(threads)})
                    found = LAST_LINE.search(out)
                    self.assertIsNotNone(found, out)
                    self.assertEqual(found[2], trained)
                    self.assertLess(abs(float(found[1]) - loss), 1e-8)

    def test_without_a_text_and_config_it_measures_the_defaults(self) -> None:
        out, _ = self.run_program("bench", "--steps=3", "--n_layer=1")
        for wanted in ("peak ", "memory ", "attn.c_attn 768 x 384 x 128", "mlp.c_proj 768 x 128 x 512",
                       "head 768 x 65 x 128", "batch ", "forward ", "backward ", "optimiser ", "(attention ", "tokens/s",
                       "of the peak"):
            self.assertIn(wanted, out)
        self.assertRegex(out, LAST_LINE)

    def test_json_holds_the_same_and_adds_up(self) -> None:
        out, _ = self.run_program("bench", "tiny.json", "--steps=20", "--json")
        b = json.loads(out)
        self.assertEqual(b["steps"], 20)
        self.assertEqual(b["config"]["n_embd"], 16)
        self.assertEqual(len(b["products"]), 5)
        for p in b["products"]:
            for key in ("forward_gflops", "dx_gflops", "dw_gflops"):
                self.assertGreater(p[key], 0)
        ms = b["ms"]
        self.assertLessEqual(ms["best"], ms["low"])
        self.assertLessEqual(ms["low"], ms["median"])
        self.assertLessEqual(ms["median"], ms["high"])
        self.assertAlmostEqual(b["fraction"], b["gflops"] / b["peak_gflops"])
        tokens = 4 * 16 * 2
        self.assertAlmostEqual(b["tok_per_s"], 1e3 * tokens / ms["median"])
        parameters = 24 * 16 + 2 * (2 * 16 + 12 * 16 * 16) + 16  # 24 characters; positions are not counted
        vocabulary = len(set((self.dir / "text.txt").read_text()))
        parameters += (vocabulary - 24) * 16
        self.assertAlmostEqual(b["gflops"], 1e-9 * b["tok_per_s"] * (6 * parameters + 12 * 2 * 16 * 16))
        self.assertGreater(b["memory"]["arena"], 0)

    def test_no_more_threads_are_used_than_there_are_cores(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        out, err = self.run_program("bench", "tiny.json", "--steps=1", f"--threads={cores + 2}", "--json")
        self.assertEqual(json.loads(out)["threads"], cores)
        self.assertIn(f"threads: {cores + 2} asked for, {cores} used", err)

    def test_binding_threads_leaves_them_their_cores(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        for told in ({"OMP_PROC_BIND": "close"}, {"OMP_PLACES": "cores"}, {"GOMP_CPU_AFFINITY": f"0-{cores - 1}"}):
            with self.subTest(told):
                out, _ = self.run_program("bench", "tiny.json", "--steps=1", "--json",
                                          env=told | {"OMP_NUM_THREADS": ""})
                self.assertEqual(json.loads(out)["threads"], cores)

    def test_bad_input_is_refused(self) -> None:
        for arguments, message in ((["--steps=0"], "--steps"), (["--data=none.txt"], "none.txt"),
                                   (["--n_head=3"], "n_embd"), (["--step=5"], "--steps"),
                                   (["nofile.json"], "nofile.json")):
            _, err = self.run_program("bench", *arguments, code=2)
            self.assertIn(message, err)


if __name__ == "__main__":
    unittest.main()
