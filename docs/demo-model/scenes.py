"""Synthetic images and what can be asked about them: shapes, colours, counts, numbers and words.

A scene is drawn from a `random.Random` as a few numbers; many scenes of one size become pixels at once, on any device.
"""

import math
import zlib

import numpy as np
import tasks
import torch
import torch.nn.functional as F

SIZES = [(96, 96), (96, 128), (128, 96), (128, 128), (96, 160), (160, 96), (128, 160), (160, 128)]  # height, width
SHAPES = ["circle", "square", "triangle", "cross", "star", "ring"]
COLOURS = {"red": (0.86, 0.1, 0.1), "green": (0.1, 0.62, 0.16), "blue": (0.12, 0.22, 0.88), "yellow": (0.96, 0.88, 0.1),
           "orange": (0.98, 0.52, 0.04), "purple": (0.52, 0.12, 0.68), "white": (0.97, 0.97, 0.97),
           "black": (0.03, 0.03, 0.03)}
# Seven rows a letter: five columns from the left, their lowest bits on top.
FONT = {
    "0": "3E5149453E", "1": "00427F4000", "2": "4261514946", "3": "2141454B31", "4": "1814127F10", "5": "2745454539",
    "6": "3C4A494930", "7": "0171090503", "8": "3649494936", "9": "064949291E", "A": "7E1111117E", "B": "7F49494936",
    "C": "3E41414122", "D": "7F4141221C", "E": "7F49494941", "F": "7F09090901", "G": "3E4149497A", "H": "7F0808087F",
    "I": "00417F4100", "J": "2040413F01", "K": "7F08142241", "L": "7F40404040", "M": "7F020C027F", "N": "7F0408107F",
    "O": "3E4141413E", "P": "7F09090906", "Q": "3E4151215E", "R": "7F09192946", "S": "4649494931", "T": "01017F0101",
    "U": "3F4040403F", "V": "1F2040201F", "W": "3F4038403F", "X": "6314081463", "Y": "0708700807", "Z": "6151494543",
    "a": "2054545478", "b": "7F48444438", "c": "3844444420", "d": "384444487F", "e": "3854545418", "f": "087E090102",
    "g": "0C5252523E", "h": "7F08040478", "i": "00447D4000", "j": "2040443D00", "k": "7F10284400", "l": "00417F4000",
    "m": "7C04180478", "n": "7C08040478", "o": "3844444438", "p": "7C14141408", "q": "081414187C", "r": "7C08040408",
    "s": "4854545420", "t": "043F444020", "u": "3C4040207C", "v": "1C2040201C", "w": "3C4030403C", "x": "4428102844",
    "y": "0C5050503C", "z": "4464544C44",
}
LETTERS = list(FONT)
WORDS = sorted({w.lower() for w in [*tasks.CITY, *tasks.ADJECTIVE, *tasks.NOUN, *tasks.THING, *tasks.FIRST,
                "hello", "stop", "exit", "open", "closed", "taper", "cat", "dog", "rust", "yes", "no", "go", "sale"]
                if 2 <= len(w) <= 6})
LONGEST, MOST = 6, 9  # letters of a text, shapes of a scene

DESCRIBE = ["Describe the image.", "Describe this image.", "What is in the image?", "What do you see?",
            "What is this?", "What is shown here?", "Describe the picture."]
SHAPE = ["What shape is this?", "Which shape is shown?", "What shape do you see?", "What is the shape?",
         "Name the shape.", "Which shape is this?"]
COLOUR = ["What colour is the {}?", "What color is the {}?", "Which colour is the {}?", "Which color is the {}?",
          "What is the colour of the {}?", "What is the color of the {}?"]
COLOUR_OF_ONE = [*COLOUR, "What colour is it?", "What color is it?", "What colour is this?", "What color is this?"]
COUNT = ["How many {} are there?", "How many {} do you see?", "Count the {}.", "How many {} are in the image?",
         "How many {} are shown?"]
WHICH = ["Which shape is {}?", "What shape is {}?", "Which one is {}?"]
NUMBER = ["Which number is shown?", "What number is this?", "What number is shown?", "Which number do you see?",
          "Read the number.", "What is the number?"]
WORD = ["What word is written?", "Which word is written?", "What word is this?", "Read the word.",
        "What does it say?", "What is the word?", "What is written here?"]


