"""Every form of an image that PIL, numpy and torch can hold gives the right bytes, or is refused."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from lightning_cgrpo.policies.images import ImageError, read_image

GRAY = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
GRAY[0, :2] = 0, 255
PIXELS = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)
PIXELS[0, :2] = [[0, 0, 0], [255, 255, 255]]
RGB = Image.fromarray(PIXELS)
OF_GRAY = np.repeat(GRAY[..., None], 3, -1)
ALPHA = RGB.copy()
ALPHA.putalpha(Image.fromarray(GRAY))
OVER_WHITE = np.rint(PIXELS * (GRAY[..., None] / 255) + 255 * (1 - GRAY[..., None] / 255))
HALF = np.where(GRAY > 127, 255, 0).astype(np.uint8)


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(RGB, exif=exif)


def of_mode(mode):
    """An image of a mode, and its right pixels; None if it must be refused."""
    if mode.startswith("I;16"):
        wide = GRAY.astype(">u2" if mode == "I;16B" else "<u2") * 257
        return Image.frombytes(mode, (30, 20), wide.tobytes()), OF_GRAY
    if mode in ("I", "F"):
        return Image.fromarray(GRAY).convert(mode), OF_GRAY
    if mode in ("L", "LA", "La"):
        image = Image.fromarray(GRAY)
        return (image.convert("LA").convert("La") if mode == "La" else image.convert(mode)), OF_GRAY
    if mode == "1":
        return Image.fromarray(HALF).convert("1"), np.repeat(HALF[..., None], 3, -1)
    if mode in ("RGBA", "RGBa"):
        return ALPHA.convert(mode), OVER_WHITE
    if mode == "LAB":
        return Image.new("LAB", (30, 20)), None
    if mode == "PA":
        return RGB.quantize().convert("PA"), np.asarray(RGB.quantize().convert("RGB"))
    image = RGB.quantize() if mode == "P" else RGB.convert(mode)
    return image, np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("mode", Image.MODES)
def test_every_mode_of_pil(mode):
    image, expected = of_mode(mode)
    assert image.mode == mode
    if expected is None:
        with pytest.raises(ImageError, match=mode):
            read_image(image)
        return
    found = np.asarray(read_image(image))
    # Premultiplied colors are rounded where pixels are almost transparent.
    np.testing.assert_allclose(found, expected, atol=2 if mode in ("RGBa", "RGBA") else 0)


ARRAYS = {
    "HWC": (PIXELS, PIXELS),
    "CHW": (PIXELS.transpose(2, 0, 1), PIXELS),
    "three rows": (PIXELS[:3], PIXELS[:3]),
    "HW": (GRAY, OF_GRAY),
    "HW1": (GRAY[..., None], OF_GRAY),
    "HW2": (np.stack([GRAY, np.full_like(GRAY, 255)], -1), OF_GRAY),
    "HW4": (np.asarray(ALPHA), OVER_WHITE),
    "not contiguous": (PIXELS[::-1, ::2], PIXELS[::-1, ::2]),
    "bool": (GRAY > 127, np.repeat(HALF[..., None], 3, -1)),
    **{f"0 to 1, {kind}": ((PIXELS / 255).astype(kind), PIXELS) for kind in ("float16", "float32", "float64")},
    **{f"0 to 255, {kind}": (PIXELS.astype(kind), PIXELS) for kind in ("float16", "float32", "float64")},
    "0 to 2 of 255, floats": (np.minimum(PIXELS, 2).astype(float), np.minimum(PIXELS, 2)),
    **{kind: (PIXELS.astype(kind), PIXELS) for kind in ("int16", "int32", "uint32", "int64", "uint64")},
    "uint16": (np.minimum(PIXELS * np.uint16(257), 65_435) + 100, PIXELS),  # whose low bytes are others
    "big endian": ((PIXELS.astype(np.uint16) * 257).astype(">u2"), PIXELS),
    "black": (np.zeros((4, 5), np.uint16), np.zeros((4, 5, 3))),
}
REFUSED = {
    "uint16 with bytes": PIXELS.astype(np.uint16),
    "int8": PIXELS.astype(np.int8),
    "negative": PIXELS / 127.5 - 1,
    "above 255": PIXELS * 257.0,
    "wide": PIXELS.astype(np.int64) * 257,
    "NaN": np.full((4, 4), np.nan),
    "infinite": np.full((4, 4), np.inf),
    "complex": PIXELS.astype(complex),
    "objects": PIXELS.astype(object),
    "masked": np.ma.masked_array(GRAY, GRAY > 5),
    "empty": np.zeros((0, 4), np.uint8),
    "a row": GRAY[0],
    "a batch": PIXELS[None],
    "five channels": np.zeros((6, 6, 5), np.uint8),
    "channels first or last": np.zeros((3, 20, 4), np.uint8),
    "normalized F": Image.fromarray((GRAY / 127.5 - 1).astype(np.float32)),
    "slightly above 1": PIXELS / 255 * 1.0001,
    "wide I": Image.fromarray(GRAY.astype(np.int32) * 257),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays(name, kind):
    array, expected = ARRAYS[name]
    given = array
    if kind == "torch":
        given = torch.from_numpy(np.array(array.astype(array.dtype.newbyteorder("="))))
    np.testing.assert_allclose(np.asarray(read_image(given)), expected, atol=1 if name == "HW4" else 0)


def test_a_tensor_of_bfloat16_with_gradient():
    given = torch.from_numpy(GRAY).to(torch.bfloat16).requires_grad_()
    np.testing.assert_array_equal(np.asarray(read_image(given))[..., 0], given.detach().float().numpy())


@pytest.mark.parametrize("name", REFUSED)
def test_values_without_a_certain_meaning_are_refused(name):
    with pytest.raises(ImageError):
        read_image(REFUSED[name])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_upright_however_it_comes(orientation, tmp_path):
    content = turned(orientation)
    (tmp_path / "a.png").write_bytes(content)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
    forms = (Image.open(io.BytesIO(content)), content, {"bytes": content, "path": None}, "a.png", tmp_path / "a.png")
    for form in forms:
        np.testing.assert_array_equal(np.asarray(read_image(form, tmp_path)), expected)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF", "WEBP"])
def test_contents_of_files(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    content = saved(RGB.quantize() if kind == "GIF" else RGB, kind, **options)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(content).decode()}"
    for form in (content, bytearray(content), memoryview(content), {"bytes": content}, url):
        np.testing.assert_array_equal(np.asarray(read_image(form)), expected)


def test_files_are_read_in_the_folder_alone(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for file in (folder / "a.png", tmp_path / "secret.png"):
        RGB.save(file)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    for name in ("a.png", str(folder / "a.png"), {"bytes": None, "path": "a.png"}):
        np.testing.assert_array_equal(np.asarray(read_image(name, folder)), PIXELS)
        with pytest.raises(ImageError, match="image_folder"):
            read_image(name)
    for name in ("../secret.png", str(tmp_path / "secret.png"), "link.png"):
        with pytest.raises(ImageError, match="outside of image_folder"):
            read_image(name, folder)
    for url in ("http://127.0.0.1:9/a.png", "https://example.org/a.png", f"file://{folder}/a.png", "s3://bucket/a.png"):
        with pytest.raises(ImageError, match="is a URL"):
            read_image(url, folder)
    with pytest.raises(ImageError, match="can't be read"):
        read_image("b.png", folder)


@pytest.mark.parametrize("form", [b"", b"no image", saved(RGB)[:200], "data:image/png;base64,???", None, 3, {}, [RGB]])
def test_other_things_are_refused(form):
    with pytest.raises(ImageError):
        read_image(form)
