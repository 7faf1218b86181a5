package kvevent

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/block"
)

// Wire is one version of an engine's payload format, and writes payloads in this format. A Wire is an immutable value.
// The zero value is the newest vLLM.
type Wire struct {
	format *format
	form   hashForm
}

// hashForm is the form in which a Wire writes engine hashes.
type hashForm uint8

const (
	hashDefault  hashForm = iota // the default of the Wire's engine
	hashUnsigned                 // unsigned integers: vLLM with sha256 or xxhash
	hashSigned                   // signed integers: vLLM's builtin hash, SGLang, TensorRT-LLM
	hashBytes                    // byte strings, usually of 32 bytes: vLLM with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0
)

var hashForms = map[string]hashForm{"int": hashUnsigned, "signed": hashSigned, "bytes": hashBytes}

// format describes the payloads of one version of an engine.
type format struct {
	family  string
	version string // first version with this format
	batch   int    // number of elements of the envelope: 2 (time, events) or 3 (time, events, rank)
	stored  int    // number of fields of a stored event in array form, without the name; 0: the event is a map
	removed int    // number of fields of a removed event in array form; 0: the event is a map
	keys    mapKeys
	place   bool // the format has locality (vllm#48281)
	owner   bool // the format has ownership and session_id (vllm#52067, #51381)
	ahead   bool // the format has lookahead_token_ids (vLLM 0.33)
	offsets bool // extra_keys have an item's offset in addition to its identifier (vllm#36708)
	meta    bool // SGLang: a salted event has a map as eighth element
	hash    hashForm
}

// mapKeys selects the keys that events in map form have.
type mapKeys uint8

const (
	keysVLLM mapKeys = iota
	keysSGLang
	keysTRTLLM
)

// formats lists the versions at which an engine's format changed, oldest first for each engine. The sources are vLLM's
// distributed/kv_events.py and SGLang's srt/disaggregation/kv_events.py at these versions, and the events that
// TensorRT-LLM 1.3 publishes.
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
	{family: "vllm", version: "0.32.0", batch: 3, keys: keysVLLM, place: true, owner: true, offsets: true,
		hash: hashUnsigned},
	// This is the newest version of vLLM whose events were recorded for tests.
	{family: "vllm", version: "0.33.0", batch: 3, keys: keysVLLM, place: true, owner: true, ahead: true, offsets: true,
		hash: hashUnsigned},
	{family: "sglang", version: "0.4.6", batch: 2, stored: 5, removed: 1, hash: hashSigned},
	{family: "sglang", version: "0.4.7", batch: 3, stored: 5, removed: 1, hash: hashSigned},
	{family: "sglang", version: "0.5.9", batch: 3, stored: 6, removed: 2, hash: hashSigned},
	{family: "sglang", version: "0.5.18", batch: 3, stored: 6, removed: 2, meta: true, hash: hashSigned},
	{family: "sglang", version: "0.5.23", batch: 3, keys: keysSGLang, owner: true, hash: hashSigned},
	{family: "trtllm", version: "1.3.0", batch: 3, keys: keysTRTLLM, hash: hashSigned},
}

// ParseWire returns the Wire for an engine's version, such as "vllm-0.32.0", "sglang-0.5.18" or "trtllm-1.3". The name
// of an engine alone means its newest version. A version between two changes of the format has the format of the
// earlier change. A suffix chooses a form of hashes that is not the engine's default: "+bytes", "+int" or "+signed".
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

// parseVersion reads a version such as "0.32.0" as a list of numbers. If the version has fewer than three numbers, the
// missing numbers are 0.
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

// Wires returns the names of all versions that changed the format, without the suffixes for forms of hashes. ParseWire
// accepts each of these names.
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

// String returns the name of the Wire, in the form that ParseWire reads.
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

// Medium returns the engine's name of a tier. If an event has no Medium, Append writes null if Locality and Owner alone
// give its tier (without both: TierGPU), and this name otherwise.
func (w Wire) Medium(t block.Tier) string {
	f, _ := w.resolve()
	names := [block.NumTiers]string{"GPU", "CPU", "STORAGE", "OBJ"}
	if f.family == "sglang" {
		names = [block.NumTiers]string{"GPU", "CPU_PINNED", "DISK", "EXTERNAL"}
	}
	return names[min(int(t), block.NumTiers-1)]
}
