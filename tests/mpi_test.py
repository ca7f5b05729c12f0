#!/usr/bin/env python3
"""Several ranks under mpirun: the same bits for every number, stopped, killed and resumed. Builds the program with MPI
beside the one under test. Debian: apt-get install libopenmpi-dev openmpi-bin"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from checkpoint_file import CheckpointFile
from program import PROGRAM, TINY, Case

ROOT = Path(__file__).resolve().parent.parent
KILLS = int(os.environ.get("QKGPT_KILLS", "3"))
# Open MPI as root and with more ranks than cores; version 4 reads the first words, version 5 the others too
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
SAME = ("CMAKE_CXX_COMPILER", "CMAKE_CXX_FLAGS", "CMAKE_BUILD_TYPE", "QKGPT_ARCH", "QKGPT_OPENMP")  # in both builds
LONG = TINY | {"gradient_accumulation_steps": 8, "max_iters": 400, "eval_interval": 100, "checkpoint_interval": 20,
               "sample_length": 8, "log_interval": 20}


def cached(key: str) -> str:
    """What the build of the program under test was configured with."""
    cache = Path(PROGRAM).parent / "CMakeCache.txt"
    found = re.search(rf"(?m)^{key}:\w+=(.*)$", cache.read_text(encoding="utf-8")) if cache.exists() else None
    return found[1] if found else ""


def with_mpi() -> str:
    if "MPI" in subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout:
        return PROGRAM
    build = Path(PROGRAM).parent / "mpi"  # stays, so that the next time only what changed is compiled
    for command in (["cmake", "-S", str(ROOT), "-B", str(build), "-DQKGPT_MPI=ON", "-DBUILD_TESTING=OFF",
                     *(f"-D{key}={cached(key)}" for key in SAME if cached(key))],
                    ["cmake", "--build", str(build), "-j", "2"]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f"{command}\n{done.stdout}")
    return str(build / "qkgpt")


class Launched(Case):
    @classmethod
    def setUpClass(cls) -> None:
        cls.program = with_mpi()

    def launch(self, ranks: int, *arguments: str, program: str | None = None, env: dict | None = None, **options):
        self.command = ["mpirun", "-n", str(ranks), program or self.program] if ranks > 1 else [self.program]
        return self.start(*arguments, env=ALLOWED | (env or {}), **options)

    def on(self, ranks: int, *arguments: str, code: int = 0, **options) -> tuple[str, str]:
        process = self.launch(ranks, *arguments, **options)
        out, err = (stream.decode() for stream in process.communicate(timeout=120))  # hangs are failures
        self.assertEqual(process.returncode, code, f"{ranks} ranks, {arguments}\n{out}\n{err}")
        return out, err

    def train_on(self, ranks: int, run: str, *arguments: str, **options) -> tuple[str, str]:
        return self.on(ranks, "train", "tiny.json", f"--out_dir={self.dir / run}", *arguments, **options)

    def rank_pids(self, run: str) -> list[int]:
        """Processes of the program that train in this directory."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == self.program.encode() and f"--out_dir={self.dir / run}".encode() in words:
                found.append(int(process.name))
        return sorted(found)

    def start_and_wait(self, ranks: int, run: str, *arguments: str) -> tuple[subprocess.Popen, list[int]]:
        """Until the first update is made."""
        process = self.launch(ranks, "train", "tiny.json", f"--out_dir={self.dir / run}", *arguments)
        for line in process.stdout:
            if line.startswith(b"iter"):
                break
        return process, self.rank_pids(run)


