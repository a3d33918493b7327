"""The server's page in a real browser: Chromium without a window, driven by selenium.

  page_test.py BLOCKGTQ DATA [unittest arguments]
Skipped (exit status 77) where selenium or Chromium is missing. Most tests read the page from the real server with the
tiny model; where the words of an answer matter, a server of this file gives them.
"""
import http.server
import json
import os
import shutil
import sys
import threading
import time
import unittest

BINARY, DATA = sys.argv[1], sys.argv[2]
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait
    MISSING = None if CHROMIUM and DRIVER else "chromium or chromedriver is not installed"
except ImportError:
    MISSING = "the Python package selenium is not installed"
if MISSING:
    print(f"HttpPage: Skipped\n{MISSING} (scripts/install_deps.sh --dev)")
    sys.exit(77)

from server_process import Server  # noqa: E402

TINY = os.path.join(DATA, "models/llama.gguf")
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


class Scripted:
    """Gives the real server's page, and answers of its own: each POST takes the next list of pieces; a piece is text,
    a number of seconds to wait, an error as a dictionary, or None: the connection is cut."""

    def __init__(self, real):
        scripted = self
        self.answers, self.bodies, self.broken = [], [], 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                answer, content = real.request("GET", self.path)
                if self.path == "/props":
                    content = json.dumps(json.loads(content) | {"chat": True}).encode()
                self.send_response(answer.status)
                for name in ("Content-Type", "Content-Security-Policy"):
                    if answer.getheader(name):
                        self.send_header(name, answer.getheader(name))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_POST(self):
                scripted.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                try:
                    for piece in scripted.answers.pop(0):
                        if piece is None:
                            return
                        if isinstance(piece, float):
                            time.sleep(piece)
                            continue
                        frame = piece if isinstance(piece, dict) else {"choices": [{"delta": {"content": piece}}]}
                        self.send(json.dumps(frame))
                    self.send("[DONE]")
                except OSError:
                    scripted.broken += 1

            def send(self, data):
                self.wfile.write(f"data: {data}\n\n".encode())
                self.wfile.flush()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        cls.browser.set_window_size(1280, 1000)
        cls.server = Server(BINARY, TINY, recipe="aligned")
        cls.scripted = Scripted(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        cls.scripted.stop()
        assert cls.server.stop() == 0

    def tearDown(self):
        # What the browser complains of: scripts that fail, and what the policy of the page forbids.
        problems = [e["message"] for e in self.browser.get_log("browser") if e["level"] == "SEVERE"]
        self.assertEqual([p for p in problems if "Failed to load resource" not in p and "net::ERR" not in p], [])

    def open(self, port=None):
        self.browser.get(f"http://127.0.0.1:{port or self.scripted.port}/")
        self.until(lambda: self.text("model").strip())

    def get(self, name):
        return self.browser.find_element(By.ID, name)

    def text(self, name):
        return self.get(name).text

    def until(self, condition, seconds=20):
        WebDriverWait(self.browser, seconds, 0.05).until(lambda _: condition())

    def busy(self):
        return self.get("stop").is_displayed()

    def articles(self):
        return self.browser.find_elements(By.CSS_SELECTOR, "article")

    def active(self):
        return self.browser.switch_to.active_element.get_attribute("id")

    def send_key(self, *keys):
        self.browser.switch_to.active_element.send_keys(*keys)

    def test_an_answer_comes_piece_by_piece_and_the_chat_goes_on(self):
        self.scripted.answers += [["Hello", 0.6, " there"], ["again"]]
        self.open()
        self.get("system").send_keys("Be kind.")
        self.get("input").send_keys("Hi", Keys.ENTER)
        self.until(lambda: "Hello" in self.articles()[1].text)
        self.assertNotIn("there", self.articles()[1].text)
        self.assertTrue(self.busy())
        self.until(lambda: "Hello there" in self.articles()[1].text and not self.busy())
        self.get("input").send_keys("More", Keys.ENTER)
        self.until(lambda: len(self.articles()) == 4 and not self.busy())
        self.assertEqual(self.scripted.bodies[-1]["messages"], [
            {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello there"}, {"role": "user", "content": "More"}])
        self.get("new").click()
        self.assertEqual(self.articles(), [])

    def test_what_is_said_is_text_and_never_html(self):
        self.scripted.answers.append([HOSTILE[:20], HOSTILE[20:], "\n```html\n" + HOSTILE + "\n```\n`" + HOSTILE + "`"])
        self.open()
        title = self.browser.title
        self.get("input").send_keys(HOSTILE, Keys.ENTER)
        self.until(lambda: len(self.articles()) == 2 and not self.busy())
        answer = self.articles()[1]
        self.assertEqual(answer.text.count(HOSTILE), 3)
        self.assertEqual(answer.find_element(By.TAG_NAME, "pre").text, HOSTILE)
        self.assertEqual(self.browser.find_elements(By.CSS_SELECTOR, "article img, article script"), [])
        self.assertEqual(self.browser.title, title)

    def test_stop_keeps_what_came_and_ends_the_request(self):
        self.open()
        for number, stop in enumerate((lambda: self.get("stop").click(), lambda: self.send_key(Keys.ESCAPE)), 1):
            self.scripted.answers.append(["word ", 0.05] * 400)
            self.get("input").send_keys("Once", Keys.ENTER)
            self.until(lambda: self.articles() and "word" in self.articles()[-1].text)
            stop()
            self.until(lambda: not self.busy())
            self.assertRegex(self.articles()[-1].text, r"Model\n(word ?)+\nstopped")
            self.until(lambda: self.scripted.broken == number)  # the connection is closed: the server cancels
            self.assertEqual(self.active(), "input")
            self.get("new").click()

    def test_the_keyboard_is_enough(self):
        self.scripted.answers.append(["one"])
        self.open()
        self.assertEqual(self.active(), "input")
        self.send_key("a", Keys.SHIFT + Keys.ENTER + Keys.NULL, "b", Keys.ENTER)
        self.until(lambda: "one" in self.articles()[1].text and not self.busy())
        self.assertEqual(self.scripted.bodies[-1]["messages"][0]["content"], "a\nb")
        order = [self.active()]
        for _ in range(20):
            webdriver.ActionChains(self.browser).send_keys(Keys.TAB).perform()
            if self.active() not in order:
                order.append(self.active())
        wanted = ["input", "send", "head", "widths", "system", "temperature", "max-tokens", "new", "theme", "log"]
        self.assertEqual([name for name in order if name in wanted], wanted)
        self.get("widths").send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
        self.assertIn("layer 1, key block 1:", self.text("cell"))
        outline = self.browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
        self.assertEqual(outline, "solid")

    def test_light_and_dark(self):
        self.open()
        paper = lambda: self.browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        self.assertIn("auto", self.text("theme"))
        seen = {}
        for theme in ("light", "dark"):
            self.get("theme").click()
            self.assertIn(theme, self.text("theme"))
            seen[theme] = paper()
        self.browser.refresh()
        self.assertEqual(paper(), seen["dark"])  # kept
        self.get("theme").click()
        for scheme in ("light", "dark"):
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                "features": [{"name": "prefers-color-scheme", "value": scheme}]})
            self.assertEqual(paper(), seen[scheme])
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.assertNotEqual(seen["light"], seen["dark"])

    def test_errors_are_shown_and_the_page_recovers(self):
        self.scripted.answers += [["par", None], [{"error": {"code": 500, "message": "the engine failed"}}], ["fine"]]
        self.open()
        for expected in ("the connection ended", "the engine failed"):
            self.get("input").send_keys("Hi", Keys.ENTER)
            self.until(lambda: not self.busy())
            self.assertIn(expected, self.articles()[-1].find_element(By.CSS_SELECTOR, "[role=alert]").text)
        self.get("input").send_keys("Hi", Keys.ENTER)
        self.until(lambda: "fine" in self.articles()[-1].text)

    def test_a_server_that_goes_away_is_noticed(self):
        gone = Server(BINARY, TINY)
        self.open(gone.port)
        self.assertEqual(self.text("connection"), "")
        gone.stop()
        self.until(lambda: "does not answer" in self.text("connection"))
        self.get("input").send_keys("Hi", Keys.ENTER)
        self.until(lambda: "does not answer" in self.articles()[-1].text)

    def test_the_panel_shows_what_the_metrics_say(self):
        body = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "id_slot": 0, "temperature": 0}
        self.assertEqual(self.server.json("POST", "/v1/completions", body)[0], 200)
        self.server.wait_for("requests_running", 0)
        self.open(self.server.port)
        self.until(lambda: self.get("tokens").get_attribute("data-value"))
        shown = self.browser.find_elements(By.CSS_SELECTOR, "[data-metric]")
        self.assertEqual(len(shown), 9)
        for element in shown:
            name = element.get_attribute("data-metric")
            self.assertEqual(float(element.get_attribute("data-value")), self.server.metric(name), name)
        self.assertEqual(self.text("tokens"), f"{self.server.metric('sequence_tokens'):,.0f}")
        ratio = self.server.metric("kv_bytes_fp16") / self.server.metric("kv_bytes")
        self.assertEqual(self.text("ratio-value"), f"{max(ratio, 1 / ratio):.2f}×")
        self.assertEqual(self.server.json("POST", "/slots/0?action=erase")[0], 200)

    def test_the_picture_shows_the_plan(self):
        plan = self.server.json("GET", "/plan")[1]
        self.assertEqual(len(plan["keys"]), plan["layers"])
        self.open(self.server.port)
        self.until(lambda: self.text("legend"))
        self.get("head").send_keys("1")
        self.get("widths").send_keys(Keys.ARROW_DOWN)
        for block in range(plan["blocks"] + 1):
            bits = plan["values"][0][1] if block == plan["blocks"] else plan["keys"][0][1][block]
            self.assertIn(f": {bits} bits", self.text("cell"))
            self.get("widths").send_keys(Keys.ARROW_RIGHT)
        widths = sorted({w for layer in plan["keys"] + [plan["values"]] for head in layer
                         for w in (head if isinstance(head, list) else [head])})
        self.assertEqual([int(s.text.split()[0]) for s in self.browser.find_elements(By.CSS_SELECTOR, "#legend > span")],
                         widths)

    def test_a_key_is_asked_for_and_kept_in_the_tab(self):
        server = Server(BINARY, TINY, "--api-key", "the-key")
        try:
            self.browser.get(f"http://127.0.0.1:{server.port}/")
            for key in ("wrong", "the-key"):
                self.until(lambda: self.get("key-dialog").is_displayed() and not self.get("key").get_attribute("value"))
                self.get("key").send_keys(key, Keys.ENTER)
            self.until(lambda: "llama" in self.text("model"))
            self.assertFalse(self.get("key-dialog").is_displayed())
            self.assertEqual(self.text("plan-text"), "the cache has no plan: it is kept as fp16")
            self.browser.refresh()
            self.until(lambda: "llama" in self.text("model"))
            self.assertNotIn("the-key", self.browser.execute_script("return JSON.stringify(localStorage)"))
        finally:
            server.stop()

    def test_a_phone_has_room_for_all(self):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True})
        try:
            self.open()
            for panel in (False, True):
                width = self.browser.execute_script("return document.documentElement.scrollWidth")
                self.assertLessEqual(width, 360)
                self.assertEqual(self.get("panel").is_displayed(), panel)
                self.assertEqual(self.get("input").is_displayed(), not panel)
                self.get("panel-toggle").click()
        finally:
            self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
