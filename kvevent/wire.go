package kvevent

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/block"
)

// Wire is one version of an engine's payloads, for writing them: the mock engine and the publisher use it. It is an
// immutable value; the zero value is the newest vLLM.
type Wire struct {
	format *format
	form   hashForm
}

// hashForm is how hashes are written.
type hashForm uint8

const (
	hashDefault  hashForm = iota // what the engine does unless told otherwise
	hashUnsigned                 // vLLM's sha256 and xxhash chains
	hashSigned                   // vLLM's builtin hash, SGLang, TensorRT-LLM
	hashBytes                    // vLLM with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0: 32 bytes
)

var hashForms = map[string]hashForm{"int": hashUnsigned, "signed": hashSigned, "bytes": hashBytes}

// format is what one version writes.
type format struct {
	family  string
	version string // the first with this form
	batch   int    // elements of the envelope: 2, or 3 with the rank
	stored  int    // fields of a stored event in array form, without the name; 0: a map
	removed int    // the same of a removed event
	keys    mapKeys
	place   bool // locality is told (vllm#48281)
	owner   bool // ownership and session_id are told (vllm#52067, #51381)
	ahead   bool // lookahead_token_ids are told (vLLM 0.33)
	offsets bool // extra_keys name an item with its offset (vllm#36708), not barely
	meta    bool // SGLang: a salted event has a map as eighth element
	hash    hashForm
}

// mapKeys is which keys a map form has.
type mapKeys uint8

const (
	keysVLLM mapKeys = iota
	keysSGLang
	keysTRTLLM
)

// formats lists every change of the wire, oldest first within a family. The sources are engines.md §1.5, §3.1 and §4
// of the project's facts and, in the code, vLLM's distributed/kv_events.py, SGLang's srt/disaggregation/kv_events.py.
var formats = []*format{
	{family: "vllm", version: "0.9.0", batch: 2, stored: 5, removed: 1, hash: hashUnsigned},
	{family: "vllm", version: "0.9.1", batch: 3, stored: 5, removed: 1, hash: hashUnsigned},
	{family: "vllm", version: "0.10.2", batch: 3, stored: 6, removed: 2, hash: hashUnsigned},
	{family: "vllm", version: "0.14.0", batch: 3, stored: 7, removed: 2, hash: hashUnsigned},
	{family: "vllm", version: "0.17.0", batch: 3, stored: 8, removed: 2, hash: hashUnsigned},
	{family: "vllm", version: "0.19.0", batch: 3, stored: 8, removed: 2, offsets: true, hash: hashUnsigned},
	{family: "vllm", version: "0.20.0", batch: 3, stored: 9, removed: 3, offsets: true, hash: hashUnsigned},
	{family: "vllm", version: "0.22.0", batch: 3, stored: 11, removed: 3, offsets: true, hash: hashUnsigned},
	{family: "vllm", version: "0.24.0", batch: 3, keys: keysVLLM, offsets: true, hash: hashUnsigned},
	{family: "vllm", version: "0.27.0", batch: 3, keys: keysVLLM, place: true, offsets: true, hash: hashUnsigned},
	{family: "vllm", version: "0.32.0", batch: 3, keys: keysVLLM, place: true, owner: true, offsets: true, hash: hashUnsigned},
	{family: "vllm", version: "0.33.0", batch: 3, keys: keysVLLM, place: true, owner: true, ahead: true, offsets: true, hash: hashUnsigned}, // the newest recorded
	{family: "sglang", version: "0.4.6", batch: 2, stored: 5, removed: 1, hash: hashSigned},
	{family: "sglang", version: "0.4.7", batch: 3, stored: 5, removed: 1, hash: hashSigned},
	{family: "sglang", version: "0.5.9", batch: 3, stored: 6, removed: 2, hash: hashSigned},
	{family: "sglang", version: "0.5.18", batch: 3, stored: 6, removed: 2, meta: true, hash: hashSigned},
	{family: "sglang", version: "0.5.23", batch: 3, keys: keysSGLang, owner: true, hash: hashSigned},
	{family: "trtllm", version: "1.3.0", batch: 3, keys: keysTRTLLM, hash: hashSigned},
}

// ParseWire returns the form that an engine's version writes: "vllm-0.32.0", "sglang-0.5.18", "trtllm-1.3", or a
// family alone for its newest. A version between two changes has the form of the earlier one. A suffix chooses another
// form for hashes: "+bytes", "+int" or "+signed".
func ParseWire(s string) (Wire, error) {
	name, suffix, hasForm := strings.Cut(s, "+")
	var w Wire
	if hasForm {
		form, ok := hashForms[suffix]
		if !ok {
			return Wire{}, fmt.Errorf("parse wire %q: hash form %q is none of int, signed, bytes", s, suffix)
		}
		w.form = form
	}
	family, text, hasVersion := strings.Cut(name, "-")
	version, ok := parseVersion(text)
	if hasVersion && !ok {
		return Wire{}, fmt.Errorf("parse wire %q: %q is no version such as 0.32.0", s, text)
	}
	known := false
	for _, f := range formats {
		if f.family != family {
			continue
		}
		known = true
		since, _ := parseVersion(f.version)
		if !hasVersion || slices.Compare(since, version) <= 0 {
			w.format = f
		}
	}
	if !known {
		return Wire{}, fmt.Errorf("parse wire %q: known are %s", s, strings.Join(Wires(), ", "))
	}
	if w.format == nil {
		return Wire{}, fmt.Errorf("parse wire %q: %s had no events before version %s", s, family, firstOf(family))
	}
	return w, nil
}

func firstOf(family string) string {
	i := slices.IndexFunc(formats, func(f *format) bool { return f.family == family })
	return formats[i].version
}

// parseVersion reads "0.32.0" as numbers; a missing third number is 0.
func parseVersion(s string) ([]int, bool) {
	const most = 4
	var v []int
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 || len(v) == most {
			return nil, false
		}
		v = append(v, n)
	}
	for len(v) < 3 {
		v = append(v, 0)
	}
	return v, true
}

// Wires returns the names of the versions in which the wire changed, and so everything that ParseWire can tell apart
// but for the hash forms.
func Wires() []string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = f.family + "-" + f.version
	}
	return names
}

var newestVLLM = func() *format {
	w, err := ParseWire("vllm")
	if err != nil {
		panic("bug: no newest vLLM in the table of wires")
	}
	return w.format
}()

func (w Wire) resolve() (*format, hashForm) {
	f := cmp.Or(w.format, newestVLLM)
	return f, cmp.Or(w.form, f.hash)
}

// String returns the name that ParseWire reads.
func (w Wire) String() string {
	f, _ := w.resolve()
	name := f.family + "-" + f.version
	for suffix, form := range hashForms {
		if form == w.form {
			name += "+" + suffix
		}
	}
	return name
}

// Medium returns what an engine of this family calls a tier. An Event of TierGPU without a medium is written with null,
// of another tier with this name.
func (w Wire) Medium(t block.Tier) string {
	f, _ := w.resolve()
	names := [block.NumTiers]string{"GPU", "CPU", "STORAGE", "OBJ"}
	if f.family == "sglang" {
		names = [block.NumTiers]string{"GPU", "CPU_PINNED", "DISK", "EXTERNAL"}
	}
	return names[min(int(t), block.NumTiers-1)]
}
