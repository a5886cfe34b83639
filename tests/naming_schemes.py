"""How people name images, by public conventions: with several images of one patient, video, object or original, and
with none. Each scheme gives rows (path, group), the group None where an image stands alone."""

import hashlib
import random
import string
import uuid
from collections.abc import Callable

Rows = list[tuple[str, str | None]]
CLASSES = ("benign", "malignant")
TREES = ("oak", "elm", "fir", "yew")


def some_hash(*words: object) -> str:
    return hashlib.md5(repr(words).encode()).hexdigest()


def number(*words: object) -> int:
    """Any number up to 90,000, always the same for the same words."""
    return int(some_hash(*words)[:5], 16) % 90_000


def of_groups(name: Callable[..., str], *, groups: int = 16, least: int = 3, most: int = 9) -> Rows:
    """Groups of `least` to `most` images, half of them of each class: `name` takes group, class and image."""
    generator, rows = random.Random(0), {}
    for place, group in enumerate(generator.sample(range(1, groups + 1), groups)):
        label = CLASSES[place % len(CLASSES)]
        for image in range(generator.randint(least, most)):
            rows[f"{label}/{name(group, label, image)}"] = f"{group}"
    return list(rows.items())


def with_suffixes(name: Callable[[int], str], suffixes: tuple[str, ...], count: Callable[[int], int], n: int) -> Rows:
    """Originals, each with the first few of these suffixes."""
    return [(f"{CLASSES[i % 2]}/{name(i)}{suffix}.jpg", f"{i}") for i in range(n) for suffix in suffixes[: count(i)]]