def plural(shape):
    return shape + "es" if shape == "cross" else shape + "s"


def phrase(colour, shape, n=1):
    if n > 1:
        return f"{n} {colour} {plural(shape)}"
    return f"{'an' if colour[0] == 'o' else 'a'} {colour} {shape}"


class Scene:
    """What is drawn, and `asked`: pairs of a task and its (question, answer), one of each task."""

    def __init__(self, r, size):
        self.size = size
        self.shapes = np.zeros((MOST, 8), np.float32)  # x, y, radius (0: none), angle, kind, red, green, blue
        self.text = np.zeros(10, np.float32)  # x, y, a dot's side, angle, threshold, sharpness, colour
        self.letters = np.zeros(LONGEST, np.int64)  # from 1
        self.ground = np.zeros(10, np.float32)  # colour, its change over the image, direction, noise
        self.count, self.used, self.asked = 0, [], {}
        k = r.random()
        kind = (self.single if k < 0.2 else self.pair if k < 0.35 else self.many if k < 0.67
                else self.number if k < 0.83 else self.word)
        kind(r)
        self.paint_ground(r)

    def colour(self, r, name):
        rgb = [min(1, max(0, c + r.uniform(-0.08, 0.08))) for c in COLOURS[name]]
        self.used.append(rgb)
        return rgb

    def add(self, r, x, y, radius, shape, colour):
        turn = r.uniform(0, 2 * math.pi) if r.random() < 0.15 and shape != "cross" else r.gauss(0, 0.08)
        self.shapes[self.count] = [x, y, radius, turn, SHAPES.index(shape), *self.colour(r, colour)]
        self.count += 1

    def places(self, r, n, least, most):
        """`n` circles that do not touch: x, y and radius."""
        h, w = self.size
        while True:
            found = []
            for _ in range(n):
                radius = r.uniform(least, most)
                for _ in range(30):
                    x, y = r.uniform(radius + 2, w - radius - 2), r.uniform(radius + 2, h - radius - 2)
                    if all((x - a) ** 2 + (y - b) ** 2 > (radius + c + 3) ** 2 for a, b, c in found):
                        found.append((x, y, radius))
                        break
                else:
                    break
            if len(found) == n:
                return found
            least, most = max(5, least * 0.9), max(6, most * 0.9)

    def single(self, r):
        shape, colour = r.choice(SHAPES), r.choice(list(COLOURS))
        (x, y, radius), = self.places(r, 1, 10, 0.46 * min(self.size))
        self.add(r, x, y, radius, shape, colour)
        self.asked = {"shape": (r.choice(SHAPE), shape), "colour": (r.choice(COLOUR_OF_ONE).format(shape), colour),
                      "describe": (r.choice(DESCRIBE), phrase(colour, shape))}

    def pair(self, r):
        h, w = self.size
        shapes, colours = r.sample(SHAPES, 2), r.sample(list(COLOURS), 2)
        places = sorted(self.places(r, 2, 9, 0.24 * min(h, w)))
        for place, shape, colour in zip(places, shapes, colours):
            self.add(r, *place, shape, colour)
        i = r.randrange(2)
        self.asked = {"colour of one": (r.choice(COLOUR).format(shapes[i]), colours[i]),
                      "shape of one": (r.choice(WHICH).format(colours[i]), f"the {shapes[i]}")}
        if places[1][0] - places[0][0] > 0.2 * w:
            both = " and ".join(phrase(c, s) for c, s in zip(colours, shapes))
            self.asked["describe two"] = (r.choice(DESCRIBE), both)
            j = r.randrange(2)
            self.asked["side"] = (f"What is on the {('left', 'right')[j]}?", phrase(colours[j], shapes[j]))

    def many(self, r):
        n = r.randint(1, 5) if r.random() < 0.5 else r.randint(1, MOST)
        shape, colour = r.choice(SHAPES), r.choice(list(COLOURS))
        others = r.randint(1, min(3, MOST - n)) if n < MOST and r.random() < 0.35 else 0
        most = min(28, 0.34 * math.sqrt(self.size[0] * self.size[1] / (n + others)))
        places = self.places(r, n + others, r.uniform(6, most), most)
        other, other_colour = r.choice([s for s in SHAPES if s != shape]), r.choice(list(COLOURS))
        for i, place in enumerate(places):
            self.add(r, *place, *((shape, colour) if i < n else (other, other_colour)))
        one = str(n)
        name = "count" if n <= 5 else "count to 9"
        if others:
            a, b = (shape, one) if r.random() < 0.7 else (other, str(others))
            self.asked = {name if b == one else "count": (r.choice(COUNT).format(plural(a)), b)}
        else:
            what = plural(shape) if r.random() < 0.75 else r.choice(["shapes", f"{colour} {plural(shape)}"])
            self.asked = {name: (r.choice(COUNT).format(what), one)}
            if r.random() < 0.3:
                self.asked["describe many"] = (r.choice(DESCRIBE), phrase(colour, shape, n))

    def write(self, r, text):
        h, w = self.size
        turn = r.gauss(0, 0.05)
        dots = 6 * len(text) - 1
        most = min(0.92 * w / (dots + 2), 0.9 * h / 9, 9)
        dot = r.uniform(min(1.7, 0.9 * most), most)
        half = 0.5 * dot * (dots + 1), 0.5 * dot * 8
        x, y = r.uniform(half[0], w - half[0]), r.uniform(half[1], h - half[1])
        colour = self.colour(r, r.choice(["black", "black", "white", *COLOURS]))
        self.letters[:len(text)] = [LETTERS.index(c) + 1 for c in text]
        self.text[:] = [x, y, dot, turn, r.uniform(0.3, 0.6), r.uniform(1, max(1.5, 1.5 * dot)), *colour, len(text)]

    def number(self, r):
        k = r.random()
        n = r.randint(10, 99) if k < 0.75 else r.randint(0, 9) if k < 0.83 else r.randint(100, 999)
        self.write(r, str(n))
        name = "number" if 10 <= n <= 99 else "other number"
        self.asked = {name: (r.choice(NUMBER), str(n))}
        if r.random() < 0.1:
            self.asked = {"describe number": (r.choice(DESCRIBE), f"the number {n}")}

    def word(self, r):
        letters = r.random() < 0.25
        text = "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(2, 5))) if letters \
            else r.choice(WORDS)
        text = text.upper() if r.random() < 0.5 else text
        self.write(r, text)
        self.asked = {"letters" if letters else "word": (r.choice(WORD), text)}
        if r.random() < 0.1:
            self.asked = {"describe word": (r.choice(DESCRIBE), f"the word {text}")}

    def paint_ground(self, r):
        """A colour that is far from those of everything on it, also where it changes."""
        while True:
            k = r.random()
            if k < 0.35:
                rgb = [r.uniform(0.9, 1)] * 3
            elif k < 0.5:
                rgb = [r.uniform(0, 0.12)] * 3
            elif k < 0.65:
                rgb = [r.uniform(0.2, 0.8)] * 3
            else:
                rgb = [r.random() for _ in range(3)]
            change = [r.uniform(-0.15, 0.15) if r.random() < 0.5 else 0.0 for _ in range(3)]
            if all(sum((a - b) ** 2 for a, b in zip(rgb, c)) > 0.2 for c in self.used):
                break
        angle = r.uniform(0, 2 * math.pi)
        noise = r.choice([0, 0, r.uniform(0, 0.03), r.uniform(0, 0.07)])
        self.ground[:] = [*rgb, *change, math.cos(angle), math.sin(angle), noise, 0]

    def arrays(self):
        return self.shapes, self.text, self.letters, self.ground


