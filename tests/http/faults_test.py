"""What the server does when things break under it: disks, files, processes, descriptors, clients.

  faults_test.py BLOCKGTQ DATA [unittest arguments]
BGTQ_KILLS: how many times a server is killed in the middle of saves (default 4).
"""
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from server_test import Server, greedy, http_bytes, read_all

KILLS = int(os.environ.get("BGTQ_KILLS", "4"))


class Faults(unittest.TestCase):
    def serve(self, *options, **more):
        server = Server(*options, **more)
        self.addCleanup(self.end, server)
        return server

    def end(self, server):
        """With its clients gone a server ends at once: what is kept of one would hold it up."""
        start = time.time()
        self.assertIn(server.stop(), (0, -signal.SIGKILL))  # the latter where the test sent it
        self.assertLess(time.time() - start, 15)

    def text(self, server, tokens, **more):
        status, answer = server.json("POST", "/v1/completions", greedy(tokens, **more))
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["text"]

    def assert_serves(self, server):
        self.assertIsNone(server.process.poll(), server.log_text())
        self.assertEqual(server.json("GET", "/health"), (200, {"status": "ok"}))
        server.wait_for("requests_running", 0)
        server.wait_for("requests_waiting", 0)


class SlotFiles(Faults):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="bgtq-faults-")
        self.addCleanup(folder.cleanup)
        self.slots = folder.name

    def act(self, server, action, slot=0, name="talk"):
        return server.json("POST", f"/slots/{slot}?action={action}", {"filename": name})

    def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new(self):
        generator = random.Random(1)
        with open(os.path.join(self.slots, "mine.tmp"), "w"):
            pass  # no file of a save: it stays
        server = self.serve("--slot-save-path", self.slots)
        for slot in (0, 1):
            self.text(server, 20 + 300 * slot, id_slot=slot)
        tokens = [slot["n_tokens"] for slot in server.json("GET", "/slots")[1][:2]]
        self.assertEqual(self.act(server, "save")[0], 200)
        for _ in range(KILLS):
            with server.raw() as sock:  # over the same file, from two slots in turn
                saves = b"".join(http_bytes(f"/slots/{slot}?action=save", {"filename": "talk"}) for slot in (0, 1))
                sock.sendall(saves * 40)
                sock.recv(1)
                time.sleep(generator.uniform(0, 0.03))
                server.process.kill()
                server.process.wait()
            server = self.serve("--slot-save-path", self.slots)
            self.assertEqual(sorted(os.listdir(self.slots)), ["mine.tmp", "talk"])
            for slot in (0, 1):
                status, restored = self.act(server, "restore", slot)
                self.assertEqual(status, 200, restored)
                self.assertIn(restored["n_tokens"], tokens)
            self.text(server, 20 if restored["n_tokens"] == tokens[1] else 320, id_slot=0)

    def test_a_full_disk_keeps_the_old_file(self):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", self.slots], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("mounting a small tmpfs needs root: " + mounted.stderr.decode().strip())
        self.addCleanup(subprocess.run, ["umount", "-l", self.slots])
        server = self.serve("--slot-save-path", self.slots)
        self.text(server, 4, id_slot=0)
        saved = self.act(server, "save")
        self.assertEqual(saved[0], 200, saved)
        self.text(server, 480, id_slot=0)
        status, answer = self.act(server, "save")
        self.assertEqual(status, 500)
        self.assertIn("No space left on device; make room", answer["error"]["message"])
        self.assertNotIn(self.slots, answer["error"]["message"])
        self.assertEqual(os.listdir(self.slots), ["talk"])
        self.assertEqual(self.act(server, "restore"), saved)
        self.assert_serves(server)

    def test_files_that_are_no_slots_are_refused(self):
        other = self.serve("--slot-save-path", self.slots, recipe="fp32")
        self.text(other, 4, id_slot=0)
        self.assertEqual(self.act(other, "save", name="other-cache")[0], 200)
        path = lambda name: os.path.join(self.slots, name)
        os.mkfifo(path("fifo"))
        os.mkdir(path("folder"))
        os.symlink("/dev/zero", path("zero"))
        with open(path("empty"), "w"), open(path("huge"), "w") as huge:
            huge.truncate(1 << 40)
        server = self.serve("--slot-save-path", self.slots)
        self.text(server, 4, id_slot=0)
        for name in ("fifo", "folder", "zero", "empty", "huge", "other-cache"):
            status, answer = self.act(server, "restore", name=name)
            self.assertEqual(status, 400, answer)
            self.assertIn("slot file " + name, answer["error"]["message"])
        for name in ("fifo", "folder", "zero"):
            self.assertEqual(self.act(server, "save", name=name)[0], 500)
        self.assertEqual(server.json("GET", "/slots")[1][0]["n_tokens"], 19)
        self.assert_serves(server)

    def test_limits_of_files_and_a_folder_that_vanishes(self):
        server = self.serve("--slot-save-path", self.slots)
        self.text(server, 100, id_slot=0)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1024, 1024))
        status, answer = self.act(server, "save")
        self.assertEqual((status, os.listdir(self.slots)), (500, []))
        self.assertIn("File too large", answer["error"]["message"])
        os.rmdir(self.slots)
        status, answer = self.act(server, "save")
        self.assertEqual(status, 500)
        self.assertNotIn(self.slots, answer["error"]["message"])
        os.mkdir(self.slots)
        self.assert_serves(server)

    def test_streams_go_on_while_slots_are_saved_and_restored(self):
        server = self.serve("--slot-save-path", self.slots)
        expected = self.text(server, 480)
        self.text(server, 300, id_slot=0)
        texts, done = [], threading.Event()

        def save_and_restore():
            while not done.is_set():
                statuses.append([self.act(server, action)[0] for action in ("save", "restore")])

        statuses = []
        saver = threading.Thread(target=save_and_restore)
        saver.start()
        streams = [threading.Thread(target=lambda: texts.append(self.text(server, 480))) for _ in range(4)]
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.join()
        done.set()
        saver.join()
        self.assertEqual(texts, [expected] * 4)
        self.assertEqual(statuses, [[200, 200]] * len(statuses))

    def test_sigterm_during_a_save(self):
        server = self.serve("--slot-save-path", self.slots)
        self.text(server, 400, id_slot=0)
        with server.raw() as sock:
            sock.sendall(http_bytes("/slots/0?action=save", {"filename": "talk"}) * 40)
            sock.recv(1)
            server.process.send_signal(signal.SIGTERM)
            read_all(sock)
        self.assertEqual(server.process.wait(timeout=30), 0)
        self.assertEqual(os.listdir(self.slots), ["talk"])


