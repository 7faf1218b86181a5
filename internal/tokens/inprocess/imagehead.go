package inprocess

import (
	"bytes"
	"encoding/binary"
)

// pngHead reads the size and colour type of a PNG from its first chunk (W3C PNG, 11.2.2), and the orientation from the
// chunk eXIf. Pillow, the image library of vLLM, decodes the colour type truecolour to RGB, and other colour types to
// other modes.
func pngHead(data []byte) (h head, ok bool) {
	if len(data) < 33 || string(data[12:16]) != "IHDR" {
		return h, false
	}
	h.width, h.height = int(binary.BigEndian.Uint32(data[16:])), int(binary.BigEndian.Uint32(data[20:]))
	h.converted = data[25] != 2
	for at := 33; at+12 <= len(data); {
		n := int(binary.BigEndian.Uint32(data[at:]))
		kind := string(data[at+4 : at+8])
		if n < 0 || n > len(data)-at-12 {
			return h, false
		}
		chunk := data[at+8 : at+8+n]
		switch {
		case kind == "acTL": // the image is animated: only Pillow knows which frame is used
			return h, false
		case kind == "eXIf":
			return h.turned(chunk)
		case (kind == "iTXt" || kind == "tEXt" || kind == "zTXt") && mayTurn(chunk):
			return h, false
		}
		at += 12 + n
	}
	return h, h.sane()
}

// jpegHead reads the frame header of a JPEG (ITU-T T.81, B.2.2) and the orientation. Pillow decodes an image with three
// components to RGB.
func jpegHead(data []byte) (h head, ok bool) {
	var exif []byte
	for at := 2; at+4 <= len(data); {
		if data[at] != 0xff {
			return h, false
		}
		marker := data[at+1]
		switch {
		case marker == 0xff: // a fill byte between segments
			at++
			continue
		case marker == 0x01 || marker >= 0xd0 && marker <= 0xd7:
			at += 2
			continue
		}
		n := int(binary.BigEndian.Uint16(data[at+2:]))
		if n < 2 || at+2+n > len(data) {
			return h, false
		}
		segment := data[at+4 : at+2+n]
		switch {
		case marker == 0xe1 && bytes.HasPrefix(segment, []byte("Exif\x00\x00")):
			exif = segment[6:]
		case marker == 0xe1 && mayTurn(segment):
			return h, false
		case marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			if len(segment) < 6 {
				return h, false
			}
			h.height, h.width = int(binary.BigEndian.Uint16(segment[1:])), int(binary.BigEndian.Uint16(segment[3:]))
			h.converted = segment[5] != 3
			if exif != nil {
				return h.turned(exif)
			}
			return h, h.sane()
		case marker == 0xd9 || marker == 0xda:
			return h, false // the image's data begins, so no frame header will follow
		}
		at += 2 + n
	}
	return h, false
}

// webpHead reads the header of a WebP image (RFC 9649). Pillow decodes the image to RGB, or to RGBA if it has
// transparency.
func webpHead(data []byte) (h head, ok bool) {
	body := data[20:]
	switch string(data[12:16]) {
	case "VP8 ":
		if string(body[3:6]) != "\x9d\x01\x2a" {
			return h, false
		}
		h.width, h.height = int(binary.LittleEndian.Uint16(body[6:])&0x3fff), int(binary.LittleEndian.Uint16(body[8:])&0x3fff)
	case "VP8L":
		if body[0] != 0x2f {
			return h, false
		}
		sizes := binary.LittleEndian.Uint32(body[1:])
		h.width, h.height, h.converted = int(sizes&0x3fff)+1, int(sizes>>14&0x3fff)+1, sizes>>28&1 == 1
	default:
		return h, false // the extended format: the image may be animated, rotated or transparent
	}
	return h, h.sane()
}

// sane reports whether an engine decodes an image of this size. By default vLLM accepts up to 178 million pixels.
func (h *head) sane() bool {
	return h.width > 0 && h.height > 0 && h.width <= 1<<16 && h.height <= 1<<16 && h.width*h.height <= 178956970
}

// mayTurn reports whether the image may have an orientation in metadata that this package does not read: XMP, or EXIF
// as text.
func mayTurn(data []byte) bool {
	for _, word := range [...]string{"rientation", "XML:com.adobe.xmp", "Raw profile type"} {
		if bytes.Contains(data, []byte(word)) {
			return true
		}
	}
	return false
}

// turned applies the orientation of EXIF data (TIFF 6.0, tag 274). Values from 5 to 8 swap width and height. The second
// result is false if the data cannot be read; then the engine has to make the prompt's ids.
func (h head) turned(exif []byte) (head, bool) {
	var order binary.ByteOrder = binary.LittleEndian
	switch {
	case len(exif) < 8:
		return h, false
	case string(exif[:2]) == "MM":
		order = binary.BigEndian
	case string(exif[:2]) != "II":
		return h, false
	}
	at := int(order.Uint32(exif[4:]))
	if at < 8 || at+2 > len(exif) {
		return h, false
	}
	entries := int(order.Uint16(exif[at:]))
	if at += 2; at+12*entries > len(exif) {
		return h, false
	}
	for i := range entries {
		entry := exif[at+12*i:]
		switch order.Uint16(entry) {
		case 0x800d: // tag ImageID: vLLM may use its value as the image's name
			return h, false
		case 274:
			if order.Uint16(entry[2:]) != 3 || order.Uint32(entry[4:]) != 1 {
				return h, false
			}
			if turn := order.Uint16(entry[8:]); turn >= 5 && turn <= 8 {
				h.width, h.height = h.height, h.width
			}
		}
	}
	return h, h.sane()
}
