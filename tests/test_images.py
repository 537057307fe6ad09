"""Images: four layouts, every mode, damaged files, and the transform against its slow equal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mini_fashioniq import ALL_IDS, write_annotations, write_images
from PIL import Image, PngImagePlugin

from cirkit.data import load_fashioniq
from cirkit.data.annotations import DataError
from cirkit.data.images import ImageFolder, decoding_error, open_rgb
from cirkit.data.preprocess import Preprocess

SIX = ["0123", "b", "c.d", "e", "f", "g"]
PATTERNS = {
    "images/{image}.jpg": "JPEG",
    "images/{image}.png": "PNG",
    "resized_image/dress/{image}.jpg": "JPEG",
    "image_data/shirt/{image}.jpg": "JPEG",
    "images/{image}.JPG": "JPEG",
    "image_data/t-shirt/{image}.jpeg": "JPEG",
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_all_layouts_are_found(tmp_path, pattern):
    folder = ImageFolder(write_images(tmp_path, pattern, SIX, kind=PATTERNS[pattern]))
    assert len(folder) == 6
    assert folder.path("0123") == tmp_path / pattern.format(image="0123")
    assert folder.path("c.d").is_file()
    assert "123" not in folder and "c" not in folder
    assert folder.missing(["x", "b", "a", "x"]) == ["a", "x"]
    assert folder.load("b").size == (17, 13)
    assert folder.check(SIX, progress=False).complete


@pytest.mark.parametrize(("extension", "kind"), [("jpg", "PNG"), ("png", "JPEG"), ("jpeg", "WEBP")])
def test_extension_does_not_choose_the_decoder(tmp_path, extension, kind):
    folder = ImageFolder(write_images(tmp_path, f"images/{{image}}.{extension}", SIX, kind=kind))
    assert folder.check(SIX, progress=False).complete
    assert folder.load("e").mode == "RGB"


def test_first_of_several_files_is_taken(tmp_path):
    for pattern in ("image_data/a/{image}.jpg", "resized_image/b/{image}.png", "resized_image/a/{image}.png"):
        write_images(tmp_path, pattern, ["x"])
        assert ImageFolder(tmp_path).path("x") == tmp_path / pattern.format(image="x")
    write_images(tmp_path, "images/{image}.png", ["x"])
    write_images(tmp_path, "images/{image}.jpg", ["x"])
    assert ImageFolder(tmp_path).path("x") == tmp_path / "images" / "x.jpg"


def test_missing_images_name_what_was_tried(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no image at all") as error:
        ImageFolder(tmp_path).path("b")
    for layout in (
        "images/<id>.jpg",
        "images/<id>.png",
        "resized_image/<category>/<id>.jpg",
        "image_data/<category>/",
    ):
        assert layout in str(error.value)
    write_images(tmp_path, ids=SIX)
    with pytest.raises(DataError, match="image b2 is missing: looked for .* which has 6 images"):
        ImageFolder(tmp_path).load("b2")
    with pytest.raises(DataError, match="give its parent folder instead"):
        ImageFolder(tmp_path / "images").path("b")


def partial(tmp_path: Path) -> ImageFolder:
    """All images of the mini data set but d6 (a target), d7 (a reference), d8 (neither); s3 is cut off."""
    write_images(write_annotations(tmp_path))
    for image in ("d6", "d7", "d8"):
        (tmp_path / "images" / f"{image}.png").unlink()
    content = (tmp_path / "images" / "s3.png").read_bytes()
    (tmp_path / "images" / "s3.png").write_bytes(content[: len(content) // 2])
    return ImageFolder(tmp_path)


def test_missing_and_broken_images_stop_the_work(tmp_path):
    folder = partial(tmp_path)
    val = load_fashioniq(tmp_path, "val")
    with pytest.raises(DataError, match=r"3 of 8 images are missing \(d6, d7, d8\) \[dress val 3/5\]; looked for"):
        folder.check(val.image_groups(), progress=False)
    with pytest.raises(DataError, match=r"^1 of 1 images are broken \(s3\); .*s3.png is not a usable image .*trunc"):
        folder.check(["s3"], progress=False)
    there = [image for image in ALL_IDS if image[0] in "s0"]
    with pytest.raises(DataError, match=r"^2 of 9 images are missing \(n0, n1\); looked for"):
        folder.check(["n0", "n1", *there], progress=False)


def test_opt_in_goes_on_and_marks_the_result(tmp_path):
    folder = partial(tmp_path)
    val = load_fashioniq(tmp_path, "val")
    report = folder.check(val.image_groups(), allow_missing=True, progress=False)
    assert (report.n, report.missing, report.broken) == (8, ("d6", "d7", "d8"), ("s3",))
    assert report.groups == {"dress val": (5, 3, 0), "t.shirt val": (3, 0, 1)}
    assert not report.complete and list(report.reasons) == ["s3"]
    kept = val.without_images(report.unusable)
    assert kept.references == ("s4",)
    assert kept.galleries == {"dress": ("d5", "d9"), "t.shirt": ("s4", "s1")}
    assert kept.protocol() | {"gallery_sizes": {"dress": 2, "t.shirt": 2}, "comparable": False} == kept.protocol()
    assert (kept.dropped_queries, kept.dropped_images) == (3, 4)
    assert folder.check(kept.image_groups(), progress=False).complete


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_every_cut_through_the_pixels_is_found(tmp_path, kind):
    pixels = np.random.default_rng(0).integers(0, 256, (11, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    content = buffer.getvalue()
    # PNG ends with the checksums of its pixel data and an empty chunk; without those all pixels are there.
    last = len(content) - {"PNG": 20, "JPEG": 0, "WEBP": 0}[kind]
    path = tmp_path / "image.jpg"
    for length in range(last):
        path.write_bytes(content[:length])
        assert str(path) in (decoding_error(path) or ""), length
        with pytest.raises(DataError, match="is not a usable image"):
            open_rgb(path)
    path.write_bytes(content)
    assert decoding_error(path) is None


def save(tmp_path: Path, image: Image.Image, name: str = "image.png", **options) -> Path:
    image.save(tmp_path / name, **options)
    return tmp_path / name


MODES = {
    # name: (image, saving options, expected pixel)
    "RGB": (Image.new("RGB", (3, 5), (10, 20, 30)), {}, (10, 20, 30)),
    "RGBA opaque": (Image.new("RGBA", (3, 5), (10, 20, 30, 255)), {}, (10, 20, 30)),
    "RGBA transparent": (Image.new("RGBA", (3, 5), (255, 0, 0, 0)), {}, (255, 255, 255)),
    "RGBA half": (Image.new("RGBA", (3, 5), (255, 0, 0, 128)), {}, (255, 127, 127)),
    "P": (Image.new("RGB", (3, 5), (10, 20, 30)).quantize(4), {}, (10, 20, 30)),
    "P transparent": (
        Image.new("RGB", (3, 5), (255, 0, 0)).quantize(4),
        {"transparency": 0},
        (255, 255, 255),
    ),
    "RGB transparent": (Image.new("RGB", (3, 5), (9, 9, 9)), {"transparency": (9, 9, 9)}, (255, 255, 255)),
    "L": (Image.new("L", (3, 5), 77), {}, (77, 77, 77)),
    "L transparent": (Image.new("L", (3, 5), 77), {"transparency": 77}, (255, 255, 255)),
    "LA": (Image.new("LA", (3, 5), (0, 51)), {}, (204, 204, 204)),
    "1": (Image.new("1", (3, 5), 1), {}, (255, 255, 255)),
    "I;16": (Image.fromarray(np.full((5, 3), 40_000, np.uint16)), {}, (156, 156, 156)),
    "I;16 full": (Image.fromarray(np.full((5, 3), 65_535, np.uint16)), {}, (255, 255, 255)),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(tmp_path, mode):
    image, options, expected = MODES[mode]
    opened = open_rgb(save(tmp_path, image, **options))
    assert (opened.mode, opened.size) == ("RGB", (3, 5))
    assert {pixel for _, pixel in opened.getcolors()} == {expected}
    assert Preprocess(size=4)(opened).shape == (3, 4, 4)


def test_cmyk_and_animations(tmp_path):
    white = open_rgb(save(tmp_path, Image.new("CMYK", (3, 5), (0, 0, 0, 0)), "image.jpg"))
    assert white.getpixel((1, 1)) == (255, 255, 255) and Preprocess(size=4)(white).shape == (3, 4, 4)
    frames = [Image.new("RGB", (3, 5), colour) for colour in ("red", "blue")]
    moving = save(tmp_path, frames[0], "image.gif", save_all=True, append_images=frames[1:])
    assert open_rgb(moving).getpixel((1, 1)) == (255, 0, 0)


@pytest.mark.parametrize(("array", "mode"), [(np.float32, "F"), (np.int32, "I")])
def test_pixels_without_a_range_are_refused(tmp_path, array, mode):
    path = save(tmp_path, Image.fromarray(np.ones((5, 3), array)), "image.tiff")
    with pytest.raises(DataError, match=rf"image.tiff is not a usable image \(pixels of mode {mode} have no known"):
        open_rgb(path)
    assert "no known range" in decoding_error(path)


def test_exif_orientation_is_applied(tmp_path):
    image = Image.new("RGB", (16, 32), "black")
    image.paste("white", (0, 0, 16, 16))
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying down: to be turned by 90 degrees clockwise
    opened = open_rgb(save(tmp_path, image, "image.jpg", exif=exif, quality=95))
    assert opened.size == (32, 16)
    assert opened.getpixel((4, 8))[0] < 20 and opened.getpixel((28, 8))[0] > 235


def test_missing_file_and_decompression_bomb_are_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="none.png does not exist"):
        open_rgb(tmp_path / "none.png")
    path = save(tmp_path, Image.new("L", (60, 60)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DataError, match="image.png is not a usable image"):
        open_rgb(path)


def test_a_side_that_padding_would_make_huge_is_refused(tmp_path):
    path = save(tmp_path, Image.new("1", (2, 15_001)))
    for refused in (lambda: open_rgb(path), lambda: Preprocess()(open_rgb(path))):
        with pytest.raises(
            DataError, match=r"image.png is not a usable image \(2 x 15,001 pixels; a side has 15,000 at"
        ):
            refused()
    assert "15,001" in decoding_error(path)
    assert Preprocess(size=8)(open_rgb(save(tmp_path, Image.new("1", (2, 900))))).shape == (3, 8, 8)


IN_ITS_PLACE = {
    "empty": (b"", "it is empty"),
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
        "a git-lfs pointer; run `git lfs pull`",
    ),
    "page": (b"\n<!DOCTYPE html><html><body>404</body></html>", "a web page or XML; download the image itself"),
    "vector": (b"<?xml version='1.0'?><svg/>", "a web page or XML"),
}


@pytest.mark.parametrize("case", IN_ITS_PLACE)
def test_what_lies_in_an_images_place_is_told(tmp_path, case):
    content, told = IN_ITS_PLACE[case]
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^\S+a.jpg is not a usable image \({told}.*\)\.$") as error:
        open_rgb(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "damage", [b"Exif\x00\x00", b"Exif\x00\x00II*\x00\xff\xff\xff\xff", b"Exif\x00\x00XX" + b"\xff" * 40]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_damaged_note_of_the_camera_costs_no_picture(tmp_path, damage, kind):
    image = Image.new("RGB", (16, 8), (200, 30, 40))
    path = save(tmp_path, image, "a.jpg", format=kind, exif=damage)
    assert open_rgb(path).size == (16, 8) and decoding_error(path) is None
    assert abs(open_rgb(path).getpixel((3, 3))[0] - 200) < 8


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_preprocess_normalises_and_crops_the_centre():
    image = Image.new("RGB", (40, 40), (255, 0, 51))
    tensor = Preprocess(size=8, mean=(0.5, 0.25, 0.2), std=(0.5, 0.25, 0.1))(image)
    assert tensor.dtype == torch.float32 and tensor.is_contiguous()
    torch.testing.assert_close(tensor, torch.tensor([1.0, -1.0, 0.0])[:, None, None].expand(3, 8, 8))
    stripes = Image.new("RGB", (30, 10), "black")
    stripes.paste("white", (10, 0, 20, 10))
    assert Preprocess(10, None, (0, 0, 0), (1, 1, 1))(stripes).min() == 1.0


def test_target_pad_keeps_the_ends_of_tall_images():
    tall = Image.new("RGB", (100, 250), "white")
    plain, padded = (Preprocess(50, ratio, (0, 0, 0), (1, 1, 1))(tall) for ratio in (None, 1.25))
    assert plain.min() == 1.0
    # 250 / 1.25 = 200 wide: bars of 50 on 100, so a quarter of the width on either side is black.
    assert padded[:, :, :12].max() == 0.0 and padded[:, :, -12:].max() == 0.0
    assert padded[:, :, 13:37].min() == 1.0
    # An image that is long enough by less than the ratio is left alone.
    almost = noise(100, 124)
    torch.testing.assert_close(Preprocess(20)(almost), Preprocess(20, None)(almost), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(23, 61), (61, 23), (64, 64), (64, 70), (100, 125), (7, 5), (1, 40), (224, 300)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "lanczos"])
def test_preprocess_equals_torchvision(size, interpolation):
    transforms = pytest.importorskip("torchvision.transforms")
    image, (width, height) = noise(*size), size
    preprocess = Preprocess(size=32, pad_ratio=1.25, interpolation=interpolation)
    if max(size) / min(size) >= 1.25:
        side = max(size) / 1.25
        bars = [max(int((side - width) / 2), 0), max(int((side - height) / 2), 0)]
        image = transforms.functional.pad(image, bars, 0)
    slow = transforms.Compose(
        [
            transforms.Resize(32, transforms.InterpolationMode(interpolation)),
            transforms.CenterCrop(32),
            transforms.ToTensor(),
            transforms.Normalize(preprocess.mean, preprocess.std),
        ]
    )
    torch.testing.assert_close(preprocess(noise(*size)), slow(image), rtol=0, atol=1e-6)


def test_fingerprint_changes_with_every_field():
    base = Preprocess()
    changed = [
        replace(base, size=225),
        replace(base, pad_ratio=None),
        replace(base, pad_ratio=1.3),
        replace(base, mean=(0.5, 0.5, 0.5)),
        replace(base, std=(0.5, 0.5, 0.5)),
        replace(base, interpolation="bilinear"),
    ]
    assert len({preprocess.fingerprint() for preprocess in (base, *changed)}) == 7
    assert Preprocess(mean=list(base.mean)).fingerprint() == base.fingerprint()
    assert Preprocess(pad_ratio=0).fingerprint() == Preprocess(pad_ratio=None).fingerprint()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "size must be a positive whole number"),
        ({"size": 2.5}, "size must be a positive whole number"),
        ({"pad_ratio": 0.8}, "pad_ratio must be at least 1"),
        ({"pad_ratio": float("nan")}, "pad_ratio must be at least 1"),
        ({"mean": (0.5, 0.5)}, "mean needs three finite numbers"),
        ({"std": (0.5, 0.5, 0.0)}, "std must be positive"),
        ({"std": (0.5, 0.5, float("nan"))}, "std needs three finite numbers"),
        ({"interpolation": "area"}, "interpolation 'area' is none of"),
    ],
)
def test_bad_transforms_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Preprocess(**fields)


def test_transform_takes_rgb_only():
    with pytest.raises(ValueError, match="takes RGB images, got mode L"):
        Preprocess()(Image.new("L", (4, 4)))


def test_text_chunks_do_not_disturb(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "x" * 1000)
    assert open_rgb(save(tmp_path, noise(4, 6), pnginfo=info)).size == (4, 6)