class Killed:
    def test_a_killed_rank_ends_the_run_and_costs_nothing_older(self) -> None:
        self.config(LONG)
        self.train_on(1, "whole")
        dice = random.Random(1)
        killed = 0
        for round in range(KILLS):
            run = f"killed{round}"
            process, pids = self.start_and_wait(2, run)
            time.sleep(dice.uniform(0.0, 0.3))
            try:
                os.kill(dice.choice(pids), signal.SIGKILL)
                killed += 1
            except (IndexError, ProcessLookupError):
                continue  # it had ended
            out, err = process.communicate(timeout=60)
            self.assertNotEqual(process.returncode, 0)
            self.assertRegex(out + err, rb"(?i)killed")
            for pid in self.rank_pids(run):
                self.fail(f"process {pid} lives on")
            self.train_on(dice.choice((1, 2)), run, "--resume")
            self.assert_same("whole", run)
        self.assertGreater(killed, 0)


NEEDS = unittest.skipIf(missing := [tool for tool in ("mpirun", "mpicxx", "mpicc", "cmake") if not shutil.which(tool)],
                        f"not installed: {', '.join(missing)}")


@NEEDS
class Ranks(Killed, Launched):
    def test_bits_do_not_depend_on_the_number_of_ranks(self) -> None:
        self.config(TINY | {"gradient_accumulation_steps": 8, "sample_length": 20})
        self.train_on(1, "one")
        for ranks in (2, 4, 8):
            out, _ = self.train_on(ranks, f"on{ranks}")
            self.assert_same("one", f"on{ranks}")
            self.assertEqual(self.file("one", "samples.txt"), self.file(f"on{ranks}", "samples.txt"))
            self.assertRegex(out, rf"(?m)^ranks      {ranks} ranks: \S+ {ranks} x 1 thread$")
            self.assertEqual(out.count("final:"), 1)  # one speaks for all
        if not cached("QKGPT_SANITIZE"):  # sanitizers round differently, and MPI's own leaks are not ours
            self.command = [PROGRAM]
            self.train("plain")
            self.assertEqual(self.rows("plain")[-1], self.rows("one")[-1])

    def test_an_odd_part_of_the_micro_batches_stays_in_one_rank(self) -> None:
        self.config(TINY | {"gradient_accumulation_steps": 6, "attention": "qk_norm", "bias": True})
        self.train_on(1, "one")
        self.train_on(2, "two")
        self.assert_same("one", "two")

    def test_stopped_on_two_ranks_and_resumed_on_four_and_one(self) -> None:
        self.config(LONG)
        self.train_on(1, "whole")
        for which in (0, 1):  # the rank that is told
            run = f"stopped{which}"
            for ranks, more in ((2, []), (4, ["--resume"])):
                process, pids = self.start_and_wait(ranks, run, *more)
                self.assertEqual(len(pids), ranks)
                os.kill(pids[which], signal.SIGTERM)
                out, err = (stream.decode() for stream in process.communicate(timeout=60))
                self.assertEqual(process.returncode, 143, out + err)
                self.assertEqual(out.count("stopped by SIGTERM at step"), 1)
            self.train_on(1, run, "--resume")
            self.assert_same("whole", run)

    def test_a_rank_told_to_save_saves(self) -> None:
        self.config(LONG | {"checkpoint_interval": None, "eval_interval": 0, "max_iters": 100000})
        process, pids = self.start_and_wait(2, "run")
        before = self.file("run")
        os.kill(pids[1], signal.SIGUSR1)
        for line in process.stdout:
            if line.startswith(b"saving"):
                break
        self.assertNotEqual(self.file("run"), before)
        self.assertIsNone(process.poll())
        os.kill(pids[0], signal.SIGTERM)
        process.communicate(timeout=60)

    def test_other_weights_on_a_rank_are_noticed(self) -> None:
        library = self.dir / "fault.so"
        subprocess.run(["mpicc", "-shared", "-fPIC", "-o", str(library), str(ROOT / "tests" / "mpi_fault.c")], check=True)
        # for each part of the model a rank sends two messages an update: a half, then sums that both must have
        for message, noticed in (("3", False), ("4", True)):
            faulty = {"LD_PRELOAD": str(library), "FAULTY_RANK": "1", "FAULTY_SEND": message}
            out, err = self.train_on(2, f"run{message}", env=faulty, code=1 if noticed else 0)
            self.assertEqual("step 10: rank 1 has other weights than rank 0" in err, noticed, out + err)
            # what may be wrong is not saved
            self.assertEqual(CheckpointFile(self.file(f"run{message}")).step, 0 if noticed else 40)

    def test_errors_are_told_once_with_their_exit_code(self) -> None:
        self.train_on(1, "run")
        for ranks, arguments, code, message in (
            (2, ["train", "tiny.json", "--data=none.txt"], 2, "none.txt: "),
            (2, ["train", "tiny.json", "--n_layr=1"], 2, "--n_layr: unknown option; did you mean --n_layer?"),
            (2, ["train", "tiny.json", f"--out_dir={self.dir / 'run'}"], 2, "holds a run; --resume goes on with it"),
            (2, ["train", "tiny.json", "--learning_rate=1e30", "--decay_lr=false", "--grad_clip=0", "--out_dir=r"], 3,
             " is not finite (loss "),
            (3, ["train", "tiny.json"], 2, "ranks: 3 cannot share 2 micro-batches"),
            (4, ["train", "tiny.json"], 2, "ranks: 4 cannot share 2 micro-batches"),
            (2, ["sample", "run"], 2, "sample: runs alone; start it without the launcher"),
            (2, ["eval", "run", "--data=none.txt"], 2, "none.txt: "),
        ):
            with self.subTest(arguments=arguments):
                out, err = self.on(ranks, *arguments, code=code)
                self.assertEqual(err.count(message), 1, out + err)

    @unittest.skipIf((os.cpu_count() or 1) > 8, "too many cores to have more ranks than cores")
    def test_more_threads_than_cores_are_not_silent(self) -> None:
        for ranks in (1, 16):
            _, err = self.on(ranks, "train", "tiny.json", "--dry-run", "--gradient_accumulation_steps=16")
            self.assertEqual(len(re.findall(r"(?m)^threads: 16 threads of 16 ranks share \d cores? of \S+; fewer ", err)),
                             1 if ranks > 1 else 0, err)

    def test_a_build_without_mpi_is_no_crowd(self) -> None:
        if self.program == PROGRAM:
            return  # the one under test has MPI
        _, err = self.on(2, "train", "tiny.json", program=PROGRAM, code=2)
        self.assertIn("a launcher started 2 processes, and this build has one; build with -DQKGPT_MPI=ON", err)
        self.assertFalse((self.dir / "runs").exists())

    def test_eval_on_any_number_of_ranks(self) -> None:
        self.train_on(1, "run")
        alone = self.on(1, "eval", "run", "--json")[0]
        for ranks in (2, 3):
            self.assertEqual(self.on(ranks, "eval", "run", "--json")[0], alone)

    def test_commands_of_the_document_work_as_written(self) -> None:
        text = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
        commands = "".join(re.findall(r"```bash\n(.*?)```", text, re.S)).splitlines()
        self.assertEqual(len(commands), 4)
        self.assertIn("-DQKGPT_MPI=ON", commands[0])  # as with_mpi() does
        (self.dir / "configs").mkdir()
        (self.dir / "build" / "mpi").mkdir(parents=True)
        (self.dir / "build" / "mpi" / "qkgpt").symlink_to(self.program)
        self.config(TINY, "configs/shakespeare_char_cpu.json")
        for command in commands[1:]:
            command = command.replace(" bench ", " bench configs/shakespeare_char_cpu.json --steps=6 ")
            done = subprocess.run(command, shell=True, cwd=self.dir, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=120, env=os.environ | ALLOWED)
            self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")

    def test_bench_and_dry_run(self) -> None:
        alone = self.on(1, "bench", "tiny.json", "--steps=6", "--json")[0]
        both = self.on(2, "bench", "tiny.json", "--steps=6", "--json")[0]
        a, b = json.loads(alone), json.loads(both)
        self.assertEqual((a["crc"], a["loss"]), (b["crc"], b["loss"]))
        self.assertEqual((a["ranks"], b["ranks"]), (1, 2))
        self.assertEqual(a["ms"]["exchange"], 0)
        self.assertGreater(b["ms"]["exchange"], 0)
        out, _ = self.on(2, "bench", "tiny.json", "--steps=6")
        self.assertRegex(out, r"(?m)^exchange   .* a rank and update, .* hidden behind backward, .* waited$")
        out, _ = self.on(2, "train", "tiny.json", "--dry-run")
        self.assertEqual(out.count("time       about"), 1)


