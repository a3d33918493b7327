#!/usr/bin/env python3
"""The command line as a user meets it: every command on a tiny model, exit statuses, messages, JSON keys.

  cli_test.py BLOCKGTQ TEST_DATA     standard library only
"""
import json
import os
import pathlib
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.dom.minidom

BLOCKGTQ, DATA = sys.argv[1], pathlib.Path(sys.argv[2])


def run(*args, env=None, **kwargs):
    return subprocess.run([BLOCKGTQ, *map(str, args)], capture_output=True, env=env, timeout=300, **kwargs)


class Fixture(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "tiny.gguf"
        self.model.write_bytes((DATA / "models/llama.gguf").read_bytes())
        self.text = self.folder / "text.txt"
        self.text.write_text("The quick brown fox jumps over the lazy dog. " * 60)
        self.json = self.folder / "out.json"

    def ok(self, *args):
        """Runs a command that must succeed with --json; returns its JSON and its process."""
        done = run(*args, "--json", self.json)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(self.json.read_text()), done

    def fails(self, *args, needs, code=1):
        """Runs a command that must fail with one clear line on stderr (after log lines) holding all of `needs`."""
        done = run(*args)
        error = done.stderr.decode()
        self.assertEqual(done.returncode, code, error)
        last = error.strip().splitlines()[-1] if code == 1 else error
        for need in needs:
            self.assertIn(need, last)
        return done


class CommandLine(Fixture):
    def test_calibrate_inspect_and_plot(self):
        plan = self.folder / "plan.safetensors"
        made, _ = self.ok("calibrate", "-m", self.model, "-f", self.text, "--tokens", 300, "-o", plan)
        self.assertEqual(made["recipe"], "aligned")
        self.assertEqual((made["k_bits"], made["v_bits"], made["calibration_tokens"]), (3, 3, 300))
        self.assertGreater(made["compression"], 3.5)
        _, done = self.ok("calibrate", "-m", self.model, "--tokens", 100, "-o", self.folder / "other.safetensors")
        self.assertIn(b"the bundled start of WikiText-2 train", done.stderr)
        picture = self.folder / "plan.svg"
        seen, _ = self.ok("inspect", plan, "--plot", picture)
        self.assertEqual((seen["layers"], seen["kv_heads"], seen["head_dim"]), (2, 2, 16))
        self.assertEqual(len(seen["groups"]), 4)
        for group in seen["groups"]:
            self.assertEqual(len(group["block_widths"]), 8)
            self.assertTrue(all(1 <= w <= 8 for w in group["block_widths"]))
        self.assertGreaterEqual(len(xml.dom.minidom.parse(str(picture)).getElementsByTagName("rect")), 5)

    def test_moments_are_kept_inspected_and_made_a_plan_of(self):
        plan, moments, new = (self.folder / name for name in ("plan.safetensors", "moments.safetensors", "new.safetensors"))
        self.ok("calibrate", "-m", self.model, "-f", self.text, "--tokens", 300, "-o", plan)
        for looked_at in (100, 200):
            done = run("generate", "-m", self.model, "-p", "A" * 100, "-n", 4, "--ignore-eos", "--plan", plan, "--moments",
                       moments)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            self.assertIn("drift of the plan", done.stderr.decode().splitlines()[-1])
            seen, _ = self.ok("inspect", moments, "--plan", plan)
            self.assertGreater(seen["moments_tokens"], looked_at - 30)
        self.assertGreater(seen["drift"]["mean"], 1)
        self.assertEqual(len(seen["drift"]["heads"]), 4)
        made, _ = self.ok("calibrate", "-m", self.model, "--adapt", moments, "--plan", plan, "-o", new)
        self.assertEqual((made["k_bits"], made["calibration_tokens"]), (3, seen["moments_tokens"]))
        self.assertAlmostEqual(made["drift"]["mean"], seen["drift"]["mean"])
        again, _ = self.ok("inspect", moments, "--plan", new)
        self.assertAlmostEqual(again["drift"]["mean"], 1, places=5)
        self.fails("calibrate", "-m", self.model, "--adapt", moments, needs=["-o"])
        self.fails("calibrate", "-m", self.model, "--adapt", moments, "-f", self.text, "-o", new, needs=["--adapt"], code=2)
        self.fails("calibrate", "-m", self.model, "--adapt", moments, "-o", moments, needs=["moments.safetensors"])
        self.fails("calibrate", "-m", self.model, "--adapt", plan, "-o", new, needs=["plan.safetensors", "moments"])
        for other in (plan, self.model, DATA / "models/hf/llama"):
            self.fails("inspect", other, "--plan", new, needs=["--plan", "no file of moments"])
        self.fails("inspect", self.folder / "none", "--plan", new, needs=["none: no such file"])
        self.fails("generate", "-m", self.model, "-p", "A", "-n", 1, "--moments", self.folder / "none" / "moments",
                   needs=["none/moments"])

    def test_a_budgets_plan_says_what_it_was_checked_on(self):
        plan = self.folder / "plan.safetensors"
        few = ("calibrate", "-m", self.model, "--tokens", 300, "--no-buffer", "--probe-tokens", 64, "--probe-positions", 8, "-o",
               plan)
        made, done = self.ok(*few, "-f", DATA.parents[1] / "data/wikitext2_train.txt", "--budget-bytes", 14.5, "--check-tokens", 600)
        self.assertEqual(made["budget"]["check_tokens"], 512)  # whole windows
        self.assertIn(f"{made['budget']['measured_kld']:.4f} nats on 512 further tokens", done.stdout.decode())
        self.assertNotIn(b"promises too much", done.stderr)
        seen, done = self.ok("inspect", plan)
        self.assertEqual(seen["budget"], made["budget"])
        self.assertIn(b"plans measured on 512", done.stdout)
        short = self.folder / "short.txt"  # by default more is asked for than there is
        short.write_text("The quick brown fox jumps over the lazy dog. " * 20)  # a token a byte
        made, done = self.ok(*few, "-f", short, "--budget-bytes", 14.5)
        self.assertEqual(made["budget"]["check_tokens"], 512)  # of the 536 behind the others
        self.assertNotIn(b"promises too much", done.stderr)
        short.write_text("The quick brown fox jumps over the lazy dog. " * 15)
        made, done = self.ok(*few, "-f", short, "--budget-bytes", 14.5)
        self.assertLess(made["budget"]["check_tokens"], 400)
        self.assertIn(b"promises too much", done.stderr)
        for bad in ("0", "63", "65537", "x"):
            self.fails(*few, "--budget-bytes", 14.5, "--check-tokens", bad, needs=["--check-tokens"], code=2)
        self.fails(*few[:5], "-o", plan, "--check-tokens", 600, needs=["--check-tokens", "--budget-bytes"])
        self.fails("calibrate", "-m", self.model, "--budget-bytes", 14.5, "--check-tokens", 64, "-o", plan,
                   needs=["--check-tokens", "64 recent"])  # nothing is coded there

    def test_a_plan_of_a_budget_is_adapted_watched_and_adapted_again(self):
        moments = self.folder / "moments.safetensors"
        plans = [self.folder / f"{i}.safetensors" for i in range(3)]
        self.ok("calibrate", "-m", self.model, "-f", self.text, "--tokens", 300, "--budget-bytes", 14.5, "--no-buffer",
                "--probe-tokens", 64, "--probe-positions", 8, "-o", plans[0])
        values = [[g["value_width"] for g in self.ok("inspect", plans[0])[0]["groups"]]]
        for old, new in zip(plans, plans[1:]):
            done = run("generate", "-m", self.model, "-p", "A" * 100, "-n", 4, "--ignore-eos", "--plan", old, "--moments",
                       moments)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            self.assertIn("drift of the plan", done.stderr.decode().splitlines()[-1])
            made, _ = self.ok("calibrate", "-m", self.model, "--adapt", moments, "--plan", old, "-o", new)
            self.assertLessEqual(made["bytes_per_token_per_head"], 14.5)
            values.append([g["value_width"] for g in self.ok("inspect", new)[0]["groups"]])
        self.assertEqual(values[1:], values[:1] * 2)

    def test_a_session_is_kept_where_a_result_cannot_be_written(self):
        session = self.folder / "session"
        self.fails("generate", "-m", self.model, "-p", "A", "-n", 2, "--recipe", "fp16", "--session", session, "--json",
                   self.folder / "none" / "out.json", needs=["none/out.json"])
        self.assertTrue(session.exists())

    def test_inspect_a_model(self):
        seen, done = self.ok("inspect", self.model)
        self.assertEqual((seen["architecture"], seen["layers"], seen["heads"], seen["kv_heads"], seen["head_dim"]),
                         ("llama", 2, 4, 2, 16))
        self.assertIn(b"general.architecture = llama", done.stdout)

    def test_a_safetensors_model_gives_the_logits_of_its_gguf_twin(self):
        folder = self.folder / "hf"
        shutil.copytree(DATA / "models/hf/llama", folder)
        seen, done = self.ok("inspect", folder)
        self.assertEqual((seen["architecture"], seen["layers"], seen["head_dim"]), ("llama", 2, 16))
        self.assertEqual(seen["metadata"]["block_count"], "2")
        self.assertIn(b"safetensors", done.stdout)
        self.ok("inspect", folder / "model.safetensors")
        ids = self.folder / "ids.json"
        ids.write_text(json.dumps([1, 70, 200, 33, 12]))
        plan = self.folder / "plan.safetensors"
        self.ok("calibrate", "-m", self.model, "-f", self.text, "--tokens", 300, "-o", plan)
        for cache in (["--recipe", "fp32"], ["--plan", plan]):  # the plan of one is a plan of the other
            logits = []
            for model in (self.model, folder, f"{folder}/"):
                out = self.folder / "logits.safetensors"
                self.ok("logits", "-m", model, "--tokens", ids, "-o", out, *cache)
                raw = out.read_bytes()
                start = 8 + int.from_bytes(raw[:8], "little")
                logits.append(struct.unpack(f"<{5 * 256}f", raw[start:]))
            self.assertLess(max(abs(a - b) for a, b in zip(logits[0], logits[1])), 1e-3)
            self.assertEqual(logits[1], logits[2])
        made = self.folder / "made.gguf"
        done, _ = self.ok("convert", "-m", folder, "-o", made, "--type", "q8_0", "--no-tokenizer")
        self.assertEqual((done["tensors"], done["type"], done["architecture"]), (21, "q8_0", "llama"))
        seen, _ = self.ok("inspect", made)
        self.assertEqual(seen["tensor_types"], {"F16": 2, "F32": 5, "Q8_0": 14})
        self.fails("convert", "-m", made, "-o", self.folder / "again.gguf", needs=["made.gguf", "GGUF"])
        (folder / "config.json").write_text((folder / "config.json").read_text().replace("silu", "relu2"))
        self.fails("inspect", folder, needs=["config.json", "hidden_act", "relu2"])
        self.fails("inspect", self.folder / "nowhere", needs=["nowhere"])
        (folder / "config.json").unlink()
        self.fails("logits", "-m", folder, "--tokens", ids, "-o", out, needs=["config.json"])

    def test_generate_keeps_the_plan_it_made_beside_the_model(self):
        args = ("generate", "-m", self.model, "-p", "hello world", "-n", 20, "--temp", 0, "--ignore-eos")
        first, done = self.ok(*args)
        self.assertEqual((first["prompt_tokens"], first["new_tokens"]), (11, 20))
        self.assertGreater(first["kv_bytes_fp16"], 0)
        self.assertIn(b"prompt eval time", done.stderr)
        self.assertIn(b"tokens per second", done.stderr)
        plan = pathlib.Path(f"{self.model}.K3V3.bgtq.safetensors")
        self.assertTrue(plan.exists())
        written = plan.stat().st_mtime_ns
        second, _ = self.ok(*args)
        self.assertEqual(first["tokens"], second["tokens"])
        self.assertEqual(plan.stat().st_mtime_ns, written)

    def test_a_session_continues_where_it_was(self):
        session = self.folder / "chat.session"
        common = ("-m", self.model, "--temp", 0, "--ignore-eos", "-c", 256)
        self.ok("generate", *common, "-p", "abc " * 25, "-n", 1, "--session", session)
        self.ok("generate", *common, "-p", "def", "-n", 5, "--session", session)
        through_file = json.loads(self.json.read_text())
        self.assertEqual(through_file["prompt_tokens"], 3)
        data = bytearray(session.read_bytes())
        data[-1] ^= 1
        session.write_bytes(data)
        self.fails("generate", *common, "-p", "x", "-n", 1, "--session", session, needs=["chat.session"])

    def test_perplexity_with_and_without_kld(self):
        args = ("perplexity", "-m", self.model, "-f", self.text, "-c", 128, "--chunks", 3)
        packed, done = self.ok(*args, "--kld", "--strict", "--score", "all", "--no-buffer")
        for key in ("ppl", "ppl_se", "kld_mean", "kld_median", "kld_p99", "top1", "top10_overlap", "tokens", "mode",
                    "bytes_per_token_per_head"):
            self.assertIn(key, packed)
        self.assertEqual((packed["mode"], packed["tokens"]), ("strict", 3 * 127))
        self.assertGreater(packed["kld_mean"], 0)
        self.assertIn(b"[1]", done.stdout)
        self.assertIn(b"Final estimate: PPL =", done.stdout)
        half, _ = self.ok(*args, "--recipe", "fp16", "--kld")
        self.assertEqual((half["kld_mean"], half["top1"], half["mode"], half["tokens"]), (0, 1, "production", 3 * 63))

    def test_simulated_recipes_say_so_and_refuse_what_they_have_not(self):
        args = ("perplexity", "-m", self.model, "-f", self.text, "-c", 256, "--chunks", 1, "--kld", "--strict")
        kivi, done = self.ok(*args, "--recipe", "kivi", "-K", 2, "-V", 2)
        self.assertEqual((kivi["simulated"], kivi["sinks"], kivi["recent"]), (True, 0, 128))
        self.assertGreater(kivi["kld_mean"], 0)
        self.assertIn(b"simulated: no packed kernel", done.stderr)
        self.assertIn(b"simulated: no packed kernel", done.stdout)
        fp8, _ = self.ok(*args, "--recipe", "fp8")
        self.assertEqual((fp8["k_bits"], fp8["v_bits"], fp8["sinks"], fp8["recent"]), (8, 8, 4, 64))
        pmkvq = ("--recipe", "pmkvq", "-K", 2, "-V", 2, "--no-buffer", "--score", "all")
        full, _ = self.ok(*args, *pmkvq)
        filling, done = self.ok(*args, *pmkvq, "--memory-tokens", 256)
        self.assertLess(filling["kld_mean"], 0.9 * full["kld_mean"])
        self.assertEqual([coded for coded, _ in filling["bytes_by_length"]], [0, 33, 65, 129])
        self.assertEqual(filling["bytes_by_length"][-1][1], full["bytes_per_token_per_head"])
        self.assertIn(b"bytes a token a head by coded tokens", done.stderr)
        self.fails(*args, "--recipe", "kivi", "--memory-tokens", 256, needs=["kivi", "only pmkvq narrows"])
        packed, _ = self.ok(*args)
        twin, _ = self.ok(*args, "--recipe", "sim:aligned")
        self.assertFalse(packed["simulated"])
        self.assertEqual(twin["bytes_per_token_per_head"], packed["bytes_per_token_per_head"])
        self.assertLess(abs(twin["kld_mean"] / packed["kld_mean"] - 1), 0.1)
        self.fails(*args, "--recipe", "fp8", "-K", 3, needs=["fp8", "K bits 3", "has 8 and 8"])
        self.fails(*args, "--recipe", "kivi", "--no-buffer", needs=["kivi", "--recent 32"])
        self.fails("bench", "-m", self.model, "--recipe", "kivi", needs=["kivi", "simulated"])
        self.fails("calibrate", "-m", self.model, "--recipe", "kivi", "-o", self.folder / "p", needs=["kivi", "simulated"])
        self.fails("generate", "-m", self.model, "-p", "a", "--recipe", "kivi", "--session", self.folder / "s",
                   needs=["--session", "kivi"])

    def test_diagnose_writes_tables_json_and_plots(self):
        plots = self.folder / "plots"
        args = ("diagnose", "-m", self.model, "-f", self.text, "--tokens", 300)
        seen, done = self.ok(*args, "-K", "2,3", "--plot", plots, "--head", "1.0")
        self.assertEqual((seen["calibration_tokens"], seen["scored_tokens"], len(seen["per_layer"])), (300, 256, 2))
        for recipe in ("aligned", "paper", "uniform"):
            for key in ("mae_mean", "kl_mean", "overlap_mean", "k_bytes_per_token_per_head"):
                self.assertEqual(sorted(seen[key][recipe]), ["2", "3"])
            self.assertGreater(seen["mae_mean"][recipe]["2"], seen["mae_mean"][recipe]["3"])
            for layer in seen["per_layer"]:
                self.assertAlmostEqual(sum(layer["fingerprint"][recipe]["3"]), 1)
            self.assertAlmostEqual(sum(layer["mae"][recipe]["3"] for layer in seen["per_layer"]) / 2,
                                   seen["mae_mean"][recipe]["3"])
        self.assertEqual(seen["k_bytes_per_token_per_head"]["uniform"]["3"], 3 * 16 / 8 + 2)
        pairs = [(w["recipe"], w["against"], w["k_bits"], w["layers"]) for w in seen["wins"]]
        self.assertEqual(pairs, [(a, b, bits, 2) for bits in (2, 3) for a, b in
                                 (("aligned", "paper"), ("aligned", "uniform"), ("paper", "uniform"))])
        self.assertIn(b"| 3 code bits | aligned K3 |", done.stdout)
        names = {path.name for path in plots.iterdir()}
        self.assertLessEqual({"kl.svg", "overlap.svg", "mae-aligned-K3.svg", "fingerprint-paper-K2.svg",
                              "spectrum-1.0.svg"}, names)
        for path in plots.iterdir():
            self.assertTrue(xml.dom.minidom.parse(str(path)).getElementsByTagName("text"))
        equal, _ = self.ok(*args, "-K", 3, "--recipes", "uniform,fp8,aligned", "--equal-bytes")
        stored = equal["k_bytes_per_token_per_head"]
        self.assertEqual((stored["uniform"], stored["fp8"]), ({"3": 8}, {"8": 16}))
        self.assertGreaterEqual(min(stored["aligned"].values()), 8)
        self.assertEqual(equal["simulated"], {"uniform": False, "fp8": True, "aligned": False})

    def test_diagnose_refuses_what_it_cannot_do(self):
        args = ("diagnose", "-m", self.model, "-f", self.text)
        self.fails(*args, "--recipes", "aligned,magic", needs=["magic", "aligned"])
        self.fails(*args, "--recipes", "fp16", needs=["fp16", "uncompressed"])
        for recipe in ("uniform", "kivi"):
            done = self.fails(*args, "-K", "2.5", "--recipes", recipe, needs=[recipe, "2.5"])
            self.assertNotIn(b"calibrating", done.stderr)
        self.fails(*args, "--plot", self.folder, "--head", "2.0", needs=["--head", "0..1"])
        self.fails(*args, "--plot", "/proc/none", "--tokens", 256, needs=["/proc/none"])
        self.fails(*args, "--head", "0.0", code=2, needs=["--plot"])

    def test_logits_equal_the_reference(self):
        raw = (DATA / "models/llama.reference.safetensors").read_bytes()

        def tensors(data):
            size = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + size])
            return {k: data[8 + size:][v["data_offsets"][0]:v["data_offsets"][1]] for k, v in header.items()
                    if k != "__metadata__"}

        reference = tensors(raw)
        ids = struct.unpack("<48i", reference["input_ids"])
        (self.folder / "ids.json").write_text(json.dumps(ids))
        out = self.folder / "logits.safetensors"
        self.ok("logits", "-m", self.model, "--recipe", "fp32", "--tokens", self.folder / "ids.json", "-o", out)
        mine = struct.unpack(f"<{48 * 256}f", tensors(out.read_bytes())["logits"])
        theirs = struct.unpack(f"<{48 * 256}f", reference["logits"])
        self.assertLess(max(abs(a - b) for a, b in zip(mine, theirs)), 2e-4)

    def test_tokenize_and_back(self):
        ids, done = self.ok("tokenize", "-m", self.model, "-p", "the cat")
        self.assertEqual(json.loads(done.stdout), ids["ids"])
        (self.folder / "ids.json").write_text(json.dumps(ids["ids"]))
        text, done = self.ok("detokenize", "-m", self.model, "--tokens", self.folder / "ids.json")
        self.assertEqual((text["text"], done.stdout), ("the cat", b"the cat"))

    def test_bench_prints_a_markdown_table(self):
        rows, done = self.ok("bench", "-m", self.model, "-p", 32, "-n", 8, "-d", "0,100", "-r", 2)
        self.assertEqual([(r["test"], r["depth"]) for r in rows["rows"]],
                         [("pp32", 0), ("tg8", 0), ("pp32", 100), ("tg8", 100)])
        self.assertTrue(all(r["tokens_per_second"] > 0 for r in rows["rows"]))
        self.assertIn(b"| tg8 @ d100 |", done.stdout.replace(b"| aligned K3V3 ", b""))

    def test_wrong_usage_exits_with_2(self):
        self.fails(code=2, needs=[])
        self.fails("no-such-command", code=2, needs=[])
        self.fails("generate", "-m", self.model, "-p", "a", "--no-such-flag", code=2, needs=["--no-such-flag"])
        self.fails("generate", "-m", self.model, "-p", "a", "-f", self.text, code=2, needs=["--prompt"])
        self.fails("generate", "-m", self.model, code=2, needs=["--prompt"])
        self.fails("no-such-command", code=2, needs=["no-such-command"])
        self.fails("generate", "-m", self.model, "-p", "a", "--temp", -1, code=2, needs=["--temp"])
        self.fails("generate", "-m", self.model, "-p", "a", "--system", "b", code=2, needs=["--chat"])
        self.fails("generate", "-m", self.model, "-p", "a", "--plan", "", code=2, needs=["--plan"])
        self.fails("perplexity", "-m", self.model, "-f", "", code=2, needs=["--file"])
        self.fails("perplexity", "-m", self.model, "-c", 0, code=2, needs=["--context"])
        self.fails("generate", "-m", self.model, "-p", "a", "-n", "many", code=2, needs=["many"])
        self.fails("generate", "-m", self.model, "-p", "a", "--sinks", "65", code=2, needs=["--sinks"])
        self.fails("generate", "-m", self.model, "-p", "a", "--plan", "x", "-K", 2, code=2, needs=["excludes"])

    def test_help_exits_with_0(self):
        self.assertEqual(run("--help").returncode, 0)
        for command in ("calibrate", "inspect", "convert", "generate", "perplexity", "logits", "tokenize", "detokenize", "bench",
                        "needle", "longbench", "aime", "diagnose", "calibrate-study", "depth-study"):
            done = run(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn(b"--json", done.stdout)

    def test_failures_say_what_and_where(self):
        gone = self.folder / "gone.gguf"
        self.fails("generate", "-m", gone, "-p", "a", needs=["gone.gguf"])
        self.fails("generate", "-m", self.text, "-p", "a", needs=["text.txt", "GGUF"])
        self.fails("generate", "-m", self.model, "-f", gone, needs=["gone.gguf"])
        self.fails("generate", "-m", self.model, "-p", "", "-n", 4, needs=["empty"])
        self.fails("generate", "-m", self.model, "-p", "a", "--device", "cuda", needs=["cuda", "cpu"])
        self.fails("generate", "-m", self.model, "-p", "a", "-c", 100000, needs=["-c", "512"])
        self.fails("generate", "-m", self.model, "-p", "a" * 600, needs=["600", "512"])
        self.fails("generate", "-m", self.model, "-p", "a", "--chat", needs=["--no-chat"])
        self.fails("generate", "-m", self.model, "-p", "a", "--recipe", "magic", needs=["magic", "aligned"])
        self.fails("generate", "-m", self.model, "-p", "a", "-K", 0.5, needs=["0.5"])
        self.fails("generate", "-m", self.model, "-p", "a", "-V", 2.5, needs=["2.5"])
        self.fails("perplexity", "-m", self.model, "-f", self.text, "-c", 512, "--chunks", 50, needs=["--chunks"])
        self.fails("perplexity", "-m", self.model, "-f", self.text, "-c", 1024, needs=["512"])
        self.fails("calibrate", "-m", self.model, "-f", "/dev/null", needs=["tokens"])
        self.fails("calibrate", "-m", self.model, "--tokens", 64, "-o", "/proc/none/plan", needs=["/proc/none"])
        bad = self.folder / "ids.json"
        bad.write_text('{"other": [1]}')
        self.fails("detokenize", "-m", self.model, "--tokens", bad, needs=["ids.json", "list"])
        bad.write_text("[1, 256]")
        self.fails("detokenize", "-m", self.model, "--tokens", bad, needs=["256"])
        self.fails("logits", "-m", self.model, "--tokens", bad, "-o", self.folder / "x", "--recipe", "fp16",
                   needs=["256"])
        bad.write_text("[1, 2]")
        self.fails("logits", "-m", self.model, "--tokens", bad, "-o", self.folder / "x", "--recipe", "fp16", "-c", 513,
                   needs=["-c 513", "512"])

    def test_a_plan_of_another_model_is_refused(self):
        plan = self.folder / "plan.safetensors"
        self.ok("calibrate", "-m", self.model, "--tokens", 64, "-o", plan)
        other = DATA / "models/qwen2.gguf"
        self.fails("generate", "-m", other, "-p", "a", "--plan", plan, needs=["plan.safetensors", "architecture"])

    def test_a_full_context_keeps_text_timings_and_session(self):
        session = self.folder / "full.session"
        args = ("generate", "-m", self.model, "-p", "abcd", "-n", 1000, "--ignore-eos", "--temp", 0, "-c", 50)
        full, _ = self.ok(*args, "--session", session)
        self.assertEqual((full["stop_reason"], full["prompt_tokens"] + full["decoded"]), ("context_full", 50))
        self.assertTrue(session.exists())

    def test_ids_of_tokenize_go_straight_into_logits(self):
        ids = self.folder / "ids.json"
        self.assertEqual(run("tokenize", "-m", self.model, "-p", "the cat", "--json", ids).returncode, 0)
        done, _ = self.ok("logits", "-m", self.model, "--recipe", "fp16", "--tokens", ids, "-o", self.folder / "l")
        self.assertEqual(done["tokens"], 6)

    def test_settings_that_mean_nothing_are_refused(self):
        self.fails("generate", "-m", self.model, "-p", "a", "--recipe", "fp16", "-K", 2, needs=["-K", "fp16"])
        self.fails("generate", "-m", self.model, "-p", "a", "--recipe", "fp32", "--no-buffer", needs=["--no-buffer"])

    def test_no_output_replaces_an_input_or_a_device(self):
        before = self.model.read_bytes()
        self.fails("calibrate", "-m", self.model, "--tokens", 64, "-o", self.model, needs=["tiny.gguf"])
        self.fails("tokenize", "-m", self.model, "-f", self.text, "--json", self.text, needs=["text.txt"])
        self.assertEqual(self.model.read_bytes(), before)
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        self.fails("calibrate", "-m", self.model, "--tokens", 64, "-o", pipe, needs=["pipe"])
        self.assertTrue(pipe.is_fifo())

    def test_a_folder_or_a_closed_stream_is_an_error_not_a_crash(self):
        self.fails("tokenize", "-m", self.model, "-f", self.folder, needs=["folder"])
        self.fails("generate", "-m", self.model, "-p", "a", "--session", "s" * 300, needs=["s" * 300])
        with open("/dev/full", "wb") as full:
            done = subprocess.run([BLOCKGTQ, "tokenize", "-m", self.model, "-p", "a"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        done = subprocess.run(f"{BLOCKGTQ} generate -m {self.model} -p a -n 2 2>&-", shell=True, stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0)

    def test_a_plan_that_is_not_what_its_name_says_is_refused(self):
        plan = f"{self.model}.K3V3.bgtq.safetensors"
        self.ok("calibrate", "-m", self.model, "--tokens", 64, "-K", 4, "-V", 4, "-o", plan)
        self.fails("generate", "-m", self.model, "-p", "a", needs=["K4V4"])

    def test_bits_are_checked_before_anything_is_measured(self):
        done = self.fails("calibrate", "-m", self.model, "-K", 9, needs=["9"])
        self.assertNotIn(b"calibrating", done.stderr)

    def test_json_that_cannot_be_written_is_an_error(self):
        self.fails("tokenize", "-m", self.model, "-p", "a", "--json", "/proc/none/out.json", needs=["/proc/none"])

    def test_ctrl_c_stops_and_prints_timings(self):
        process = subprocess.Popen([BLOCKGTQ, "generate", "-m", self.model, "-p", "a", "-n", "500", "-t", "1", "--temp", "0",
                                    "--ignore-eos", "--json", self.json], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(1)  # generation has begun
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, error.decode())
        self.assertIn(b"eval time", error)
        self.assertIn(json.loads(self.json.read_text())["stop_reason"], ("cancelled", "limit"))


def byte_tokenizer():
    """tokenizer.json of 256 tokens: GPT-2's alphabet, one merge, two special tokens where no UTF-8 text has bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    letters = {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": [{"id": 253, "content": "<s>"} | flags, {"id": 254, "content": "<|im_end|>"} | flags],
            "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "vocab": {letters[b]: b for b in range(253)} | {"th": 255}, "merges": [["t", "h"]]}}


class SafetensorsFolder(Fixture):
    """Every command on a folder as transformers writes it."""

    def setUp(self):
        super().setUp()
        self.model = self.folder / "hf"
        shutil.copytree(DATA / "models/hf/qwen3", self.model)
        (self.model / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
        (self.model / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "<|im_end|>"}')

    def change(self, **settings):
        config = json.loads((DATA / "models/hf/qwen3/config.json").read_text())
        (self.model / "config.json").write_text(json.dumps(config | settings))

    def test_commands_run_and_their_plans_are_kept_beside_the_folder(self):
        made, _ = self.ok("calibrate", "-m", self.model, "-f", self.text, "--tokens", 200)
        self.assertEqual((made["recipe"], made["calibration_tokens"]), ("aligned", 200))
        plan = self.folder / "hf.K3V3.bgtq.safetensors"
        self.assertTrue(plan.exists())
        seen, _ = self.ok("inspect", plan)
        self.assertEqual((seen["layers"], seen["kv_heads"], seen["head_dim"]), (2, 2, 128))
        seen, _ = self.ok("inspect", self.model)
        self.assertEqual(seen["architecture"], "qwen3")
        written, done = self.ok("generate", "-m", self.model, "-p", "the cat", "-n", 8, "--temp", 0, "--ignore-eos")
        self.assertEqual((written["prompt_tokens"], written["new_tokens"]), (6, 8))
        self.assertNotIn(b"calibrating", done.stderr)
        scored, _ = self.ok("perplexity", "-m", self.model, "-f", self.text, "-c", 128, "--chunks", 2, "--recent", 0, "--strict",
                            "--kld")
        self.assertGreater(scored["kld_mean"], 0)

    def test_a_converted_model_writes_what_the_folder_writes(self):
        made = self.folder / "made.gguf"
        done, process = self.ok("convert", "-m", self.model, "-o", made, "--type", "bf16")
        self.assertEqual((done["architecture"], done["tokenizer"], done["differences"]), ("qwen3", True, []))
        ids = [self.ok("tokenize", "-m", m, "--special", "-p", "the cat<|im_end|>\u00e9")[0]["ids"] for m in (self.model, made)]
        self.assertEqual(ids[0], ids[1])
        self.assertEqual(ids[0][:2] + ids[0][-3:-2], [255, 101, 254])
        texts = [self.ok("generate", "-m", m, "-p", "the cat", "-n", 12, "--temp", 0, "--ignore-eos", "--recipe", "fp32",
                         "--activations", "float")[0]["tokens"] for m in (self.model, made)]
        self.assertEqual(texts[0], texts[1])

    def test_convert_says_what_a_file_cannot_say_and_refuses_what_it_must(self):
        made = self.folder / "made.gguf"
        (self.model / "tokenizer.json").write_text(json.dumps(byte_tokenizer() | {"normalizer": {"type": "NFC"}}))
        done, process = self.ok("convert", "-m", self.model, "-o", made)
        self.assertEqual(len(done["differences"]), 1)
        self.assertIn(b"not in the file: text is not normalised", process.stderr)
        made.unlink()
        refuse = lambda *needs: self.fails("convert", "-m", self.model, "-o", made, needs=needs)
        (self.model / "tokenizer_config.json").write_text("{}")
        (self.model / "tokenizer.json").write_text((DATA / "text/tokenizers/mistral.json").read_text())
        refuse("tokenizer has", "256")  # too many tokens for the embedding table
        (self.model / "tokenizer.json").unlink()
        refuse("tokenizer.json", "--no-tokenizer")
        (self.model / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
        self.change(rope_scaling={"rope_type": "dynamic", "factor": 2.0})
        refuse("rope_scaling", "dynamic")
        self.assertFalse(made.exists())

    def test_settings_are_refused_by_name(self):
        for settings, needs in (({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, ["spiral"]),
                                ({"hidden_act": "relu2"}, ["hidden_act", "relu2"]),
                                ({"num_key_value_heads": 3}, ["num_key_value_heads", "3"]),
                                ({"head_dim": 24}, ["24", "16"]),
                                ({"model_type": "banana"}, ["banana"]),
                                ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config"])):
            self.change(**settings)
            for command in (("inspect", self.model), ("generate", "-m", self.model, "-p", "a"),
                            ("convert", "-m", self.model, "-o", self.folder / "x.gguf")):
                self.fails(*command, needs=needs)


class Studies(Fixture):
    """calibrate-study and depth-study on the tiny model."""

    DEPTH = ("--depths", "64,200,400", "--span", 16, "--recipes", "aligned,fp8", "--protection", "none,window")
    CALIBRATION = ("--lengths", "64,256", "--offsets", "0,300", "-c", 128, "--chunks", 2, "--protection", "none", "--no-chat",
                   "--needle-tasks", "single", "--needle-lengths", 480, "--needle-depths", 50, "--trials", 1)

    def drawn(self, folder, names):
        self.assertEqual({path.name for path in folder.iterdir()}, names)
        for path in folder.iterdir():
            self.assertTrue(xml.dom.minidom.parse(str(path)).getElementsByTagName("polyline"), path)

    def test_depth_study_writes_tables_json_and_plots(self):
        plots, plan = self.folder / "plots", self.folder / "my.safetensors"
        self.ok("calibrate", "-m", self.model, "--tokens", 128, "-K", 4, "-V", 4, "-o", plan)
        seen, done = self.ok("depth-study", "-m", self.model, *self.DEPTH, "--plan", plan, "--plot", plots)
        caches = list(dict.fromkeys(row["cache"] for row in seen["rows"]))
        self.assertEqual(caches, ["aligned K4V4 of my.safetensors", "aligned K3V3", "aligned K2V2", "fp8"])
        self.assertEqual(len(seen["rows"]), 4 * 2 * 3)
        self.assertEqual((seen["samples"], seen["samples_total"], seen["stopped"], seen["mode"]), (8, 8, False, "strict"))
        for row in seen["rows"]:
            self.assertEqual((row["positions"], row["simulated"]), (16, row["cache"] == "fp8"))
            exact = row["protection"] == "4 sinks + 64 recent" and row["depth"] == 64
            self.assertEqual(row["kld_mean"] < 1e-9, exact)
            self.assertEqual(row["attention_error"] < 1e-3, exact)
            self.assertAlmostEqual(sum(row["attention_error_per_layer"]) / 2, row["attention_error"])
        self.assertIn(b"| aligned K3V3, no buffer | 14.0 |", done.stdout)
        self.drawn(plots, {"kld-by-depth.svg", "top1-by-depth.svg", "attention-by-depth.svg", "attention-by-layer.svg"})
        bare, done = self.ok("depth-study", "-m", self.model, *self.DEPTH, "--no-attention")
        self.assertNotIn("attention_error", bare["rows"][0])
        self.assertNotIn(b"attention", done.stdout)
        strip = lambda row: {k: v for k, v in row.items() if not k.startswith("attention")}
        self.assertEqual(bare["rows"], [strip(row) for row in seen["rows"][6:]])

    def test_calibrate_study_writes_table_json_and_plots(self):
        plots = self.folder / "plots"
        other = self.folder / "other.txt"
        other.write_text("Pack my box with five dozen liquor jugs, said he. " * 60)
        seen, done = self.ok("calibrate-study", "-m", self.model, *self.CALIBRATION, "--texts", f"{self.text},{other}", "--plot",
                             plots)
        self.assertEqual((len(seen["plans"]), seen["plans_total"], seen["stopped"]), (16, 16, False))
        self.assertEqual({(p["text"], p["tokens"], p["offset"]) for p in seen["plans"]},
                         {(t, n, o) for t in ("text", "other") for n in (64, 256) for o in (0, 300)})
        groups = {(g["k_bits"], g["factor"], g["value"]): g for g in seen["groups"]}
        self.assertEqual(len(groups), 2 * (1 + 2 + 2 + 2))
        for (bits, factor, value), group in groups.items():
            mine = [p["kld_mean"] for p in seen["plans"] if p["k_bits"] == bits and
                    (factor == "all" or str(p[factor]) == value)]
            self.assertEqual(group["plans"], len(mine))
            self.assertAlmostEqual(group["kld_mean"]["mean"], statistics.mean(mine))
            self.assertAlmostEqual(group["kld_mean"]["sd"], statistics.stdev(mine))
        self.assertGreater(groups[2, "all", ""]["kld_mean"]["mean"], groups[3, "all", ""]["kld_mean"]["mean"])
        self.assertIn("needle", seen["fp16"])
        self.assertIn(b"| K3V3 | 14.0 | tokens 64 | 4 |", done.stdout)
        self.drawn(plots, {"kld-by-tokens.svg", "ppl-by-tokens.svg", "needle-by-tokens.svg"})

    def test_a_study_cut_anywhere_continues_to_the_same_results(self):
        for command in (("depth-study", "-m", self.model, *self.DEPTH), ("calibrate-study", "-m", self.model,
                                                                         *self.CALIBRATION)):
            results = self.folder / f"{command[0]}.jsonl"
            command = (*command, "-t", 1, "-o", results)
            whole_json, _ = self.ok(*command)
            whole = results.read_bytes()
            for cut in (0, 5, len(whole) // 2, len(whole)):
                results.write_bytes(whole[:cut])
                seen, _ = self.ok(*command)
                self.assertEqual(results.read_bytes(), whole)
                self.assertEqual(seen, whole_json)
            self.fails(*command, "-K", 4, "-V", 4, needs=[results.name, "caches" if "depth" in command[0] else "k_bits"])

    def test_studies_refuse_what_they_cannot_do(self):
        depth, calibration = ("depth-study", "-m", self.model), ("calibrate-study", "-m", self.model, "--no-needle")
        self.fails(*depth, needs=["16384", "512"])
        self.fails(*depth, *self.DEPTH, "--protection", "much", needs=["much", "SINKS+RECENT"])
        self.fails(*depth, *self.DEPTH, "--recipes", "fp16", needs=["fp16", "uncompressed"])
        self.fails(*depth, *self.DEPTH, "-K", "3", needs=["-K", "-V", "pairs"])
        self.fails(*depth, *self.DEPTH, "-f", self.text, "--texts", 50, needs=["--texts"])
        self.fails(*depth, *self.DEPTH, "--plan", self.folder / "none", needs=["none"])
        self.fails(*calibration, needs=["--lengths", "1024", "512"])
        self.fails(*calibration, "--lengths", 64, "--texts", f"{self.text},{self.text}", needs=["--texts", "twice"])
        self.fails(*calibration, "--lengths", 64, "--texts", self.text, needs=["text", "20000", "--offsets"])
        self.fails(*calibration, "--lengths", "64", "--recipe", "q8_0", needs=["q8_0"])
        self.fails(*calibration, "--lengths", "x", code=2, needs=["--lengths"])


class TaskSuites(Fixture):
    """needle, longbench and aime. The tiny model's tokens are nearly bytes and its answers noise: what is checked is the
    run, not the scores."""

    NEEDLE = ("--no-chat", "-n", 4, "--lengths", "440,480", "--depths", "0,100", "--trials", 2, "--tasks", "single,vartrack")

    def test_needle_writes_table_json_and_heat_map(self):
        picture = self.folder / "needle.svg"
        seen, done = self.ok("needle", "-m", self.model, *self.NEEDLE, "--plot", picture)
        self.assertIn(b"| task | 440 | 480 | all | 95% interval | samples |", done.stdout)
        self.assertEqual(set(seen["tasks"]), {"single", "vartrack"})
        self.assertEqual((seen["samples"], seen["samples_total"], seen["stopped"]), (16, 16, False))
        for task in seen["tasks"].values():
            self.assertEqual(len(task["cells"]), 4)
            self.assertLessEqual(task["ci_low"], task["score"])
            self.assertLessEqual(task["score"], task["ci_high"])
        self.assertIn("average", seen)
        self.assertEqual(seen["recipe"], "aligned")
        self.assertGreaterEqual(len(xml.dom.minidom.parse(str(picture)).getElementsByTagName("rect")), 8)

    def test_a_run_cut_anywhere_continues_to_the_same_results(self):
        results = self.folder / "needle.jsonl"
        command = ("needle", "-m", self.model, *self.NEEDLE, "-t", 1, "-o", results)
        whole_json, _ = self.ok(*command)
        whole = results.read_bytes()
        self.assertEqual(whole.count(b"\n"), 17)
        for cut in (0, 5, whole.index(b"\n") + 1, len(whole) // 2, len(whole) - 1, len(whole)):
            results.write_bytes(whole[:cut])
            seen, done = self.ok(*command)
            self.assertEqual(results.read_bytes(), whole)
            self.assertEqual(seen, whole_json)
        self.assertIn(b"continuing after 16 of 16", done.stderr)

    def test_other_settings_are_refused_by_name(self):
        results = self.folder / "needle.jsonl"
        command = ["needle", "-m", self.model, *self.NEEDLE, "-o", results]
        self.ok(*command)
        before = results.read_bytes()
        self.fails(*command, "-s", 2, needs=["needle.jsonl", "seed"])
        self.fails(*command, "--recipe", "fp16", needs=["needle.jsonl"])
        self.fails(*command, "--activations", "float", needs=["activations"])
        self.fails("needle", "-m", self.model, *self.NEEDLE, "-o", self.text, needs=["text.txt", "results file"])
        self.assertEqual(results.read_bytes(), before)

    def test_ctrl_c_stops_and_the_run_goes_on_later(self):
        results = self.folder / "aime.jsonl"
        problems = self.folder / "problems.jsonl"
        problems.write_text('{"problem": "1+1?", "answer": 2}\n')
        command = [BLOCKGTQ, "aime", "-m", self.model, "-f", problems, "--no-chat", "-n", 100, "--samples", 100, "-t", 1,
                   "-o", results, "--json", self.json]
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        end = time.time() + 60
        while time.time() < end and not (results.exists() and results.read_bytes().count(b"\n") > 2):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, error.decode())
        self.assertIn(b"| aime |", out)
        seen = json.loads(self.json.read_text())
        finished = results.read_bytes().count(b"\n") - 1
        self.assertEqual((seen["stopped"], seen["samples"], seen["samples_total"]), (finished < 100, finished, 100))
        self.assertGreater(finished, 1)
        seen, _ = self.ok(*command[1:-2])
        self.assertEqual((seen["stopped"], seen["samples"]), (False, 100))

    def test_aime_scores_each_problem(self):
        problems = self.folder / "problems.jsonl"
        problems.write_text('{"problem": "1+1?", "answer": 2}\n{"question": "3*3?", "answer": "009"}\n')
        command = ("aime", "-m", self.model, "-f", problems, "--no-chat", "-n", 16)
        seen, done = self.ok(*command, "--samples", 3)
        self.assertIn(b"| task | pass@1 | 95% interval | problems | samples |", done.stdout)
        self.assertEqual((seen["samples"], seen["tasks"]["aime"]["problems"]), (6, 2))
        self.assertEqual(len(seen["tasks"]["aime"]["by_problem"]), 2)
        self.fails(*command, "--temp", 0, needs=["--samples 1"])
        self.fails("aime", "-m", self.model, "-f", problems, "--no-chat", needs=["512", "-n"])
        self.fails("aime", "-m", self.model, "-f", self.text, "--no-chat", needs=["text.txt", "line 1"])
        self.fails("aime", "-m", self.model, code=2, needs=["--file"])

    def test_longbench_reads_a_folder_and_says_where_to_get_it(self):
        data = self.folder / "longbench"
        self.fails("longbench", "-m", self.model, "--data", data, "--no-chat", needs=["longbench", "THUDM/LongBench"])
        data.mkdir()
        self.fails("longbench", "-m", self.model, "--data", data, "--no-chat", needs=["2wikimqa.jsonl", "THUDM/LongBench"])
        self.fails("longbench", "-m", self.model, code=2, needs=["--data"])
        for task in ("trec", "lcc"):
            with open(data / f"{task}.jsonl", "w") as file:
                for i in range(3):
                    file.write(json.dumps({"input": f"Question {i}?", "context": "Text. " * 200, "answers": ["City"],
                                           "all_classes": ["City", "Date"], "length": 200}) + "\n")
        command = ("longbench", "-m", self.model, "--data", data, "--no-chat")
        seen, done = self.ok(*command, "--tasks", "lcc,trec", "--limit", 2)
        self.assertIn(b"| lcc |", done.stdout)
        self.assertIn(b"context is 512", done.stderr)
        self.assertEqual((set(seen["tasks"]), seen["samples"]), ({"lcc", "trec"}, 4))
        self.assertEqual(seen["cap"], 512 - 64)
        self.fails(*command, "--tasks", "trec", "--cap", 500, needs=["448"])
        self.fails(*command, "--tasks", "narrativeqa", needs=["narrativeqa"])

    def test_a_model_without_a_chat_template_needs_no_chat(self):
        self.fails("needle", "-m", self.model, "--lengths", 480, needs=["--no-chat"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
