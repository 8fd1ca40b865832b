"""Reading of a prompt's images: one function for every form in which data sets and worlds hold images."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lightning_cgrpo.core.paths import expand_path

CHANNELS = (1, 2, 3, 4)
"""Numbers of a pixel: gray, gray and alpha, RGB, RGB and alpha."""
DATA = "data:image/"
"""Start of a text that holds the image itself, in base64."""
SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
DIRECT = ("RGB", "RGBX", "L", "1", "P", "CMYK", "YCbCr", "HSV")
"""Modes of PIL without alpha whose conversion to RGB keeps the picture."""
WITH_ALPHA = {"RGBA": "RGBA", "LA": "LA", "PA": "PA", "RGBa": "RGBA", "La": "LA"}
"""Modes of PIL with alpha, and the mode by way of which PIL converts them."""


class ImageError(ValueError):
    """An image can't be read, or its values have no certain meaning."""


def read_image(image: Any, folder: str | Path | None = None) -> Image.Image:
    """Read an image as RGB bytes, upright, over white where it is transparent.

    ====================================== ========================================================================
    PIL image                              turned by its EXIF orientation; 16-bit modes are scaled to bytes
    array or tensor                        ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``, with 1 to 4 channels
    ``uint8``, ``bool``                    bytes; black and white
    ``uint16``                             0 to 65,535
    other integers, PIL mode ``I``         0 to 255
    floats, PIL mode ``F``                 0 to 1, else 0 to 255
    bytes                                  the content of an image file
    ``{"bytes": …, "path": …}``            an image in Parquet, as the library datasets writes it
    text ``data:image/…;base64,…``         the content of an image file
    path                                   a file in `folder`
    ====================================== ========================================================================

    Args:
        image: in a form of the table.
        folder: of image files that prompts may name; None for no files at all.

    Raises:
        ImageError: the image has another form, values outside its range, or is a path outside `folder`, or a URL.
    """
    if isinstance(image, Mapping):
        content = image.get("bytes")
        image = image.get("path") if content is None else content
    if isinstance(image, (str, Path)):
        image = _file_content(str(image), folder)
    if isinstance(image, (bytes, bytearray, memoryview)):
        image = _decoded_file(bytes(image))
    if isinstance(image, torch.Tensor):
        image = _array_of(image)
    if isinstance(image, np.ndarray):
        image = _from_array(image)
    if not isinstance(image, Image.Image):
        raise ImageError(f"an image is a PIL image, an array or the bytes of a file, not {type(image).__name__}")
    return _as_rgb(image)


def _file_content(name: str, folder: str | Path | None) -> bytes:
    """The content of a file in the folder, or of a data URL."""
    if name.startswith(DATA):
        try:
            return base64.b64decode(name.partition(",")[2], validate=True)
        except ValueError as error:
            raise ImageError(f"'{name[:40]}…' is not in base64 ({error})") from None
    if "://" in name:
        raise ImageError(f"'{name[:100]}' is a URL, and prompts name no URLs: download the image")
    if folder is None:
        raise ImageError(f"'{name[:100]}' is a path, and prompts name files only in the policy's image_folder: set it")
    root = expand_path(folder).resolve()
    path = (root / name).resolve()  # also through links
    if not path.is_relative_to(root):
        raise ImageError(f"'{name[:100]}' is outside of image_folder, {root}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImageError(f"'{path}' can't be read ({error.strerror})") from None


def _decoded_file(content: bytes) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(content))
        image.load()
    except Exception as error:  # PIL raises many kinds, also SyntaxError
        raise ImageError(f"{len(content)} bytes are no image file that PIL reads ({error})") from None
    return image


def _array_of(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu().to_dense()
    if tensor.dtype == torch.bfloat16:  # NumPy has no such dtype
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def _from_array(array: NDArray[Any]) -> Image.Image:
    if array.ndim == 3:
        array = _channels_last(array)
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in CHANNELS)
    if not is_image or not array.size:
        raise ImageError(f"an array of an image is [H, W], [H, W, C] or [C, H, W], not {list(array.shape)}")
    pixels = np.ascontiguousarray(_as_bytes(array))
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    return Image.fromarray(pixels)


def _channels_last(array: NDArray[Any]) -> NDArray[Any]:
    may_be_first = array.shape[0] in CHANNELS
    may_be_last = array.shape[-1] in CHANNELS
    # [3, W, 3] is an image of three rows, because [H, W, 3] is the usual form.
    if may_be_first and may_be_last and array.shape[-1] != 3:
        raise ImageError(f"an array {list(array.shape)} may have its channels first or last: give a PIL image")
    if may_be_first and not may_be_last:
        return np.moveaxis(array, 0, -1)
    return array


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Values of a dtype as 0 to 255, see `read_image`."""
    if isinstance(values, np.ma.MaskedArray):
        raise ImageError("a masked array has pixels without a value")
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype.kind not in "uif":
        raise ImageError(f"an array of an image has numbers, not {values.dtype}")
    least = values.min()
    most = values.max()
    if not (least >= 0 and most < np.inf):  # also for NaN
        raise ImageError(f"values of an image are finite and not negative, but they are {least:g} to {most:g}")
    if values.dtype.kind == "f":
        # Interpolation or noise leads slightly above 1, and the image would be black as one of 0 to 255.
        if most > 255 or 1 < most < 2:
            raise ImageError(f"floats of an image are 0 to 1, or 0 to 255, but they are {least:g} to {most:.8g}")
        scale = 255.0 if most <= 1 else 1.0
        scaled = np.rint(values.astype(np.float64) * scale)
    elif values.dtype.itemsize == 2 and values.dtype.kind == "u":
        if 0 < most <= 255:
            raise ImageError(f"uint16 of an image are 0 to 65535, but the largest is {most}: give uint8")
        scaled = _of_16_bit(values)
    else:
        if most > 255:
            raise ImageError(
                f"{values.dtype} of an image are 0 to 255, but the largest is {most}: give uint8 or uint16"
            )
        scaled = values
    return scaled.astype(np.uint8)


def _of_16_bit(values: NDArray[Any]) -> NDArray[Any]:
    return np.rint(values.astype(np.float64) / 257)  # 65535 = 257 * 255


def _as_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode, upright, as RGB over white."""
    if min(image.size) < 1:
        raise ImageError(f"an image has pixels, but this one is {image.size[0]} x {image.size[1]}")
    try:
        image = ImageOps.exif_transpose(image)
        return _over_white(image)
    except ImageError:
        raise
    except Exception as error:  # of a file that PIL reads only now
        raise ImageError(f"a PIL image of mode {image.mode} can't be read ({error})") from None


def _over_white(image: Image.Image) -> Image.Image:
    convert: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {"I": _as_bytes, "F": _as_bytes}
    convert |= dict.fromkeys(SIXTEEN_BIT, _of_16_bit)
    if image.mode in convert:
        pixels = convert[image.mode](np.asarray(image)).astype(np.uint8)
        return Image.fromarray(pixels).convert("RGB")
    if image.mode not in DIRECT and image.mode not in WITH_ALPHA:
        raise ImageError(f"mode {image.mode} of PIL has no certain colors: convert the image to RGB")
    if image.mode in DIRECT and image.info.get("transparency") is None:
        return image.convert("RGB")
    # Transparent pixels are white, as in transformers' image processors.
    image = image.convert(WITH_ALPHA.get(image.mode, image.mode)).convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")
