"""Writes tokenizers/NAME.json (small tokenizer.json files with the pipelines of the supported families) and
tokenizers.json (what Hugging Face's tokenizers make of a set of texts with each), and spm.gguf with spm.json (a
SentencePiece vocabulary, and what sentencepiece makes of the texts).

  pip install tokenizers sentencepiece gguf && python make_tokenizers.py
The pipelines are those of the models' published tokenizer.json files; the vocabularies are trained here.
"""
import io
import json
import pathlib
import random

import gguf
import sentencepiece
import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

HERE = pathlib.Path(__file__).parent
META = "\u2581"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+%s|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + r"*%s|"
END = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
TEKKEN = CASED % ("", "") + r"\p{N}" + END
GPT4O = CASED % (SUFFIX, SUFFIX) + r"\p{N}{1,3}" + END
DEEPSEEK_LETTERS = (  # ranges as pairs of code points, single ones as themselves
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1 "
    "3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a "
    "1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 "
    "1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 "
    "212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d "
    "a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f "
    "104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943")
LETTERS = "".join("-".join(chr(int(c, 16)) for c in r.split("-")) for r in DEEPSEEK_LETTERS.split())
DEEPSEEK2 = ["[\r\n]", r"\s?[" + LETTERS + "]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
             r"\s+$", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
DEEPSEEK3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
             " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what they'd said; we'll see, I'm sure. HELLO World, iPhone!",
    "    for (int i = 0; i < 10; ++i) {\n        total += values[i] * 3.14159;\n    }\n\n\treturn total;\r\n",
    "Der schnelle braune Fuchs springt \u00fcber den faulen Hund. \u00c7a va tr\u00e8s bien, na\u00efve caf\u00e9 d\u00e9j\u00e0 vu.",
    "\u0411\u044b\u0441\u0442\u0440\u0430\u044f \u043b\u0438\u0441\u0430 \u043f\u0440\u044b\u0433\u0430\u0435\u0442 \u0447\u0435\u0440\u0435\u0437 \u0441\u043e\u0431\u0430\u043a\u0443. \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "\u654f\u6377\u7684\u68d5\u8272\u72d0\u72f8\u8df3\u8fc7\u4e86\u61d2\u72d7\u3002\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3067\u3059\u3002\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4.",
    "\u0627\u0644\u0633\u0631\u064a\u0639\u0629 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u05e2\u05d1\u05e8\u05d9\u05ea 1234567890 2026-11-30",
] * 3

HAND = [
    "", " ", "  ", "Hello, world!", " Hello", "  two  spaces   and  tabs\t\t\tend  ", "a\n\n\nb\r\n\r\n  c \n d",
    "I'm YOU'RE he'LL they'd 'S it\u2019s '\u017f", "price 1234567, 3.14 and x2y33 \u0661\u0662\u0663 \u00bd \u2167 x\u00b2",
    "e\u0301 cafe\u0301 caf\u00e9 \u212b \u1e69 s\u0323\u0307 \ufb01 \uac00 \u1100\u1161\u11a8 \u0915\u093c \u0344",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01 \u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4 mixed\u4e2dtext 42\u5e74",
    "\U0001f600\U0001f680 ok \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f \u180e g\u200bh", "\x00\x01\x1f\x7f", "()[]{}...\n\n!!//\n", "_snake_case $var #tag @me",
    "CamelCaseXMLHttp ABCdef \u0391\u0392\u03b3 \u01c5x", "def f(x):\n    return x  # \u2581 done\n", "\u2581a \u2581\u2581 b",
    "    \u4e2d   x   ", "\u1e9e\u1fd3\u1f7d\u1fdb\u2126\u212a \U00010400\U0001044f \U0001e943", "a" * 40, " " * 33 + "x" + "\n" * 9,
    "\ufeffbom", "\ufffd", "x<|sp|>y <|sp|> z", "<|sp|><|sp|>", "  <|right|>  after \n x", " a \u00a0 <|left|>b", "<tool> a<tool>b",
    "<|sp|>\u0301", " New\u0301York NewYork", "<|right|>\n<|left|> <|right|> <tool>", "<|s", "<|sp|", "e\u0301<tool>e\u0301",
]
PARTS = ["a", "The", "quick", " brown", "S", "'s", "'LL", "1", "23", "4567", " ", "  ", "\n", "\r\n", "\t", ".", "!?", "\u00e9", "e\u0301",
         "\u4e2d", "\u72d0\u72f8", "\u00a0", "\u3000", "\u0301", "\u00bd", "\u0662", "\U0001f600", "_", "\x00", "\u200d", "\u0085", "<|sp|>",
         "<tool>", "<|right|>", "<|left|>", "NewYork", "\ud55c\uad6d", "\u0301", "/", "<", "\u2581", "\u1100\u1161", "Fuchs"]
