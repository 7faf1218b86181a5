package inprocess

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"
)

// picture is an image in a prompt, as the engine represents it.
type picture struct {
	id     string // identifier of the image in the engine's events
	tokens int    // length of the image's row, that is the number of tokens that stand for the image
}

// seen is what is remembered about an image.
type seen struct {
	digest        string
	width, height int
}

// pictures remembers images by their URLs, so that each image of a conversation is decoded and hashed only once. It is
// safe for concurrent use.
type pictures struct {
	mu  sync.Mutex
	now map[xxh3.Uint128]seen // guarded by mu
	old map[xxh3.Uint128]seen // guarded by mu; when now is full, it becomes old, and the earlier map old is dropped
}

// keptPictures bounds the number of images in each of the two maps. An image takes some 200 bytes.
const keptPictures = 4096

func (p *pictures) get(k xxh3.Uint128) (seen, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.now[k]
	if !ok {
		if s, ok = p.old[k]; ok {
			p.add(k, s)
		}
	}
	return s, ok
}

func (p *pictures) put(k xxh3.Uint128, s seen) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(k, s)
}

// add stores s under k. The caller holds mu.
func (p *pictures) add(k xxh3.Uint128, s seen) {
	if p.now == nil || len(p.now) >= keptPictures {
		p.old, p.now = p.now, map[xxh3.Uint128]seen{}
	}
	p.now[k] = s
}

// picture returns an image as vLLM represents it. If only the engine can know this, ok is false. root is the folder or
// name from which the engine loaded the model; it is part of the image's hash. root is "" if it is not known, or if the
// engines' roots differ.
func (m *Model) picture(media *chatMedia, root string) (p picture, ok bool) {
	if m.vision == nil || media.Kind != "image_url" {
		return p, false
	}
	if media.UUID != "" && m.vision.fixed > 0 {
		return picture{media.UUID, m.vision.fixed}, true
	}
	if root == "" && media.UUID == "" || !strings.HasPrefix(media.URL, "data:") {
		return p, false // the image cannot be named without root, or is at another URL; images are not fetched here
	}
	key := xxh3.HashString128(root + "\x00" + media.URL)
	s, known := m.pictures.get(key)
	if !known {
		data, ok := dataOf(media.URL)
		if !ok {
			return p, false
		}
		head, ok := readHead(data)
		if !ok {
			return p, false
		}
		s = seen{imageDigest(data, head.converted, root), head.width, head.height}
		m.pictures.put(key, s)
	}
	if p.tokens, ok = m.vision.tokens(s.width, s.height); !ok {
		return p, false
	}
	if p.id = s.digest; media.UUID != "" {
		p.id = media.UUID
	}
	return p, true
}

// dataOf decodes a data: URL as vLLM does (multimodal/media/connector.py): only base64 without line breaks.
func dataOf(url string) ([]byte, bool) {
	spec, data, found := strings.Cut(strings.TrimPrefix(url, "data:"), ",")
	if !found || !strings.HasSuffix(spec, ";base64") || strings.ContainsAny(data, "\r\n") {
		return nil, false
	}
	out, err := base64.StdEncoding.DecodeString(data)
	return out, err == nil && len(out) > 0
}

// imageDigest returns the hash of one image that came as bytes. The hash is the result of MultiModalHasher.hash_kwargs
// in vLLM 0.32 (multimodal/hasher.py) for the two arguments image and model_id. converted is true if the bytes do not
// decode to RGB. For such bytes the hash includes the conversion (multimodal/media/image.py: a white background
// replaces transparent pixels).
func imageDigest(data []byte, converted bool, root string) string {
	var f frames
	f.text("image")
	f.tag(leaf)
	f.text("image")
	if converted {
		f.tag(mapping)
		f.length(2)
		f.text("io_config")
		f.tag(mapping)
		f.length(2)
		f.text("image_mode")
		f.tag(leaf)
		f.text("RGB")
		f.text("rgba_background_color")
		f.tag(sequence)
		f.length(3)
		for range 3 {
			f.tag(leaf)
			f.length(8)
			f.length(255)
		}
		f.text("data")
	}
	f.tag(leaf)
	f.length(len(data))
	before := len(f.b)
	f.text("model_id")
	f.tag(leaf)
	f.text(root)
	return blake3(f.b[:before], data, f.b[before:])
}

// frames writes values in the format that vLLM hashes. A tag for the kind of value comes before each value, and a
// length comes before each run of bytes.
type frames struct{ b []byte }

const (
	sequence byte = 1
	mapping  byte = 2
	leaf     byte = 3
)

func (f *frames) tag(t byte)    { f.b = append(f.b, t) }
func (f *frames) length(n int)  { f.b = binary.LittleEndian.AppendUint64(f.b, uint64(n)) }
func (f *frames) text(s string) { f.length(len(s)); f.b = append(f.b, s...) }

// head is the part of an image's header that this package needs.
type head struct {
	width, height int  // size as displayed, after the orientation is applied
	converted     bool // Pillow decodes the image to another mode than RGB
}

// readHead reads the header of a PNG, JPEG, GIF or WebP image. ok is false for other formats, and if this code cannot
// learn everything from the header: the image may be animated or damaged, or have a size that no engine accepts, or
// have an orientation that mayTurn finds.
func readHead(data []byte) (h head, ok bool) {
	switch {
	case bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n")):
		return pngHead(data)
	case bytes.HasPrefix(data, []byte("\xff\xd8\xff")):
		return jpegHead(data)
	case len(data) > 13 && (string(data[:6]) == "GIF87a" || string(data[:6]) == "GIF89a"):
		// Pillow keeps the palette of a GIF, so the image is converted.
		h = head{int(binary.LittleEndian.Uint16(data[6:])), int(binary.LittleEndian.Uint16(data[8:])), true}
		return h, h.sane()
	case len(data) > 30 && string(data[:4]) == "RIFF" && string(data[8:12]) == "WEBP":
		return webpHead(data)
	}
	return h, false
}
