#!/usr/bin/env python3
"""GPT-2's tokenizer in plain Python: an oracle that shares no code with models/text.

  python3 tests/gpt2_golden.py                       writes tests/gpt2_golden.json
  python3 tests/gpt2_golden.py VOCAB MERGES < text   prints the ids of a text, one a line

The algorithm is the published one (github.com/openai/gpt-2, encoder.py). Its regular expression is
spelled out alternative by alternative, so that no module beyond the standard ones is needed.
"""
import json
import random
import sys
import unicodedata
from collections import Counter
from functools import lru_cache
from pathlib import Path

TEXT = """\
The quick brown fox jumps over the lazy dog. The dog doesn't mind; it's used to that, and we've seen
worse: they'll be back, I'm sure, and you'd say they're right. 1234 dogs, 1984 foxes, 3.14, 2,718.
int main() {\n  for (int i = 0; i < 10; ++i) {\n    std::printf("%d\\n", i);\n  }\n\treturn 0;\n}
Der große Fuchs läuft über die Straße. Où est le café? Ça va, déjà vu. El niño comió piñas.
Съешь же ещё этих мягких французских булок, да выпей чаю. 快速的棕色狐狸跳过了懒狗。 日本語も少し。
안녕하세요 세계. مرحبا بالعالم. नमस्ते दुनिया। 😀 😃 🎉 → ≠ ∑ — “quoted” ‘text’ … ½ ² Ⅷ ①
""" * 3

CASES = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", "a", " a", "  a", "   a", "a ", "a  ",
    "a   ", "\na", " \na", "\n a", "\n  a", "a\n", "a \n b", "\r\n\r\nx", "Hello world",
    "Hello, world! It's 2024.", "don't can't we've I'll you're he'd I'm it's", "DON'T", "'s", " 's",
    "''s", "'sss", "'rex", "'r", "'l", "'llama", "'", "''", "' ", "a's", "a 's", "1's", "!'s",
    "x'y", "12345", " 12345", "a1b2", "1a", "1 a", "1.5e-3", "!!!", " !!!", "  !!!", "a!b?c",
    "()[]{}<>", "foo_bar", "__init__", "int main() { return 0; }\n",
    "  for (int i = 0; i < 10; ++i) {\n    x[i] += 1;\n  }\n", "große Straße", "café", "cafe\u0301",
    "Съешь ещё", "快速的棕色狐狸", "日本語 も", "안녕하세요 세계", "مرحبا بالعالم", "नमस्ते दुनिया", "😀😃 🎉", "👩‍👩‍👧",
    "½²Ⅷ①", "x²+y²", "\u00a0a", "a\u00a0b", "\u3000あ", "a\u2003\u2003b", "\u2028\u2029",
    "\u200b\u200bx", "\x1c\x1d", "\x00\x01\x7f", "\x85x", "<|endoftext|>", "a<|endoftext|>b",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "abababababababab", "the" * 50, " the" * 50,
    "ſtraße ª º ʰ", "𝐀𝐁𝐂 𝟏𝟐𝟑", "٣٤٥ ३४५", "\U000e0001", "\ufeffBOM", "a\tb\t\tc",
]


# --- the pieces -----------------------------------------------------------------------------------

def is_space(c):  # White_Space, which unicodedata does not have: isspace() but for four controls
    return c.isspace() and not 0x1c <= ord(c) <= 0x1f


def is_letter(c):
    return unicodedata.category(c)[0] == "L"


def is_number(c):
    return unicodedata.category(c)[0] == "N"


def is_other(c):
    return not (is_space(c) or is_letter(c) or is_number(c))


def blank_and_run(text, at, kind):  # " ?" and one or more of a kind
    for first in ([at + 1] if text[at] == " " else []) + [at]:
        end = first
        while end < len(text) and kind(text[end]):
            end += 1
        if end > first:
            return end
    return None


def match(text, at):
    for suffix in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
        if text.startswith(suffix, at):
            return at + len(suffix)
    for kind in (is_letter, is_number, is_other):
        end = blank_and_run(text, at, kind)
        if end is not None:
            return end
    longest = at
    while longest < len(text) and is_space(text[longest]):
        longest += 1
    for end in range(longest, at, -1):  # \s+(?!\S), giving back one after the other
        if end == len(text) or is_space(text[end]):
            return end
    return longest


def pieces(text):
    at = 0
    while at < len(text):
        end = match(text, at)
        yield text[at:end]
        at = end


# --- the merges -----------------------------------------------------------------------------------

def bytes_to_unicode():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + extra)
            extra += 1
    return table


SPELL = bytes_to_unicode()


def merge_all(word, pair):
    out, i = [], 0
    while i < len(word):
        if tuple(word[i:i + 2]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


class Encoder:
    def __init__(self, vocab, merges):
        self.vocab, self.ranks = vocab, {pair: i for i, pair in enumerate(merges)}
        self.piece = lru_cache(None)(self.piece)

    def piece(self, piece):
        word = [SPELL[b] for b in piece.encode()]
        while len(word) > 1:
            best = min(zip(word, word[1:]), key=lambda p: self.ranks.get(p, float("inf")))
            if best not in self.ranks:
                break
            word = merge_all(word, best)
        return [self.vocab[token] for token in word]

    def encode(self, text):
        return [i for piece in pieces(text) for i in self.piece(piece)]


# --- a small vocabulary, and the cases ------------------------------------------------------------

def train(text, merges):
    words = Counter(tuple(SPELL[b] for b in p.encode()) for p in pieces(text))
    out = []
    while len(out) < merges:
        pairs = Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += n
        best = max(pairs, key=lambda p: (pairs[p], p))
        out.append(best)
        words = Counter({tuple(merge_all(w, best)): n for w, n in words.items()})
    return out


def random_texts(n):
    rng = random.Random(1)
    alphabet = "  \n\t'''stremvld aeiouTHE019.,!?é\u00a0あж😀²"
    return ["".join(rng.choices(alphabet, k=rng.randrange(1, 24))) for _ in range(n)]


def main():
    if len(sys.argv) == 3:
        vocab = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        lines = Path(sys.argv[2]).read_text(encoding="utf-8").split("\n")[1:-1]
        encoder = Encoder(vocab, [tuple(line.split()) for line in lines])
        text = sys.stdin.buffer.read().decode()
        sys.stdout.writelines(f"{i}\n" for i in encoder.encode(text))
        return
    merges = train(TEXT, 200)
    tokens = [SPELL[b] for b in sorted(range(256), key=lambda b: SPELL[b])]
    tokens += ["".join(pair) for pair in merges] + ["<|endoftext|>"]
    assert len(set(tokens)) == len(tokens)
    encoder = Encoder({token: i for i, token in enumerate(tokens)}, merges)
    cases = [{"text": t, "ids": encoder.encode(t)} for t in CASES + random_texts(150)]
    with open(Path(__file__).with_suffix(".json"), "w") as out:
        out.write('{"tokens": ' + json.dumps(tokens) + ",\n")
        out.write('"merges": ' + json.dumps([" ".join(pair) for pair in merges]) + ",\n")
        out.write('"cases": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]}\n")


main()
