"""Texts that tokenizers find hard: many scripts, emoji, combining marks, mixes, runs of spaces, broken UTF-8. The same seed gives
the same texts; no data but the numbers of code points goes into them."""
import random

# Scripts by blocks; what a block has unassigned is left out below.
BLOCKS = {
    "latin": [(0x20, 0x7E), (0xA1, 0x24F), (0x1E00, 0x1EFF)],
    "ascii": [(0x20, 0x7E)],
    "greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "cyrillic": [(0x400, 0x52F)],
    "armenian": [(0x530, 0x58F)],
    "hebrew": [(0x591, 0x5F4)],
    "arabic": [(0x600, 0x6FF), (0x750, 0x77F)],
    "devanagari": [(0x900, 0x97F)],
    "bengali": [(0x980, 0x9FF)],
    "tamil": [(0xB80, 0xBFF)],
    "thai": [(0xE01, 0xE5B)],
    "tibetan": [(0xF00, 0xFDA)],
    "georgian": [(0x10A0, 0x10FF), (0x1C90, 0x1CBF)],
    "jamo": [(0x1100, 0x11FF)],
    "ethiopic": [(0x1200, 0x137C)],
    "cherokee": [(0x13A0, 0x13FD), (0xAB70, 0xABBF)],
    "khmer": [(0x1780, 0x17F9)],
    "mongolian": [(0x1800, 0x18AA)],
    "kana": [(0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF65, 0xFF9F)],
    "han": [(0x4E00, 0x9FA5), (0x3005, 0x3007), (0x3400, 0x3500), (0x20000, 0x20100), (0xF900, 0xFA6D)],
    "han common": [(0x4E00, 0x5200), (0x3001, 0x3002), (0xFF0C, 0xFF1F)],
    "hangul": [(0xAC00, 0xD7A3)],
    "marks": [(0x300, 0x36F), (0x20D0, 0x20F0), (0x1AB0, 0x1ACE), (0xFE00, 0xFE0F)],
    "digits": [(0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0x2150, 0x218B), (0x2460, 0x249B), (0xFF10, 0xFF19), (0x1D7CE, 0x1D7FF)],
    "punctuation": [(0x21, 0x2F), (0x3A, 0x40), (0x2010, 0x205E), (0x3001, 0x303F)],
    "symbols": [(0x20A0, 0x20C0), (0x2190, 0x2BFF)],
    "emoji": [(0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F900, 0x1F9FF), (0x1F1E6, 0x1F1FF)],
    "controls": [(0x0, 0x1F), (0x7F, 0x9F), (0x200B, 0x200F), (0x2028, 0x202F), (0xFEFF, 0xFEFF), (0xE000, 0xE010)],
    "historic": [(0x10000, 0x100FA), (0x10280, 0x1031F), (0x10400, 0x1049D), (0x12000, 0x12100), (0x16A0, 0x16F8)],
    "letters": [(0x1D400, 0x1D6A5), (0x2C00, 0x2DFF), (0xA640, 0xA69D), (0xA720, 0xA7BF)],
}
SPACES = " " * 8 + "\t\n\r\v\f\u0085\u00a0\u1680\u180e\u2002\u2003\u2009\u2028\u2029\u202f\u205f\u3000"
WORDS = """the of and to in is that for it was on are as with his they at be this from I have or by one had not but what all were when
we there can an your which their said if do will each about how up out them then she many some so these would other into has more
don't it's they're we've I'm you'll he'd DON'T IT'S They'Ve camelCase snake_case HTTPServer getURLById XMLParser foo.bar(baz) x+=1; //comment
https://example.org/a?b=c&d=1 user@example.org 3.14159 1234567 12,345.67 0xDEADBEEF 2024-01-31 --option=value $HOME #define <div> </p> [1] {"a":1}
<|im_start|> <|im_end|> <|im_user|> <|endoftext|> [BOS] [EOS] <think> <tool> がk か\u3099k naïve café Ångström straße ſ ﬁ İstanbul
你好 世界 人工智能 東京 こんにちは カタカナ 한국어 안녕하세요 привет мир γειά שלום مرحبا नमस्ते สวัสดี 👍🏽 👩‍👩‍👧 🇩🇪 e\u0301 a\u0308\u0323""".split()