class Machine(Faults):
    def test_more_requests_than_the_cache_holds(self):
        server = self.serve("--cache-tokens", "512", "--prefix-cache", "2")
        prompts = [f"{i} Once upon a time " * (1 + i % 5) for i in range(16)]
        alone = [self.text(server, 150, prompt=prompt) for prompt in prompts]
        texts = [None] * len(prompts)

        def ask(i):
            texts[i] = self.text(server, 150, prompt=prompts[i])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(texts, alone)
        self.assertGreater(server.metric("preemptions_total"), 0)
        self.assert_serves(server)

    def test_out_of_descriptors(self):
        server = self.serve()
        kept = server.raw()
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertIn(b"200 OK", kept.recv(1000))
        used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 4, used + 4))
        others = [server.raw() for _ in range(30)]
        time.sleep(0.1)
        kept.sendall(http_bytes("/v1/completions", greedy(3)))  # who is connected is served
        self.assertIn(b'"completion_tokens":3', kept.recv(10000))
        for sock in [kept, *others]:
            sock.close()
        self.assert_serves(server)

    def test_the_model_file_is_deleted_or_replaced(self):
        server = self.serve()
        expected = self.text(server, 30)
        path = os.path.join(server.folder, "llama.gguf")
        with open(path + ".new", "wb") as file:
            file.write(b"another model")
        os.replace(path + ".new", path)
        self.assertEqual(self.text(server, 30), expected)
        os.remove(path)
        self.assertEqual(self.text(server, 30), expected)

    def test_a_stopped_and_continued_server_goes_on(self):
        server = self.serve("--read-timeout", "0.5", "--write-timeout", "0.5")
        with server.raw() as sock:
            sock.sendall(http_bytes("/v1/completions", greedy(480, stream=True), "Connection: close\r\n"))
            sock.recv(10)
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(0.7)
            server.process.send_signal(signal.SIGCONT)
            self.assertIn(b"[DONE]", read_all(sock))
        self.assert_serves(server)


