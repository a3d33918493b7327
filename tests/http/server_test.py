"""The server as its clients meet it: raw sockets and http.client against `blockgtq serve` on a tiny model.

  server_test.py BLOCKGTQ DATA [unittest arguments]
The test of OpenAI's own client runs where the package `openai` is installed.
"""
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

import server_process

BINARY, DATA = sys.argv[1], sys.argv[2]
KEY = "secret-key-1"


class Server(server_process.Server):
    """A server of the tiny model."""

    def __init__(self, *options, recipe="fp16"):
        super().__init__(BINARY, os.path.join(DATA, "models/llama.gguf"), *options, recipe=recipe)


def read_all(sock):
    data = b""
    while True:
        part = sock.recv(65536)
        if not part:
            sock.close()
            return data
        data += part


def http_bytes(path, body, extra=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{extra}\r\n".encode() + data


def events(content):
    lines = [e for e in content.decode().split("\n\n") if e]
    return [e[len("data: "):] for e in lines if e.startswith("data: ")]


def greedy(tokens, **more):
    return {"prompt": "Once upon a time", "temperature": 0, "max_tokens": tokens, "ignore_eos": True, **more}


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.slots = tempfile.mkdtemp(prefix="bgtq-slots-")
        cls.server = Server("--slot-save-path", cls.slots, "--np", "4", "--read-timeout", "1", "--alias", "tiny")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        shutil.rmtree(cls.slots)
        assert code == 0, code

    def complete(self, body):
        status, answer = self.server.json("POST", "/v1/completions", body)
        self.assertEqual(status, 200, answer)
        return answer

    def error(self, expected, method, path, body=None):
        status, answer = self.server.json(method, path, body)
        self.assertEqual(status, expected, answer)
        self.assertEqual(answer["error"]["code"], expected)
        return answer["error"]

    def test_models_health_props_metrics(self):
        self.assertEqual(self.server.json("GET", "/health"), (200, {"status": "ok"}))
        self.assertEqual(self.server.json("GET", "/v1/models")[1]["data"][0]["id"], "tiny")
        props = self.server.json("GET", "/props")[1]
        self.assertEqual(props["total_slots"], 4)
        self.assertEqual(props["cache"], "fp16")
        time.sleep(0.1)  # for the last pass of the test before
        before = self.server.metric("new_tokens_total")
        self.complete(greedy(7))
        self.server.wait_for("new_tokens_total", before + 7)  # counters are those of the last whole pass

    def test_tokenize_and_back(self):
        ids = self.server.json("POST", "/tokenize", {"content": "hello there"})[1]["tokens"]
        self.assertEqual(self.server.json("POST", "/detokenize", {"tokens": ids})[1]["content"], "hello there")

    def test_moments_are_measured_and_kept(self):
        folder = tempfile.mkdtemp(prefix="bgtq-moments-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "moments.safetensors")
        server = Server("--moments", path, recipe="aligned")
        try:
            self.assertEqual(server.metric("moments_tokens"), 0)
            deadline = time.time() + 30
            for start in range(10_000):  # drift comes from a thread of its own
                body = {"prompt": [7 + (start + 3 * i) % 240 for i in range(400)], "max_tokens": 1}
                self.assertEqual(server.json("POST", "/v1/completions", body)[0], 200)
                if b"blockgtq_plan_drift" in server.request("GET", "/metrics")[1]:
                    break
                self.assertLess(time.time(), deadline)
            self.assertGreaterEqual(server.metric("moments_tokens"), 256)
            self.assertEqual(server.metric("moments_failures_total"), 0)
            self.assertGreater(server.metric("plan_drift"), 1)
            self.assertGreaterEqual(server.metric("plan_drift_worst"), server.metric("plan_drift"))
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertGreater(os.path.getsize(path), 10_000)
        self.assertNotIn(b"moments", self.server.request("GET", "/metrics")[1])

    def test_a_stream_is_the_whole_answer_in_parts(self):
        whole = self.complete(greedy(30))
        self.assertEqual(whole["usage"]["completion_tokens"], 30)
        self.assertEqual(whole["choices"][0]["finish_reason"], "length")
        self.assertEqual(whole["timings"]["predicted_n"], 30)
        answer, content = self.server.request("POST", "/v1/completions", greedy(
            30, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(answer.getheader("Content-Type"), "text/event-stream")
        parts = events(content)
        self.assertEqual(parts[-1], "[DONE]")
        frames = [json.loads(part) for part in parts[:-1]]
        self.assertEqual(frames[-1]["usage"]["completion_tokens"], 30)
        self.assertEqual("".join(f["choices"][0]["text"] for f in frames[:-1]), whole["choices"][0]["text"])
        self.assertEqual(frames[-2]["choices"][0]["finish_reason"], "length")

    def test_seeds_choices_and_logprobs(self):
        body = {"prompt": "abc", "max_tokens": 12, "seed": 5, "n": 3, "logprobs": 2, "temperature": 1.5, "ignore_eos": True}
        one, two = self.complete(body), self.complete(body)
        texts = [c["text"] for c in one["choices"]]
        self.assertEqual(texts, [c["text"] for c in two["choices"]])
        self.assertEqual(len(set(texts)), 3)
        logprobs = one["choices"][0]["logprobs"]
        self.assertEqual(len(logprobs["token_logprobs"]), 12)
        self.assertTrue(all(value <= 0 for value in logprobs["token_logprobs"]))
        self.assertEqual(one["usage"]["completion_tokens"], 36)

    def test_stop_strings_end_the_text(self):
        text = self.complete(greedy(40))["choices"][0]["text"]
        stop = text[6:9]
        choice = self.complete(greedy(40, stop=stop))["choices"][0]
        self.assertEqual(choice["text"], text[:text.find(stop)])
        self.assertEqual(choice["finish_reason"], "stop")

    def test_errors_say_what_is_wrong(self):
        self.error(404, "GET", "/nothing")
        self.error(405, "GET", "/v1/completions")
        self.assertIn("not valid JSON", self.error(400, "POST", "/v1/completions", b"{")["message"])
        self.error(400, "POST", "/v1/completions", b'{"prompt": "\xff\xfe"}')
        self.error(400, "POST", "/v1/completions", b"[]")
        self.assertIn("deeper", self.error(400, "POST", "/v1/completions", b"[" * 100000)["message"])
        self.error(400, "POST", "/v1/completions", b'{"prompt":' + b'{"a":' * 100000)
        self.assertIn("'prompt'", self.error(400, "POST", "/v1/completions", {})["message"])
        self.assertIn("'temperature'", self.error(400, "POST", "/v1/completions", greedy(1, temperature="hot") | {
            "temperature": "hot"})["message"])
        self.error(400, "POST", "/v1/completions", greedy(0))
        self.error(400, "POST", "/v1/completions", {"prompt": [100000], "max_tokens": 1})
        self.error(501, "POST", "/v1/completions", greedy(1, grammar="root ::= x"))
        self.error(501, "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        error = self.error(400, "POST", "/v1/completions", {"prompt": "a b " * 2000})
        self.assertEqual(error["type"], "exceed_context_size_error")

    def test_slots_are_saved_restored_and_stay_in_their_folder(self):
        first = self.complete(greedy(20, id_slot=1))
        self.assertEqual(self.server.json("POST", "/slots/1?action=save", {"filename": "talk.bin"})[0], 200)
        self.assertEqual(os.listdir(self.slots), ["talk.bin"])
        tokens = self.server.json("GET", "/slots")[1][1]["n_tokens"]
        self.assertEqual(self.server.json("POST", "/slots/1?action=erase")[0], 200)
        self.assertEqual(self.server.json("GET", "/slots")[1][1]["n_tokens"], 0)
        restored = self.server.json("POST", "/slots/1?action=restore", {"filename": "talk.bin"})
        self.assertEqual(restored, (200, {"id_slot": 1, "filename": "talk.bin", "n_tokens": tokens}))
        more = self.complete(greedy(5, id_slot=1) | {"prompt": "Once upon a time" + first["choices"][0]["text"]})
        self.assertGreater(more["timings"]["cache_n"], 0)
        for name in ("../talk.bin", "/etc/passwd", "a/b", ".hidden", "", "a\0b", "x" * 129):
            self.error(400, "POST", "/slots/1?action=restore", {"filename": name})
        message = self.error(404, "POST", "/slots/1?action=restore", {"filename": "absent"})["message"]
        self.assertNotIn(self.slots, message)
        self.error(400, "POST", "/slots/4?action=erase")
        self.error(404, "POST", "/slots/x?action=erase")
        with open(os.path.join(self.slots, "talk.bin"), "r+b") as file:
            file.seek(-50, 2)
            file.write(b"damage")
        self.error(400, "POST", "/slots/2?action=restore", {"filename": "talk.bin"})
        os.remove(os.path.join(self.slots, "talk.bin"))

    def test_pipelined_requests_are_answered_in_order(self):
        with self.server.raw() as sock:
            sock.sendall(http_bytes("/v1/completions", greedy(9)) + http_bytes("/v1/completions", greedy(4, stream=True)) +
                         b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            data = read_all(sock)
        self.assertEqual(data.count(b"HTTP/1.1 200 OK"), 3)
        self.assertLess(data.index(b'"completion_tokens":9'), data.index(b"[DONE]"))
        self.assertLess(data.index(b"[DONE]"), data.index(b'"status":"ok"'))

    def test_a_request_that_comes_byte_by_byte(self):
        with self.server.raw() as sock:
            for byte in http_bytes("/v1/completions", greedy(3), "Connection: close\r\n"):
                sock.sendall(bytes([byte]))
            self.assertIn(b'"completion_tokens":3', read_all(sock))

    def test_a_client_that_half_closes_gets_its_answer(self):
        for stream in (False, True):
            with self.server.raw() as sock:
                sock.sendall(http_bytes("/v1/completions", greedy(400, stream=stream)))
                sock.shutdown(socket.SHUT_WR)
                data = read_all(sock)
            self.assertTrue(data.startswith(b"HTTP/1.1 200 OK"))
            self.assertIn(b"[DONE]" if stream else b'"completion_tokens":400', data)

    def test_a_client_that_goes_away_ends_its_request(self):
        before = self.server.metric("requests_cancelled_total")
        sock = self.server.raw()
        sock.sendall(http_bytes("/v1/completions", greedy(490, stream=True, n=4)))
        sock.recv(100)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        self.server.wait_for("requests_cancelled_total", before + 4)
        self.server.wait_for("requests_running", 0)

    def test_a_header_without_end_and_a_body_too_large(self):
        with self.server.raw() as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nX: ")
            for _ in range(160):
                sock.sendall(b"a" * 65536)
            sock.shutdown(socket.SHUT_WR)
            self.assertTrue(read_all(sock).startswith(b"HTTP/1.1 431 "))
        with self.server.raw() as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n")
            self.assertTrue(read_all(sock).startswith(b"HTTP/1.1 413 "))

    def test_nonsense_and_slowness_are_answered(self):
        with self.server.raw() as sock:
            sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
            self.assertTrue(read_all(sock).startswith(b"HTTP/1.1 400 "))
        with self.server.raw() as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
            self.assertTrue(read_all(sock).startswith(b"HTTP/1.1 408 "))
        with self.server.raw() as sock:
            self.assertEqual(read_all(sock), b"")  # never asked, told nothing

    def test_pages_of_other_sites_are_refused(self):
        body = greedy(1)
        for headers in ({"Host": "evil.example"}, {"Host": f"evil.example:{self.server.port}"},
                        {"Origin": "https://evil.example"}, {"Origin": "null"}):
            for method, path, content in (("POST", "/v1/completions", body), ("GET", "/health", None)):
                status, answer = self.server.json(method, path, content, headers)
                self.assertEqual((status, answer["error"]["type"]), (403, "permission_error"), headers)
                self.assertIn(next(iter(headers)), answer["error"]["message"])
        for headers in ({"Host": "localhost"}, {"Origin": f"http://127.0.0.1:{self.server.port}"},
                        {"Origin": "http://localhost:3000"}):
            self.assertEqual(self.server.json("POST", "/v1/completions", body, headers)[0], 200, headers)

    def test_a_client_waits_for_leave_to_send_its_body(self):
        with self.server.raw() as sock:
            body = json.dumps(greedy(2)).encode()
            sock.sendall(http_bytes("/v1/completions", body, "Expect: 100-continue\r\nConnection: close\r\n")[:-len(body)])
            self.assertEqual(sock.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            sock.sendall(body)
            self.assertIn(b'"completion_tokens":2', read_all(sock))

    def test_an_older_client_gets_its_stream_without_chunks(self):
        with self.server.raw() as sock:
            sock.sendall(http_bytes("/v1/completions", greedy(3, stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            head, content = read_all(sock).split(b"\r\n\r\n", 1)
        self.assertNotIn(b"chunked", head)
        self.assertEqual(events(content)[-1], "[DONE]")

    def test_many_clients_each_get_what_one_gets(self):
        expected = self.complete(greedy(40))["choices"][0]["text"]
        texts = [None] * 12
        def ask(i):
            texts[i] = self.complete(greedy(40))["choices"][0]["text"]
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(texts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(set(texts), {expected})


TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a place.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}}}}


class Chat(unittest.TestCase):
    """The tiny model with Qwen's chat template."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(DATA, "text/tool_chats.json")) as file:
            template = json.load(file)["templates"][0]["template"]
        cls.folder = tempfile.mkdtemp(prefix="bgtq-chat-")
        path = os.path.join(cls.folder, "chat.gguf")
        server_process.with_chat_template(os.path.join(DATA, "models/llama.gguf"), template, path)
        cls.server = server_process.Server(BINARY, path, "--alias", "tiny")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        shutil.rmtree(cls.folder)
        assert code == 0, code

    def ask(self, expected=200, **fields):
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0, **fields}
        status, answer = self.server.json("POST", "/v1/chat/completions", body)
        self.assertEqual(status, expected, answer)
        return answer

    def test_tools_are_part_of_the_prompt(self):
        prompt = lambda **fields: self.ask(**fields, max_tokens=1)["usage"]["prompt_tokens"]
        plain = prompt()
        self.assertEqual(prompt(tools=[TOOL], tool_choice="none"), plain)
        # The text of a tool, as Python writes JSON, is there.
        size = lambda tool: len(self.server.json("POST", "/tokenize", {"content": json.dumps(tool)})[1]["tokens"])
        self.assertGreater(prompt(tools=[TOOL]), plain + size(TOOL))
        other = TOOL | {"function": TOOL["function"] | {"description": "Short."}}
        self.assertEqual(prompt(tools=[TOOL]) - prompt(tools=[other]), size(TOOL) - size(other))
        self.assertEqual(self.server.json("GET", "/props")[1]["chat_tools"], True)

    def test_json_answers_parse(self):
        ended = 0
        for temperature in (0.7, 3):
            answer = self.ask(response_format={"type": "json_object"}, n=16, max_tokens=150, temperature=temperature, seed=3,
                              top_k=0, top_p=1, min_p=0)
            for choice in answer["choices"]:
                if choice["finish_reason"] == "stop":
                    self.assertIsInstance(json.loads(choice["message"]["content"]), dict)
                    ended += 1
        self.assertGreater(ended, 4)

    def test_biases_and_penalties(self):
        top = lambda **fields: [t["token"] for t in self.ask(logprobs=True, ignore_eos=True, max_tokens=30, **fields)[
            "choices"][0]["logprobs"]["content"]]
        plain = top()
        token = self.server.json("POST", "/tokenize", {"content": plain[0]})[1]["tokens"][0]
        self.assertNotIn(plain[0], top(logit_bias={str(token): -100}))
        self.assertEqual(set(top(logit_bias={str(token): 100})), {plain[0]})
        self.assertGreater(len(set(top(frequency_penalty=2, presence_penalty=2))), len(set(plain)))

    def test_what_is_not_done_is_refused_by_name(self):
        for fields in ({"response_format": {"type": "json_schema", "json_schema": {}}}, {"tool_choice": "required", "tools": [TOOL]},
                       {"functions": [TOOL["function"]]}, {"grammar": "x"}):
            self.assertIn(next(iter(fields)), self.ask(501, **fields)["error"]["message"])

    def test_the_official_client(self):
        try:
            import openai
        except ImportError:
            self.skipTest("the package openai is not installed (scripts/install_deps.sh --dev)")
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none", max_retries=0)
        self.assertEqual(client.models.list().data[0].id, "tiny")
        whole = client.completions.create(model="tiny", prompt="abc", max_tokens=8, temperature=0, logprobs=1)
        parts = client.completions.create(model="tiny", prompt="abc", max_tokens=8, temperature=0, stream=True)
        self.assertEqual("".join(part.choices[0].text for part in parts), whole.choices[0].text)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        ask = lambda **fields: client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=20, temperature=0, **fields)
        answer = ask(tools=[TOOL], logprobs=True, top_logprobs=2, frequency_penalty=0.5, logit_bias={"65": -100})
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(len(answer.choices[0].logprobs.content), answer.usage.completion_tokens)
        frames = list(ask(tools=[TOOL], frequency_penalty=0.5, logit_bias={"65": -100}, stream=True,
                          stream_options={"include_usage": True}))
        self.assertEqual("".join(f.choices[0].delta.content or "" for f in frames if f.choices), answer.choices[0].message.content)
        self.assertEqual(frames[-1].usage.completion_tokens, answer.usage.completion_tokens)
        self.assertEqual(ask(response_format={"type": "json_object"}).choices[0].message.content[:1].strip() in ("", "{"), True)
        with self.assertRaises(openai.BadRequestError):
            ask(logit_bias={"65": 1000})
        with self.assertRaises(openai.InternalServerError) as refused:
            ask(tool_choice="required", tools=[TOOL])
        self.assertEqual(refused.exception.status_code, 501)


class Limits(unittest.TestCase):
    def test_keys(self):
        server = Server("--api-key", KEY, "--api-key", "other")
        try:
            self.assertEqual(server.json("GET", "/health")[0], 200)
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"Authorization": "Bearer "},
                            {"Authorization": "Bearer " + KEY + "1"}, {"Authorization": "Bearer " + KEY[:-1]}):
                for path in ("/v1/models", "/nothing", "/metrics"):
                    status, answer = server.json("GET", path, None, headers)
                    self.assertEqual((status, answer["error"]["type"]), (401, "authentication_error"))
            for key in (KEY, "other"):
                self.assertEqual(server.json("GET", "/v1/models", None, {"Authorization": "Bearer " + key})[0], 200)
            self.assertNotIn(KEY, server.log_text())
        finally:
            server.stop()

    def test_a_full_queue_says_come_again(self):
        server = Server("--np", "1", "--queue", "2")
        try:
            socks = [server.raw() for _ in range(12)]
            for sock in socks:
                sock.sendall(http_bytes("/v1/completions", greedy(450), "Connection: close\r\n"))
            answers = [read_all(sock) for sock in socks]
            refused = [a for a in answers if a.startswith(b"HTTP/1.1 503 ")]
            self.assertTrue(refused)
            self.assertTrue(all(b"Retry-After: 1" in a for a in refused))
            self.assertEqual(len([a for a in answers if a.startswith(b"HTTP/1.1 200 ")]), 12 - len(refused))
        finally:
            server.stop()

    def test_sigterm_lets_running_answers_end(self):
        server = Server()
        sock = server.raw()
        sock.sendall(http_bytes("/v1/completions", greedy(490, stream=True)))
        sock.recv(10)
        idle = server.raw()
        server.process.send_signal(signal.SIGTERM)
        self.assertIn(b"[DONE]", read_all(sock))
        self.assertEqual(read_all(idle), b"")
        server.process.wait(timeout=60)
        self.assertEqual(server.stop(), 0)

    def test_a_client_that_does_not_read_is_dropped(self):
        server = Server()
        try:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.connect(("127.0.0.1", server.port))
                sock.sendall(http_bytes("/v1/completions", greedy(490, stream=True, n=16, logprobs=20)))
                deadline = time.time() + 30
                while server.metric("requests_cancelled_total") == 0 and time.time() < deadline:
                    time.sleep(0.05)
                self.assertGreater(server.metric("requests_cancelled_total"), 0)
            self.assertEqual(server.json("GET", "/health")[0], 200)
        finally:
            server.stop()

    def test_too_many_connections_are_told(self):
        server = Server("--max-connections", "2")
        try:
            socks = [server.raw() for _ in range(2)]
            time.sleep(0.2)
            self.assertTrue(read_all(server.raw()).startswith(b"HTTP/1.1 503 "))
            for sock in socks:
                sock.close()
            time.sleep(0.2)
            self.assertEqual(server.json("GET", "/health")[0], 200)
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
