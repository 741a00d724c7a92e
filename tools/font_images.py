"""Render the images of `service/demo/fonts.tar.gz`: short words in many font families.

`python -m tools.font_images --fonts FOLDER --output service/demo/fonts.tar.gz` writes the archive and, beside it,
`fonts-licenses.txt`. FOLDER holds Debian's packages texlive-fonts-extra and texlive-fonts-extra-doc, unpacked:
`apt-get download` both, and `dpkg-deb --extract` each into FOLDER. The published archive is of their version
2022.20230122-4.

A family is one class: its upright face of regular weight, or what comes nearest. Left out are families

* whose name table or license file does not say SIL Open Font License 1.1 or Apache License 2.0, or that name no holder
  of the copyright;
* that lack a letter, or show most of a to z unlike any other font: symbols, ornaments and other scripts;
* that look like a family that is already there.

Files, words and pixels depend on the fonts, their order by name, and the version of FreeType in Pillow.
"""

import argparse
import gzip
import io
import random
import re
import string
import struct
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fontTools.ttLib import TTFont, TTLibError
from PIL import Image, ImageChops, ImageDraw, ImageFont

from examples.fonts import part_of

SIDE, MARGIN, LEVELS = 48, 2, 16  # pixels, pixels, and gray levels of an image
FINE = 4  # words are drawn this many times larger, which no hinting changes
SMALLEST = 0.7  # size of a word, of the largest that fits; with words in one place, pixels alone tell many fonts
IMAGES = 24  # of each family
SEED = 0
PROBE = "Hamburgefonstiv"  # the word by which two families are compared
ALIKE = 0.02  # smallest mean difference of its pixels, of 1, between families
READABLE = 0.25  # smallest share of letters that look most like the same letter of another font
COPYRIGHT, FAMILY, LICENSE, LICENSE_ADDRESS, TYPOGRAPHIC_FAMILY = 0, 1, 13, 14, 16  # name table
OFL, APACHE = "OFL-1.1", "Apache-2.0"
STATED = {
    OFL: r"SIL open ?font license|scripts\.sil\.org/OFL|openfontlicense\.org",
    APACHE: r"Apache License,? Version 2\.0|apache\.org/licenses/LICENSE-2\.0",
}
# Optical sizes and styles of one design under a name each; mathematics, whose letters are those of a text font.
SKIPPED = re.compile(r"^drm|math|symbol|keyboard", re.IGNORECASE)
TEXT = """
able acid aged also arch area army aunt away axis baby back bald bank bath bean bear beef bell bird blue boat body
bold bone book born both bowl bulb busy cafe cake calm camp card cave chef city clay club coal coat coin cold cook
copy cork crab crow cube damp dark dawn deck deep desk dice dish dive dock dome door dove drum duck dusk dust each
east easy echo edge envy epic even exit face fact farm fast fern film fish five flag flax foam folk font four frog
fuel game gate gift glad glow goat gold good gray grid gulf hall hand harp hawk haze head herb high hill home hook
horn huge idea inch iron jazz join joke july jump june jury keen kelp kind king kite kiwi knee knot lace lake lamb
lamp leaf life lime lion loft loud luck lynx maze meal milk mint moon moth move musk myth name navy neck nest nine
node oath obey onyx open oval oven page palm park path peak pear pier pink plum poem pond pony quay quiz race rain
raft reed rice ring road rock roof rope ruby rust safe sage sail salt sand seed ship shoe silk snow soap song soup
star swan tale taxi tent tidy tile tiny town tree tuba tune turf twin unit upon user vase veil verb vest view vine
void walk wall warm wave west whip wild wind wing wolf wood wool work yard yarn yoga zero zinc zone zoom
"""
WORDS = TEXT.split()