def atlas(side=128, finer=4):
    """Shapes of radius 1 within -1.1 to 1.1, how much of each point they cover: `[6, side, side]`."""
    at = (torch.arange(side * finer) + 0.5) / (side * finer) * 2.2 - 1.1
    y, x = torch.meshgrid(at, at, indexing="ij")
    far, angle = (x * x + y * y).sqrt(), torch.atan2(x, -y)
    square = (x.abs() < 0.75) & (y.abs() < 0.75)
    triangle = (y < 0.6) & (y > 1.75 * x.abs() - 0.95)
    cross = ((x.abs() < 0.28) & (y.abs() < 0.95)) | ((y.abs() < 0.28) & (x.abs() < 0.95))
    # Between a point of the star and the dent beside it the edge is a straight line.
    turn = (angle / (2 * math.pi / 5)).remainder(1.0)
    turn = torch.minimum(turn, 1 - turn) * (2 * math.pi / 5)
    dent = 0.42
    cx, cy = dent * math.sin(math.pi / 5), dent * math.cos(math.pi / 5)
    star = far * (turn.sin() * (1 - cy) + turn.cos() * cx) < cx
    ring = (far < 0.97) & (far > 0.55)
    shapes = torch.stack([far < 0.95, square, triangle, cross, star, ring]).float()
    return F.avg_pool2d(shapes[:, None], finer)[:, 0]