def alone(name: Callable[[int, str], str], *, classes: tuple[str, ...] = CLASSES, count: int = 90) -> Rows:
    labels = [classes[(i * 7 // 3) % len(classes)] for i in range(count)]
    return [(f"{label}/{name(i, label)}", None) for i, label in enumerate(labels)]


def moment(i: int) -> tuple[str, ...]:
    """Year, month, day, hour, minute, second of a photograph."""
    at = number(i, "time") % 86_400
    parts = (2021, 1 + i % 12, 1 + number(i) % 28, at // 3600, at // 60 % 60, at % 60)
    return tuple(f"{part:02}" for part in parts)


def actions() -> Rows:
    generator, rows = random.Random(3), []
    for label in ("Archery", "Bowling", "Fencing"):
        for group in range(1, 9):
            for clip in range(1, generator.randint(3, 7)):
                rows.append((f"{label}/v_{label}_g{group:02}_c{clip:02}.jpg", f"{label}{group}"))
    return rows


def expressions() -> Rows:
    words = ("happy", "sad", "sleepy", "surprised", "wink", "normal")
    return [(f"{word}/subject{person:02}.{word}.png", f"{person}") for word in words for person in range(1, 16)]


def celebrities() -> Rows:
    generator = random.Random(5)
    return [
        (f"{CLASSES[place % 2]}/{name}_{image:04}.jpg", name)
        for place, name in enumerate(PEOPLE)
        for image in range(1, generator.randint(4, 9))
    ]


def grid(name: str, groups: int, *ranges: range) -> Rows:
    """Each group with all combinations of what `ranges` say."""
    combinations: list[tuple[int, ...]] = [()]
    for values in ranges:
        combinations = [(*row, value) for row in combinations for value in values]
    return [
        (f"{CLASSES[group % 2]}/{name.format(group, *row)}", f"{group}")
        for group in range(1, groups + 1)
        for row in combinations
    ]


def roboflow() -> Rows:
    return [
        (f"{CLASSES[i % 2]}/IMG_{2000 + 7 * i}_jpg.rf.{some_hash(i, copy)}.jpg", f"{i}")
        for i in range(40)
        for copy in range(3 if i % 8 else 1)
    ]


def roboflow_of_many_sources() -> Rows:
    sources = ("dog-{}_png", "DSC{:04}_JPG", "images-{}-_jpeg", "IMG_{:04}_jpg", "{0:03}{0:x}f_jpg")
    return [
        (f"{CLASSES[i % 2]}/{sources[i % 5].format(i)}.rf.{some_hash(i, copy)}.jpg", f"{i}")
        for i in range(45)
        for copy in range(3)
    ]


def histology(patient: int, label: str, image: int) -> str:
    x, y = (51 * (number(patient, image, axis) % 40) + 1 for axis in "xy")
    return f"{8000 + patient * 37}_idx5_x{x}_y{y}_class{CLASSES.index(label)}.png"


def breast(patient: int, label: str, image: int) -> str:
    kind = ("A", "F", "TA", "PT")[patient % 4] if label == "benign" else ("DC", "LC", "MC", "PC")[patient % 4]
    slide = f"{14 + patient % 3}-{20000 + number(patient) % 9999}{'' if patient % 2 else 'AB'}"
    return f"SOB_{label[0].upper()}_{kind}-{slide}-{(40, 100, 200, 400)[image % 4]}-{image // 4:03}.png"


def barcode(patient: int, _: str, image: int) -> str:
    site = ("A2", "BH", "E9", "D8", "AR", "C8")[patient % 6]
    return f"TCGA-{site}-A{some_hash(patient)[:3].upper()}-01Z-00-DX1_{image % 4}_{image // 4}.png"


def trap(site: int, _: str, image: int) -> str:
    at = number(site, image) % 86_400
    day = f"2021-05-{number(image, site) % 28 + 1:02}"
    return f"site{site:02}_{day}_{at // 3600:02}-{at // 60 % 60:02}-{at % 60:02}.jpg"


def burst(group: int, _: str, image: int) -> str:
    at = number(group) % 86_400
    return f"202105{1 + group:02}_{at // 3600:02}{at // 60 % 60:02}{at % 60:02}_BURST{image:03}.jpg"


def two_hospitals() -> Rows:
    """As Kaggle's chest X-rays: each class was named by other people."""
    generator, rows = random.Random(1), []
    for person in range(1, 25):
        for image in range(generator.randint(2, 5)):
            kind = generator.choice(("bacteria", "virus"))
            rows.append((f"PNEUMONIA/person{person}_{kind}_{person * 4 + image}.jpeg", f"p{person}"))
        for image in range(generator.randint(1, 3)):
            old = "NORMAL2-" if person % 2 else ""
            rows.append((f"NORMAL/{old}IM-{person * 13:04}-{image + 1:04}.jpeg", f"n{person}"))
    return rows


def by_name(template: str, **options: int) -> Callable[[], Rows]:
    """g: the number of the group, i: that of the image, c: its class, G and I: letters in their place."""

    def name(group: int, label: str, image: int) -> str:
        letters = string.ascii_uppercase
        return template.format(
            g=group, i=image, c=label, G=letters[group - 1], I=letters[image], r=number(group, image)
        )

    return lambda: of_groups(name, **options)


FLOWERS = (
    "rose", "tulip", "lily", "daisy", "iris", "poppy", "orchid", "aster", "violet", "lotus", "dahlia", "peony",
    "clover", "fern", "moss", "ivy", "reed",
)  # fmt: skip
PEOPLE = (
    "George_W_Bush", "Ann_Veneman", "Colin_Powell", "Tiger_Woods", "Juan_Pablo_Montoya", "Serena_Williams", "Al_Gore",
    "Jean_Chretien", "Hugo_Chavez", "Vicente_Fox", "Laura_Bush", "Lula", "Jennifer_Capriati", "Luiz_Inacio_da_Silva",
)  # fmt: skip

GROUPED: dict[str, Callable[[], Rows]] = {
    "medical slices": by_name("p{g:03}_{i:02}.jpg"),
    "studies of patients": by_name("patient{g:05}_study{i:01}_view1_frontal.jpg"),
    "follow-ups": by_name("{g:08}_{i:03}.png"),
    "frames of films": by_name("video{G}_frame{r:05}.png"),
    "clips of films": lambda: of_groups(lambda g, _, i: f"video_{g:02}_clip_{i // 4}_{25 * (i % 4):06}.jpg", most=14),
    "actions (UCF)": actions,
    "faces (Yale)": expressions,
    "faces (ORL)": lambda: grid("s{}_{}.png", 20, range(1, 11)),
    "celebrities (LFW)": celebrities,
    "turntable (COIL-100)": lambda: grid("obj{}__{}.png", 20, range(0, 360, 45)),
    "pedestrians (Market)": lambda: of_groups(
        lambda g, _, i: f"{3 * g:04}_c{1 + i % 3}s1_{number(g, i):06}_{i % 4:02}.jpg"
    ),
    "augmented": lambda: with_suffixes(lambda i: f"img_{13 * i:05}", ("", "_aug1", "_aug2", "_aug3"), lambda i: 4, 60),
    "augmented, by name": lambda: with_suffixes(
        lambda i: f"IMG_{2031 + i}", ("", "_rot90", "_flip", "_blur"), lambda i: 1 + i % 4, 40
    ),
    "augmented, beside the original": lambda: with_suffixes(
        lambda i: f"photo_{i}", ("_orig", "_aug_0", "_aug_1"), lambda i: 3, 30
    ),
    "augmented, the kind before the name": lambda: [
        (f"{CLASSES[i % 2]}/{kind}IMG_{1000 + i}.jpg", f"{i}") for i in range(40) for kind in ("", "flip_", "rot_")
    ],
    "copies of Windows": lambda: [
        (f"{CLASSES[i % 2]}/photo{i}{added}.jpg", f"{i}")
        for i in range(60)
        for added in ("", " - Copy", " - Copy (2)")[: 1 if i % 3 else 3]
    ],
    "copies of a cloud": lambda: [
        (f"{CLASSES[i % 2]}/{added}photo{i}.jpg", f"{i}")
        for i in range(60)
        for added in ("", "Copy of ")[: 1 if i % 3 else 2]
    ],
    "the animal last, numbered before": lambda: of_groups(lambda g, _, i: f"aug{i}_IMG_{1000 + g}.jpg", groups=40),
    "roboflow": roboflow,
    "roboflow, of many sources": roboflow_of_many_sources,
    "leaves of plants": by_name("leaf{g}_view{i}.jpg", least=3, most=4),
    "tiles of scenes": lambda: grid("scene{}_{}_{}.tif", 12, range(0, 1536, 512), range(0, 1536, 512)),
    "tiles of slides, the slide last": lambda: of_groups(
        lambda g, _, i: f"tile_x{i % 4}_y{i // 4}_slide{g:02}.png", least=6, most=12
    ),
    "patches (IDC)": lambda: of_groups(histology, least=5, most=12),
    "slides (BreakHis)": lambda: of_groups(breast, least=8, most=16),
    "slides (TCGA)": lambda: of_groups(barcode, least=6, most=12),
    "left and right eyes": lambda: [
        (f"{CLASSES[i % 2]}/{10 + 3 * i}_{side}.jpeg", f"{i}") for i in range(40) for side in ("left", "right")
    ],
    "camera traps": lambda: of_groups(trap),
    "camera traps (Serengeti)": lambda: [
        (f"{CLASSES[site % 2]}/S{season}_B{site:02}_R1_PICT{shot + 10 * season:04}.JPG", f"{site}")
        for season in (1, 2)
        for site in range(1, 13)
        for shot in range(1, 6)
    ],
    "bursts": lambda: of_groups(burst),
    "downloaded twice": lambda: with_suffixes(
        lambda i: f"{some_hash(i)[:6]}-photo", ("", " (1)", " (2)"), lambda i: 1 + i % 3, 60
    ),
    "copies of a Mac": lambda: with_suffixes(
        lambda i: FLOWERS[i], ("", " copy", " copy 2"), lambda i: 1 + i % 3, len(FLOWERS)
    ),
    "edited photographs": lambda: with_suffixes(
        lambda i: f"IMG_{2031 + 3 * i}", ("", "-2", "-3"), lambda i: 1 + i % 3, 50
    ),
    "few edited photographs": lambda: with_suffixes(
        lambda i: f"IMG_{2031 + i}", ("", "-EDIT"), lambda i: 1 + (i % 5 == 0), 80
    ),
    "patient and slice without a sign": by_name("P{g}S{i}.bmp"),
    "frame before film": by_name("frame{i:04}_video{g:02}.jpg", least=4, most=12),
    "crops of hashes": lambda: of_groups(lambda g, _, i: f"{some_hash(g)[:12]}_crop{i}.png", groups=30, most=4),
    "trials of subjects": lambda: [
        (f"{CLASSES[person % 2]}/trial{trial}_subject{person:02}_{take}.jpg", f"{person}")
        for trial in (1, 2, 3)
        for person in range(1, 13)
        for take in range(3)
    ],
    "folders": by_name("case {g}/{i:04}.png"),
    "cows": lambda: of_groups(lambda g, _, i: f"cow-{g:03}-{'LR'[i % 2]}-2022{1 + i // 4:02}{10 + i:02}.JPG"),
    "two hospitals": two_hospitals,
    "words and spaces": by_name("Patient {g} - Slice {i}.jpg"),
    "letters after numbers": by_name("fish{g:02}{I}.jpg"),
    "wells of plates": by_name("plate{g:02}_{I}{i:02}_s1_w1.tif"),
    "other scripts": by_name("患者{g}_{i}.png"),
    "the class in the middle": by_name("{g:03}_{c}_{i}.png"),
    "traffic signs (GTSRB)": by_name("{g:05}_{i:05}.ppm", least=6, most=12),
}
"""Groups as their public sets have them, half of the groups in each class."""


def by_time(template: str) -> Callable[[], Rows]:
    return lambda: alone(lambda i, _: template.format(*moment(i), number(i) % 1000, "_HDR" if i % 3 == 0 else ""))


def alone_as(template: str, **options: int) -> Callable[[], Rows]:
    """i: the number of the image, c: its class, r: any number, h: a hash."""
    return lambda: alone(lambda i, c: template.format(i=i, c=c, r=number(i), h=some_hash(i)), **options)


def breeds(i: int, label: str) -> str:
    cats, dogs = "Abyssinian Bengal Birman Bombay Persian Sphynx", "beagle boxer pug samoyed shiba husky"
    return f"{(cats if label == 'cat' else dogs).split()[i % 6]}_{i // 6 + 1}.jpg"


UNGROUPED: dict[str, Callable[[], Rows]] = {
    "running numbers": alone_as("{i:05}.png"),
    "a counter of a camera": alone_as("IMG_{i:04}.jpg"),
    "counters of three cameras": lambda: alone(lambda i, _: f"{('IMG_', 'DSC0', 'P100')[i % 3]}{1 + 3 * i:04}.JPG"),
    "a counter for each class": lambda: [(f"{c}/{i}.jpg", None) for c in TREES for i in range(40)],
    "a counter with a word for each class": lambda: [(f"{c}/img_{i:04}.jpg", None) for c in TREES for i in range(40)],
    "class and number (Kaggle)": lambda: alone(lambda i, c: f"{c}.{i}.jpg", classes=("cat", "dog")),
    "class and number": lambda: alone(lambda i, c: f"{c}_{i:04}.jpg", classes=TREES),
    "renamed by Windows": lambda: alone(lambda i, c: f"{c} ({i}).jpg", classes=TREES),
    "the number of the class first": lambda: alone(
        lambda i, c: f"{TREES.index(c)}_{some_hash(i)[:8]}.jpg", classes=TREES
    ),
    "the number of the class last": lambda: alone(lambda i, c: f"sample_{i:04}_class{CLASSES.index(c)}.png"),
    "synsets (ImageNet)": lambda: alone(lambda i, c: f"{c}_{number(i)}.JPEG", classes=("n01440764", "n02102040")),
    "validation images (ImageNet)": alone_as("ILSVRC2012_val_{r:08}.JPEG"),
    "year and number (VOC)": lambda: alone(lambda i, _: f"{2007 + i % 6}_{number(i):06}.jpg"),
    "hashes": alone_as("{h}.jpg"),
    "short hashes": alone_as("{h:.5}.jpg"),
    "hashes in two parts": alone_as("{h:.2}_{h:.9}.jpg"),
    "UUIDs": lambda: alone(lambda i, _: f"{uuid.UUID(some_hash(i))}.png"),
    "flickr": alone_as("{r}7003_{h:.10}.jpg"),
    "seconds since 1970": alone_as("16{r:05}977.jpg"),
    "moments of a phone": by_time("IMG_{0}{1}{2}_{3}{4}{5}.jpg"),
    "moments, some with a remark": by_time("IMG_{0}{1}{2}_{3}{4}{5}{7}.jpg"),
    "moments with milliseconds": by_time("PXL_{0}{1}{2}_{3}{4}{5}{6:03}.jpg"),
    "moments with dashes": by_time("{0}-{1}-{2} {3}.{4}.{5}.png"),
    "moments, the day first": by_time("{2}-{1}-{0} {3}{4}{5}.jpg"),
    "screenshots": by_time("Screenshot {0}-{1}-{2} at {3}.{4}.{5}.png"),
    "day and counter": lambda: alone(lambda i, _: f"{''.join(moment(i)[:3])}-IMG_{i + 1000}.jpg"),
    "messages": lambda: alone(lambda i, _: f"IMG-{''.join(moment(i)[:3])}-WA{number(i) % 60:04}.jpg"),
    "one augmentation of each": lambda: alone(lambda i, _: f"img{i:03}_{('flip', 'rot90', 'blur')[i % 3]}.jpg"),
    "one mask of each": alone_as("ISIC_{i:07}_segmented.png"),
    "one of so many": alone_as("image-{i:04}-of-0090.jpg"),
    "sizes": lambda: alone(lambda i, _: f"photo-{1500000 + 991 * i}-{('640x480', '1024x768', '800x600')[i % 3]}.jpg"),
    "exported digits": lambda: alone(lambda i, c: f"{c}_{i:05}.png", classes=tuple("0123456789"), count=120),
    "words of a shop": lambda: alone(
        lambda i, _: (
            f"{('red', 'old', 'big', 'blue', 'tiny')[i % 5]}-{('car', 'tree', 'dog')[i % 3]}-{some_hash(i)[:7]}.jpg"
        )
    ),
    "ages and moments (UTKFace)": lambda: alone(
        lambda i, _: f"{1 + number(i) % 80}_{i % 2}_{number(i, 1) % 5}_{''.join(moment(i))}{number(i) % 1000:03}.jpg"
    ),
    "breeds": lambda: alone(breeds, classes=("cat", "dog")),
    "out of the web": lambda: alone(
        lambda i, _: ("images ({i}).jpg", "{h:.9}.jpg", "dog-run-{i}.jpg", "Labrador_{i}.jpg")[i % 4].format(
            i=i, h=some_hash(i)
        )
    ),
    "month and hash": lambda: alone(lambda i, _: f"{''.join(moment(i)[:2])}_{some_hash(i)[:6]}.jpg"),
    "photographers": lambda: alone(
        lambda i, _: f"{('anna', 'bob', 'eve')[number(i) % 3]}-{('lee', 'ray')[i % 2]}-{some_hash(i)[:11]}-unsplash.jpg"
    ),
    "shops": alone_as("B0{h:.8}.jpg"),
    "places": alone_as("48.{r:05}_11.{h:.5}.jpg"),
}