class Source:
    def __init__(self, seed, assigned):
        self.random = random.Random(seed)
        self.assigned = assigned
        self.pools = {
            name: [chr(c) for low, high in blocks for c in range(low, high + 1) if assigned(c)] for name, blocks in BLOCKS.items()
        }
        self.names = list(self.pools)

    def of(self, name, count):
        return "".join(self.random.choices(self.pools[name], k=count))

    def any(self):
        while True:
            c = self.random.choice((0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000))
            c = self.random.randrange(c)
            if not 0xD800 <= c <= 0xDFFF and self.assigned(c):
                return chr(c)

    def chunk(self):
        r = self.random
        kind = r.randrange(12)
        if kind < 3:
            return r.choice(WORDS)
        if kind < 6:
            return self.of(r.choice(self.names), r.randint(1, 8))
        if kind == 6:
            return "".join(r.choices(SPACES, k=r.randint(1, 6)))
        if kind == 7:
            return r.choice((" ", "\n", "\r\n", "\t", "a", "0", "-", "\u3000")) * r.randint(1, 40)
        if kind == 8:
            return "".join(self.any() for _ in range(r.randint(1, 6)))
        if kind == 9:  # a letter and what combines with it
            return self.of(r.choice(self.names), 1) + self.of("marks", r.randint(1, 4))
        if kind == 10:
            return "".join(self.of(r.choice(("han", "kana", "hangul", "ascii", "digits", "han common")), 1) for _ in range(r.randint(2, 9)))
        return r.choice("'’`´") + r.choice(("s", "S", "t", "re", "RE", "ve", "m", "ll", "LL", "d", "x", "ſ", "K"))

    def line(self):
        r = self.random
        joint = r.choice(("", "", " ", " ", "  ", "\n"))
        return joint.join(self.chunk() for _ in range(r.randint(1, 12)))

    def broken(self):
        """Bytes that are not UTF-8: cut, flipped, with bytes put in between."""
        r = self.random
        b = bytearray(self.line().encode())
        for _ in range(r.randint(1, 5)):
            at = r.randrange(len(b) + 1)
            how = r.randrange(4)
            if how == 0:
                b[at:at + 1] = b""
            elif how == 1:
                b[at:at] = bytes(r.choices((0x80, 0xBF, 0xC0, 0xC3, 0xE2, 0xED, 0xA0, 0xF0, 0xF4, 0x90, 0xF5, 0xFF), k=r.randint(1, 3)))
            elif how == 2 and at < len(b):
                b[at] ^= 0x80
            else:
                del b[at:]
        return bytes(b)


def lines(seed, count, assigned):
    """Byte strings; one of ten is not UTF-8."""
    s = Source(seed, assigned)
    return [s.broken() if i % 10 == 9 else s.line().encode() for i in range(count)]


def prose(seed, size, assigned):
    """A text of about so many bytes that looks like one: words, sentences, some code, some Chinese."""
    s = Source(seed, assigned)
    r = s.random
    out, have = [], 0
    while have < size:
        kind = r.randrange(10)
        if kind < 7:
            words = [r.choice(WORDS[:90]) for _ in range(r.randint(4, 16))]
            text = " ".join(words).capitalize() + r.choice(". .. ! ? , ;".split()) + r.choice((" ", "\n", "\n\n"))
        elif kind == 7:
            text = "    " * r.randint(0, 4) + r.choice(WORDS[90:130]) + f"({r.randrange(10 ** 6)}, {r.randrange(100)});\n"
        else:
            text = s.of("han common", r.randint(4, 30)) + "。"
        out.append(text)
        have += len(text.encode())
    return "".join(out)