@dataclass(frozen=True)
class Face:
    """The regular face of a family."""

    name: str
    file: Path
    license: str
    copyright: str

    @property
    def folder(self) -> str:
        """Name of the class: `fira-sans` of Fira Sans."""
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", self.name)
        return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def main() -> int:
    """Write the archive and the licenses."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fonts", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    candidates = list(faces(arguments.fonts))
    kept = without_twins(readable(candidates))
    print(f"{len(kept)} of {len(candidates)} families with Latin letters and a free license")
    write_archive(kept, arguments.output)
    text = licenses(kept, arguments.fonts)
    arguments.output.with_name("fonts-licenses.txt").write_text(text, encoding="utf-8")
    return 0


def faces(folder: Path) -> Iterator[Face]:
    """Yield the regular face of each family with a free license and all letters, in the order of their names."""
    families: dict[str, tuple[tuple[bool, int, int, str], TTFont, Path]] = {}
    files = folder.glob("usr/share/texlive/texmf-dist/fonts/*type/*/*/*.[ot]tf")
    for file in sorted(files, key=lambda each: each.name):
        try:
            font = TTFont(file, lazy=True)
            letters, metrics = font.getBestCmap(), font["OS/2"]
        except (TTLibError, struct.error, KeyError) as problem:
            print(f"{file.name} is left out: {problem}")
            continue
        name = named(font, TYPOGRAPHIC_FAMILY) or named(font, FAMILY)
        if (
            not letters
            or SKIPPED.search(f"{name} {file.parent.name}")
            or not set(map(ord, string.ascii_letters)) <= set(letters)
        ):
            continue
        italic = bool(metrics.fsSelection & 1 or re.search(r"italic|oblique", file.name, re.I))
        plain = (italic, abs(metrics.usWeightClass - 400), abs(metrics.usWidthClass - 5), file.name)
        if name not in families or plain < families[name][0]:
            families[name] = (plain, font, file)
    for name, (_, font, file) in sorted(families.items()):
        stated = license_of(font, license_files(folder, file.parent.name))
        holder = named(font, COPYRIGHT).partition("This Font Software is licensed")[0].strip()
        if stated is not None and holder:
            yield Face(name, file, stated, holder)


def named(font: TTFont, number: int) -> str:
    """Return an entry of the name table in one line, or ''."""
    return " ".join((font["name"].getDebugName(number) or "").split())


def license_files(folder: Path, collection: str) -> list[Path]:
    """Return the license files of a collection, such as OFL.txt.gz."""
    files = (folder / "usr/share/doc/texlive-doc/fonts" / collection).rglob("*")
    return sorted(
        file
        for file in files
        if re.search(r"ofl|licen[cs]e|copying", file.name, re.I) and is_text(file)
    )


def is_text(file: Path) -> bool:
    """Whether a file is text, compressed or not, and no list of questions about a license."""
    return (
        file.is_file()
        and file.suffix.lower() in ("", ".txt", ".md", ".gz")
        and "FAQ" not in file.name
    )


def text_of(file: Path) -> str:
    """Read a text file, compressed or not."""
    content = file.read_bytes()
    return (gzip.decompress(content) if file.suffix == ".gz" else content).decode(errors="replace")


def license_of(font: TTFont, files: Iterable[Path]) -> str | None:
    """Return the free license that the font itself states or, if it states none, that its license files do."""
    own = f"{named(font, LICENSE)} {named(font, LICENSE_ADDRESS)}"
    said = own if own.strip() else " ".join(" ".join(map(text_of, files)).split())
    return next((name for name, words in STATED.items() if re.search(words, said, re.I)), None)


def draw(text: str, file: Path, width: int, height: int) -> Image.Image:
    """Draw a text as large as it fits, black on white."""
    size = 100.0
    for _ in range(2):  # widths are not quite proportional to the size
        font = ImageFont.truetype(file, size, layout_engine=ImageFont.Layout.BASIC)
        left, top, right, bottom = font.getbbox(text)
        if right <= left or bottom <= top:
            raise ValueError(f"{file.name} shows nothing for {text!r}")
        size *= min(width / (right - left), height / (bottom - top))
    font = ImageFont.truetype(file, size, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getbbox(text)
    image = Image.new("L", (width, height), 255)
    corner = (width - right - left) / 2, (height - bottom - top) / 2
    ImageDraw.Draw(image).text(corner, text, fill=0, font=font)
    return image


def word_image(word: str, file: Path, chance: random.Random) -> Image.Image:
    """Draw a word as an image of the archive: of any size from `SMALLEST`, anywhere in it."""
    inner = (SIDE - 2 * MARGIN) * FINE
    side = round(inner * chance.uniform(SMALLEST, 1))
    drawn = draw(word, file, side, side)
    drawn = drawn.crop(ink(drawn))
    place = [round(MARGIN * FINE + chance.random() * (inner - length)) for length in drawn.size]
    image = Image.new("L", (SIDE * FINE, SIDE * FINE), 255)
    image.paste(drawn, (place[0], place[1]))
    small = image.resize((SIDE, SIDE), Image.Resampling.BOX)
    step = 255 / (LEVELS - 1)
    return small.point([round(round(value / step) * step) for value in range(256)])


def ink(image: Image.Image) -> tuple[int, int, int, int]:
    """Return the box of all that is not white."""
    box = ImageChops.invert(image).getbbox()
    if box is None:
        raise ValueError("nothing is shown")
    return box


def readable(candidates: list[Face]) -> list[Face]:
    """Return the faces of which enough letters look most like the same letter of another face."""
    shown: dict[Face, np.ndarray] = {}
    for face in candidates:
        try:
            shown[face] = np.stack([shape(letter, face.file) for letter in string.ascii_lowercase])
        except (OSError, ValueError) as problem:
            print(f"{face.name} is left out: {problem}")
    kept, letters = [], np.concatenate(list(shown.values()))
    for number, (face, shapes) in enumerate(shown.items()):
        likeness = shapes @ letters.T
        likeness[:, number * len(shapes) : (number + 1) * len(shapes)] = -1  # its own letters
        share = np.mean(likeness.argmax(axis=1) % len(shapes) == np.arange(len(shapes)))
        if share >= READABLE:
            kept.append(face)
        else:
            print(f"{face.name} is left out: {share:.0%} of its letters look like another font's")
    return kept


def shape(letter: str, file: Path) -> np.ndarray:
    """Return the pixels of a letter that is stretched to a square, with mean 0 and norm 1."""
    image = draw(letter, file, 96, 96)
    square = image.crop(ink(image)).resize((12, 12), Image.Resampling.BOX)
    pixels = np.asarray(square, dtype=np.float64).ravel()
    pixels -= pixels.mean()
    return pixels / max(float(np.linalg.norm(pixels)), 1e-9)


def without_twins(candidates: list[Face]) -> list[Face]:
    """Return the faces without those that look like an earlier one."""
    kept: dict[Face, np.ndarray] = {}
    for face in candidates:
        pixels = np.asarray(draw(PROBE, face.file, 300, 80), dtype=np.float64) / 255
        twin = next((k for k, seen in kept.items() if np.abs(seen - pixels).mean() < ALIKE), None)
        if twin is None:
            kept[face] = pixels
        else:
            print(f"{face.name} is left out: it looks like {twin.name}")
    return list(kept)


def write_archive(kept: list[Face], output: Path) -> None:
    """Write the images as `PART/FAMILY/WORD.png`, equal bytes for equal images."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for face in sorted(kept, key=lambda each: (part_of(each.folder), each.folder)):
            chance = random.Random(f"{SEED} {face.folder}")
            for word in sorted(chance.sample(WORDS, IMAGES)):
                content = io.BytesIO()
                word_image(word, face.file, chance).save(content, "png", optimize=True)
                member = tarfile.TarInfo(f"{part_of(face.folder)}/{face.folder}/{word}.png")
                member.size = content.tell()
                content.seek(0)
                archive.addfile(member, content)
    output.write_bytes(gzip.compress(buffer.getvalue(), compresslevel=9, mtime=0))


def licenses(kept: list[Face], folder: Path) -> str:
    """Return the text file with the license and the copyright of each family, and the OFL once."""
    texts = (text_of(f) for face in kept for f in license_files(folder, face.file.parent.name))
    ofl = min((text for text in texts if "PERMISSION & CONDITIONS" in text), key=len)
    ofl = ofl[ofl.index("SIL OPEN FONT LICENSE") :].replace("\r\n", "\n").strip()
    families = [
        f"{each.folder}: {each.name}, {each.license}\n    {each.copyright}\n"
        for each in sorted(kept, key=lambda each: each.folder)
    ]
    return (
        "Fonts of the images in fonts.tar.gz\n===================================\n\n"
        f"{len(kept)} families, {IMAGES} words each, drawn by tools/font_images.py from the fonts in Debian's package\n"
        "texlive-fonts-extra. The fonts themselves are not included. Each family with its license and copyright:\n\n"
        + "\n".join(families)
        + "\nApache-2.0 is the license in the file LICENSE of this repository. OFL-1.1:\n\n"
        + ofl
        + "\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