def namespaces_can_be_made() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare", "mount"))):
        return False
    name = f"qkgpt{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    return made and subprocess.run(["ip", "netns", "del", name], capture_output=True).returncode == 0


@NEEDS
@unittest.skipUnless(namespaces_can_be_made(), "two hosts on one machine need root, iproute2 and network namespaces")
class Hosts(Killed, Launched):
    """Two hosts: network namespaces with a link of 1 Gbit/s, the second one without a view of the test's files."""
    ADDRESSES = "10.77.131.1", "10.77.131.2"

    def setUp(self) -> None:
        super().setUp()
        if "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
            self.skipTest("written for Open MPI's mpirun")
        self.names = [f"qk{os.getpid()}{end}" for end in "ab"]
        for name in self.names:
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
        a, b = self.names
        for command in (f"ip netns add {a}", f"ip netns add {b}",
                        f"ip link add veth0 netns {a} type veth peer name veth0 netns {b}"):
            subprocess.run(command.split(), check=True)
        for name, address in zip(self.names, self.ADDRESSES):
            for command in (f"ip -n {name} link set lo up", f"ip -n {name} addr add {address}/24 dev veth0",
                            f"ip -n {name} link set veth0 up",
                            f"tc -n {name} qdisc add dev veth0 root tbf rate 1gbit burst 256kb latency 50ms"):
                subprocess.run(command.split(), check=True)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.agent = Path(folder.name) / "agent"  # in ssh's place: agent ADDRESS COMMAND
        self.agent.write_text(f"""#!/bin/sh
[ "$1" = {self.ADDRESSES[1]} ] && shift && exec ip netns exec {b} unshare --uts --mount sh -c "
hostname {b}; mount -t tmpfs none {self.dir}; $*"
""")
        self.agent.chmod(0o755)

    def launch(self, ranks: int, *arguments: str, program: str | None = None, env: dict | None = None, **options):
        if ranks == 1:
            return super().launch(1, *arguments, program=program, env=env, **options)
        network = f"{self.ADDRESSES[0]}/24"
        mpirun = ["mpirun", "--mca", "plm_rsh_agent", str(self.agent), "--mca", "oob_tcp_if_include", network, "--mca",
                  "btl_tcp_if_include", network, "--bind-to", "none", "--map-by", "node", "-n", str(ranks), "--host",
                  ",".join(f"{address}:{ranks // 2}" for address in self.ADDRESSES), program or self.program, *arguments]
        self.command = ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c",
                        f'hostname {self.names[0]}; exec "$@"', "sh"]
        return self.start(*mpirun, env=ALLOWED | (env or {}), **options)

    def test_only_the_first_host_has_the_files(self) -> None:
        self.config(TINY | {"gradient_accumulation_steps": 8})
        self.train_on(1, "one")
        a, b = self.names
        for ranks in (2, 4):
            out, _ = self.train_on(ranks, f"on{ranks}")
            self.assert_same("one", f"on{ranks}")
            self.assertRegex(out, rf"(?m)^ranks      {ranks} ranks: {a} {ranks // 2} x 1 thread, {b} {ranks // 2} x 1 thread$")
        self.train_on(2, "on2", "--resume", "--max_iters=45")
        self.train_on(1, "one", "--resume", "--max_iters=45")
        self.assert_same("one", "on2")
        self.assertEqual(self.on(2, "eval", "one", "--json")[0], self.on(1, "eval", "one", "--json")[0])


if __name__ == "__main__":
    unittest.main()