class Clients(Faults):
    def test_a_header_that_never_ends_comes_to_408_in_the_time_of_one(self):
        server = self.serve("--read-timeout", "0.5")
        with server.raw() as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nX: ")
            sock.settimeout(0.05)
            start, answer = time.time(), b""
            while not answer and time.time() - start < 5:
                sock.sendall(b"a")
                try:
                    answer = sock.recv(100)
                except TimeoutError:
                    pass
            self.assertTrue(answer.startswith(b"HTTP/1.1 408 "), answer)
            self.assertLess(time.time() - start, 3)
        self.assert_serves(server)

    def test_heads_of_unclear_length_are_refused(self):
        server = self.serve()
        body = b'{"prompt": "a", "max_tokens": 1}'
        length = f"Content-Length: {len(body)}\r\n".encode()
        chunked = b"Transfer-Encoding: chunked\r\n"
        for head, sent, status in (
                (chunked + length, body, 400), (length + b"Content-Length: 5\r\n", body, 400),
                (b"Content-Length: -1\r\n", body, 400), (b"Content-Length: 1" + b"0" * 30 + b"\r\n", body, 400),
                (chunked, b"ffffffffffffffff\r\n", 413), (chunked, b"-1\r\n", 400), (chunked, b"1;" + b"x" * 400000, 413),
                (chunked, b"0\r\n" + b"a: b\r\n" * 70000, 413),
                (chunked, b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), 200)):
            with server.raw() as sock:
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + head + b"\r\n" + sent)
                answer = read_all(sock)
            self.assertTrue(answer.startswith(f"HTTP/1.1 {status} ".encode()), (head, answer[:200]))
        self.assert_serves(server)

    def test_a_client_that_leaves_before_its_request_is_understood(self):
        server = self.serve()
        data = http_bytes("/v1/completions", greedy(1000, n=4, stream=True) | {"prompt": "once " * 90})
        for _ in range(40):
            with server.raw() as sock:
                sock.sendall(data)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.assert_serves(server)
        self.assertGreater(server.metric("requests_cancelled_total"), 0)

    def test_head_has_no_body(self):
        server = self.serve()
        with server.raw() as sock:
            sock.sendall(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = read_all(sock)
        self.assertRegex(answer, rb"(?s)^HTTP/1.1 405 .*\r\n\r\nHTTP/1.1 200 OK\r\n.*\"ok\"")

    def test_damaged_requests_and_clients_that_leave_at_any_moment(self):
        generator = random.Random(2)
        server = self.serve("--read-timeout", "0.5")
        expected = self.text(server, 40)
        good = http_bytes("/v1/completions", greedy(200, stream=True))
        for i in range(60):
            data = bytearray(good)
            for _ in range(generator.randrange(3)):
                data[generator.randrange(len(data))] = generator.randrange(256)
            with server.raw() as sock:
                sock.sendall(data[:generator.randrange(1, len(data) + 1)] if i % 3 == 0 else data)
                if i % 2 == 0:
                    sock.settimeout(0.01)
                    try:
                        sock.recv(1000)
                    except OSError:
                        pass
                if i % 5 == 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
        self.assertEqual(self.text(server, 40), expected)
        self.assert_serves(server)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
