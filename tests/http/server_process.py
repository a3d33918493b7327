"""`blockgtq serve` on a model in a folder of its own, for the tests of the server and of its page."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time


def with_chat_template(model, template, path):
    """Writes the GGUF file `model`, of a llama, with a chat template and a context of 2048 tokens to `path`."""
    def text(value):
        return struct.pack("<Q", len(value)) + value

    def entry(key, value):
        return text(key) + struct.pack("<I", 8) + text(value)  # 8: a string

    with open(model, "rb") as file:
        data = file.read()
    key = b"llama.context_length"
    value = data.index(key) + len(key) + 4  # behind the value's type
    data = data[:value] + struct.pack("<I", 2048) + data[value + 4:]
    magic, version, tensors, entries = struct.unpack_from("<4sIQQ", data)
    added = entry(b"tokenizer.chat_template", template.encode())
    # Tensors stay where they are, counted from an aligned place behind the entries.
    added += entry(b"test.padding", b"x" * (-(len(added) + len(entry(b"test.padding", b""))) % 32))
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", magic, version, tensors, entries + 2) + added + data[24:])


class Server:
    """A server of the tiny model, or of another, on a free port."""

    def __init__(self, binary, model, *options, recipe="fp16"):
        self.folder = tempfile.mkdtemp(prefix="bgtq-http-")
        path = os.path.join(self.folder, os.path.basename(model))
        shutil.copy(model, path)
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.process = subprocess.Popen(
            [binary, "serve", "-m", path, "--device", "cpu", "-t", "1", "--port", "0", "--recipe", recipe, *options],
            stderr=self.log, stdout=subprocess.DEVNULL)
        self.port = 0
        deadline = time.time() + 60
        while time.time() < deadline and self.process.poll() is None:
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.log_text())
            if found:
                self.port = int(found[1])
                return
            time.sleep(0.02)
        raise RuntimeError("no server: " + self.log_text())

    def log_text(self):
        with open(self.log.name) as file:
            return file.read()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.log.close()
        shutil.rmtree(self.folder)
        return code

    def request(self, method, path, body=None, headers={}):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer, content

    def json(self, method, path, body=None, headers={}):
        answer, content = self.request(method, path, body, headers)
        return answer.status, json.loads(content)

    def raw(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def metric(self, name):
        text = self.request("GET", "/metrics")[1].decode()
        return float(re.search(rf"^blockgtq_{name} (\S+)$", text, re.M)[1])

    def wait_for(self, name, value):
        deadline = time.time() + 30
        while self.metric(name) != value:
            if time.time() > deadline:
                raise AssertionError(f"{name} is {self.metric(name)}, not {value}")
            time.sleep(0.02)