LONG = "The quick brown fox, \u654f\u6377\u7684 12345!\n\n   caf\u00e9\u0301 <tool> \U0001f600 it's"
LONG_REPEAT = 300


def added():
    """One token of each kind of flags."""
    return [AddedToken("<|sp|>", special=True, normalized=False), AddedToken("<tool>", special=False, normalized=False),
            AddedToken("<|right|>", special=True, normalized=False, rstrip=True),
            AddedToken("<|left|>", special=True, normalized=False, lstrip=True),
            AddedToken("NewYork", special=False, normalized=True)]


def splits(patterns, behavior="isolated", invert=False):
    return [pre_tokenizers.Split(Regex(p), behavior, invert=invert) for p in patterns]


BYTES = dict(add_prefix_space=False, use_regex=False)


def byte_level(steps, normalizer=None, post=None, first=(), vocab=440, **model):
    """A byte-level tokenizer, trained on the corpus."""
    tok = Tokenizer(models.BPE())
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(CORPUS, trainer)
    data = json.loads(tok.to_str())
    data["model"].update(model)
    tok = Tokenizer.from_str(json.dumps(data))
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in first])
    tok.add_tokens(added())
    tok.post_processor = post(tok) if post else processors.ByteLevel(trim_offsets=False)
    return tok


def template(*names):
    def make(tok):
        return processors.TemplateProcessing(single=list(names) + ["$A"],
                                             special_tokens=[(n, tok.token_to_id(n)) for n in names])
    return make


def characters(normalizer, pre, decoder, byte_fallback=True, vocab=700):
    """BPE of characters, with the tokens of bytes where byte_fallback."""
    tok = Tokenizer(models.BPE())
    if normalizer is not None:
        tok.normalizer = normalizer
    # Words are cut for training only, as SentencePiece does.
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=vocab, show_progress=False, limit_alphabet=110))
    trained = json.loads(tok.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    names += sorted(trained["vocab"], key=trained["vocab"].get)
    model = models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[tuple(m) for m in trained["merges"]],
                       unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback)
    tok = Tokenizer(model)
    if normalizer is not None:
        tok.normalizer = normalizer
    if pre is not None:
        tok.pre_tokenizer = pre
    tok.decoder = decoder
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tok.add_tokens(added())
    tok.post_processor = template("<s>")(tok)
    return tok