def glyphs():
    """`[1 + letters, 7, 6]`, of which the first is empty."""
    out = torch.zeros(1 + len(LETTERS), 7, 6)
    for i, letter in enumerate(LETTERS):
        columns = bytes.fromhex(FONT[letter])
        for x in range(5):
            for y in range(7):
                out[i + 1, y, x] = columns[x] >> y & 1
    return out


class Painter:
    """Scenes of one size as pixels."""

    def __init__(self, device):
        self.atlas, self.glyphs = atlas().to(device), glyphs().to(device)

    @torch.no_grad()
    def paint(self, size, shapes, text, letters, ground):
        """`[rows, 3, height, width]` bytes, from a row's arrays of each scene."""
        (h, w), device = size, shapes.device
        y, x = torch.meshgrid(torch.arange(h, device=device) + 0.5, torch.arange(w, device=device) + 0.5, indexing="ij")
        x, y = x.flatten(), y.flatten()
        across = (x[None] / w - 0.5) * ground[:, 6:7] + (y[None] / h - 0.5) * ground[:, 7:8]
        image = ground[:, :3, None] + ground[:, 3:6, None] * across[:, None]

        most = max(1, int((shapes[:, :, 2] > 0).sum(1).max()))
        shapes = shapes[:, :most]
        u, v = turned(x, y, shapes[..., 0:1], shapes[..., 1:2], shapes[..., 3:4])
        side, radius = self.atlas.shape[-1], shapes[..., 2:3].clamp(min=1e-3)
        u, v = ((t / radius + 1.1) * (side / 2.2) for t in (u, v))
        inside = (u >= 0) & (u < side) & (v >= 0) & (v < side) & (shapes[..., 2:3] > 0)
        at = shapes[..., 4:5].long() * side * side + v.clamp(0, side - 1).long() * side + u.clamp(0, side - 1).long()
        cover = self.atlas.flatten()[at] * inside
        image = image * (1 - cover.sum(1, keepdim=True)) + torch.einsum("nkp,nkc->ncp", cover, shapes[..., 5:8])

        dots = self.glyphs[letters].transpose(1, 2).flatten(2)[:, None]  # [rows, 1, 7, 6 * letters]
        u, v = turned(x, y, text[:, 0:1], text[:, 1:2], text[:, 3:4])
        dot, n = text[:, 2:3].clamp(min=1e-3), text[:, 9:10]
        u, v = u / dot + (6 * n - 1) / 2, v / dot + 3.5
        grid = torch.stack((u / dots.shape[-1] * 2 - 1, v / 7 * 2 - 1), -1)[:, None]
        ink = F.grid_sample(dots, grid, align_corners=False, padding_mode="zeros")[:, 0, 0]
        ink = ((ink - text[:, 4:5]) * text[:, 5:6] + 0.5).clamp(0, 1) * (n > 0)
        image = image + ink[:, None] * (text[:, 6:9, None] - image)

        image = image + torch.randn_like(image) * ground[:, 8, None, None]
        return (image.clamp(0, 1) * 255).round().to(torch.uint8).view(len(shapes), 3, h, w)


def turned(x, y, cx, cy, angle):
    """Points from a centre, turned back by an angle."""
    x, y, cos, sin = x - cx, y - cy, angle.cos(), angle.sin()
    return x * cos + y * sin, y * cos - x * sin


def png(pixels):
    """A PNG file of `[3, height, width]` bytes."""
    c, h, w = pixels.shape
    rows = np.concatenate([np.zeros((h, 1), np.uint8), pixels.transpose(1, 2, 0).reshape(h, w * c)], 1)

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = w.to_bytes(4, "big") + h.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes())) \
        + chunk(b"IEND", b"")