def llama_decoder(strip):
    steps = [decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def pipelines():
    level = pre_tokenizers.ByteLevel(**BYTES)
    yield "llama3", byte_level(splits([LLAMA3 % r"\p{N}{1,3}"]) + [level], post=template("<|begin_of_text|>"),
                               first=["<|begin_of_text|>", "<|eot_id|>"], ignore_merges=True)
    yield "qwen2", byte_level(splits([LLAMA3 % r"\p{N}"]) + [level], normalizer=normalizers.NFC(),
                              first=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    yield "mistral-nemo", byte_level(splits([TEKKEN]) + [level], post=template("<s>"), first=["<unk>", "<s>", "</s>"])
    yield "glm4", byte_level(splits([LLAMA3 % r"\p{N}{1,3}"]) + [level], post=template("[gMASK]", "<sop>"),
                             first=["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>"])
    yield "deepseek-v2", byte_level(splits(DEEPSEEK2) + [pre_tokenizers.Digits(individual_digits=True), level],
                                    normalizer=normalizers.Sequence([]),
                                    first=["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"])
    yield "deepseek-coder", byte_level(splits(CODER) + [pre_tokenizers.Digits(individual_digits=True), level])
    yield "deepseek-v3", byte_level(splits(DEEPSEEK3) + [level])
    yield "smollm", byte_level([pre_tokenizers.Digits(individual_digits=True),
                                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    yield "gpt2-prefix", byte_level([pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    yield "gpt-4o", byte_level(splits([GPT4O]) + [level])
    yield "olmo2", byte_level(splits([LLAMA3 % r"\p{N}{1,3}"], "removed", True) + [level])
    space = normalizers.Replace(" ", META)
    yield "gemma3", characters(space, pre_tokenizers.Split(" ", "merged_with_previous"), llama_decoder(False))
    yield "phi3", characters(normalizers.Sequence([normalizers.Prepend(META), space]), None, llama_decoder(True))
    yield "mistral", characters(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), llama_decoder(True))
    yield "metaspace", characters(None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True),
                                  decoders.Metaspace(prepend_scheme="always"), byte_fallback=False)


def fingerprint(ids):
    value = 0
    for i in ids:
        value = (value * 1000003 + i + 1) % 2**64
    return {"count": len(ids), "hash": str(value)}


def reference(tok, texts, rng):
    out = {"prefix": tok.encode("", add_special_tokens=True).ids, "cases": [], "decoded": []}
    for text in texts:
        tok.encode_special_tokens = False
        special = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = True
        plain = tok.encode(text, add_special_tokens=False).ids
        row = {"special": special}
        # Hugging Face shows an added token as it was normalised, with phi3's Prepend; we show its own text.
        if not any(tok.id_to_token(i) == META + "NewYork" for i in special):
            row["back"] = tok.decode(special, skip_special_tokens=False)
        if plain != special:
            row["plain"] = plain
        out["cases"].append(row)
    tok.encode_special_tokens = False
    out["long"] = fingerprint(tok.encode(LONG * LONG_REPEAT, add_special_tokens=False).ids)
    if isinstance(tok.decoder, decoders.ByteLevel):  # tokens that cut characters in two
        for _ in range(40):
            ids = [rng.randrange(tok.get_vocab_size()) for _ in range(rng.randint(1, 12))]
            out["decoded"].append({"ids": ids, "text": tok.decode(ids, skip_special_tokens=False)})
    return out


def spm(texts):
    """SentencePiece BPE as in Llama 2 and Gemma: no normalisation, every space kept."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=640, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.985,
        split_by_unicode_script=False, split_digits=True, allow_whitespace_only_pieces=True,
        user_defined_symbols=["<tool>"], minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = [3 if sp.is_control(i) else 2 if sp.is_unknown(i) else 6 if sp.is_byte(i) else 4 if sp.id_to_piece(i) == "<tool>"
             else 1 for i in range(sp.vocab_size())]
    writer = gguf.GGUFWriter(HERE / "spm.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([sp.id_to_piece(i) for i in range(sp.vocab_size())])
    writer.add_token_scores([sp.get_score(i) for i in range(sp.vocab_size())])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(sp.bos_id())
    writer.add_eos_token_id(sp.eos_id())
    writer.add_unk_token_id(sp.unk_id())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # SentencePiece drops NUL, and puts no second space after a user-defined symbol, as llama.cpp does.
    texts = [t for t in texts if "\x00" not in t and "<tool>" not in t]
    rows = [{"text": t, "ids": sp.encode(t), "back": sp.decode(sp.encode(t))} for t in texts]
    out = {"sentencepiece": sentencepiece.__version__, "cases": rows,
           "long": {"text": "The quick brown fox, \u654f\u6377\u7684 12345!\n\n   caf\u00e9 ", "repeat": LONG_REPEAT}}
    out["long"].update(fingerprint(sp.encode(out["long"]["text"] * LONG_REPEAT)))
    (HERE / "spm.json").write_text(json.dumps(out, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    rng = random.Random(11)
    texts = HAND + ["".join(rng.choice(PARTS) for _ in range(rng.randint(1, 12))) for _ in range(120)]
    out = {"tokenizers": tokenizers.__version__, "texts": texts, "long": LONG, "long_repeat": LONG_REPEAT, "pipelines": {}}
    folder = HERE / "tokenizers"
    folder.mkdir(exist_ok=True)
    for name, tok in pipelines():
        (folder / f"{name}.json").write_text(tok.to_str() + "\n")
        out["pipelines"][name] = reference(tok, texts, rng)
    (HERE / "tokenizers.json").write_text(json.dumps(out, ensure_ascii=True, separators=(",", ":")) + "\n")
    spm(texts)


if __name__ == "__main__":
    main()
