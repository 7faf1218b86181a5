package inprocess

import (
	"encoding/json"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/tokenizer"
)

// vision describes how vLLM encodes the images of a model. For each image the template writes one token, and vLLM
// replaces this token by a row of tokens. The row's length is fixed, or follows from the image's size. For other
// families of models (with tiles, crops or special code) there is no vision: only the engine can make the ids of their
// prompts.
type vision struct {
	target        block.Token   // the token that the template writes for an image
	before, after []block.Token // tokens before and after the row
	row           block.Token   // the token of which the row consists

	fixed int // number of tokens of every image; 0: the number follows from the image's size

	// unit, least and most are numbers of pixels. Width and height are rounded to multiples of unit, and scaled until
	// the area is between least and most. Each square with sides of unit pixels is one token (smart_resize of
	// Transformers' Qwen2VLImageProcessor).
	unit, least, most int

	// newlines has the tokens of one, two, three and four line feeds. newlines is set if line feeds around the row merge
	// with line feeds of the text.
	newlines []block.Token
}

// visionConfig has the fields of config.json that are read.
type visionConfig struct {
	Type        string `json:"model_type"`
	TokenIndex  *int64 `json:"image_token_index"`
	TokenID     *int64 `json:"image_token_id"`
	BeginIndex  *int64 `json:"boi_token_index"`
	EndIndex    *int64 `json:"eoi_token_index"`
	PerImage    int    `json:"mm_tokens_per_image"`
	Select      string `json:"vision_feature_select_strategy"`
	VisionTower struct {
		Type  string `json:"model_type"`
		Image int    `json:"image_size"`
		Patch int    `json:"patch_size"`
		Merge int    `json:"spatial_merge_size"`
	} `json:"vision_config"`
}

// imageProcessor has the fields that this package reads from preprocessor_config.json, or from the object
// image_processor of processor_config.json.
type imageProcessor struct {
	Size struct {
		Shortest int `json:"shortest_edge"`
		Longest  int `json:"longest_edge"`
	} `json:"size"`
	MinPixels   int   `json:"min_pixels"`
	MaxPixels   int   `json:"max_pixels"`
	Patch       int   `json:"patch_size"`
	Merge       int   `json:"merge_size"`
	Resize      *bool `json:"do_resize"`
	PanAndScan  *bool `json:"do_pan_and_scan"`
	SequenceLen int   `json:"image_seq_length"` // this field is in processor_config.json itself
}

// loadVision returns the model's vision. It returns nil if the model takes no images, or if its image processing is not
// known here. That is no error, because prompts without images can still be encoded.
func loadVision(files fs.FS, t *tokenizer.Tokenizer) *vision {
	var c visionConfig
	if !readOptional(files, "config.json", &c) {
		return nil
	}
	var p imageProcessor
	var whole struct {
		Image       *imageProcessor `json:"image_processor"`
		SequenceLen int             `json:"image_seq_length"`
	}
	if readOptional(files, "processor_config.json", &whole) && whole.Image != nil {
		p = *whole.Image
	} else if !readOptional(files, "preprocessor_config.json", &p) {
		return nil
	}
	p.SequenceLen = whole.SequenceLen
	switch c.Type {
	case "llava":
		return llava(&c)
	case "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe":
		return qwenVL(&c, &p)
	case "gemma3":
		return gemma3(&c, &p, t)
	}
	return nil
}

func readOptional(files fs.FS, name string, into any) bool {
	data, err := fs.ReadFile(files, name)
	return err == nil && json.Unmarshal(data, into) == nil
}

// maxRow bounds the number of tokens of an image. No image processor makes more, so a larger number comes from a broken
// file.
const maxRow = 1 << 17

// llava returns the vision of LLaVA 1.5 and similar models. An image is a square of patches. The selection strategy
// says whether one token is left out (vLLM's models/llava.py, clip.py, siglip.py). Pixtral has the same model type, but
// its vision tower is different: it puts a token between two rows of patches.
func llava(c *visionConfig) *vision {
	tower := &c.VisionTower
	if c.TokenIndex == nil || tower.Patch <= 0 || tower.Image <= 0 || tower.Image > 1<<14 {
		return nil
	}
	n := (tower.Image / tower.Patch) * (tower.Image / tower.Patch)
	switch tower.Type {
	case "clip_vision_model":
		n++ // one more for the class token
	case "siglip_vision_model":
	default:
		return nil
	}
	switch c.Select {
	case "default", "":
		n--
	case "full":
	default:
		return nil
	}
	if n <= 0 || n > maxRow {
		return nil
	}
	token := block.Token(*c.TokenIndex)
	return &vision{target: token, row: token, fixed: n}
}

// qwenVL returns the vision of Qwen2-VL, Qwen2.5-VL and Qwen3-VL (vLLM's models/qwen2_vl.py).
func qwenVL(c *visionConfig, p *imageProcessor) *vision {
	patch, merge := p.Patch, p.Merge
	if patch == 0 {
		patch = 14
	}
	if merge == 0 {
		merge = 2
	}
	v := &vision{unit: patch * merge, least: 56 * 56, most: 28 * 28 * 1280}
	for _, set := range [...]struct {
		to   *int
		from int
	}{{&v.least, p.Size.Shortest}, {&v.most, p.Size.Longest}, {&v.least, p.MinPixels}, {&v.most, p.MaxPixels}} {
		if set.from > 0 {
			*set.to = set.from
		}
	}
	resizes := p.Resize == nil || *p.Resize
	sane := patch > 0 && merge > 0 && v.unit <= 1<<10 && v.most/(v.unit*v.unit) <= maxRow && v.least <= v.most
	if c.TokenID == nil || !resizes || !sane {
		return nil
	}
	v.target = block.Token(*c.TokenID)
	v.row = v.target
	return v
}

// gemma3 returns the vision of Gemma 3 without pan and scan (vLLM's models/gemma3_mm.py). An image becomes: line feeds,
// the begin token, the row, the end token, line feeds. These line feeds merge with line feeds of the text, as the
// tokenizer would merge them.
func gemma3(c *visionConfig, p *imageProcessor, t *tokenizer.Tokenizer) *vision {
	if p.PanAndScan != nil && *p.PanAndScan || c.BeginIndex == nil || c.EndIndex == nil || c.TokenIndex == nil {
		return nil
	}
	v := &vision{target: block.Token(*c.BeginIndex), row: block.Token(*c.TokenIndex), fixed: p.SequenceLen}
	if v.fixed == 0 {
		v.fixed = 256
	}
	for n := 1; n <= 4; n++ {
		id, ok := t.ID(strings.Repeat("\n", n))
		if !ok {
			return nil
		}
		v.newlines = append(v.newlines, id)
	}
	var err error
	if v.before, err = t.Append(nil, "\n\n", tokenizer.Options{}); err != nil {
		return nil
	}
	v.after = append([]block.Token{block.Token(*c.EndIndex)}, v.before...)
	v.before = append(slices.Clone(v.before), v.target)
	if c.PerImage != 0 && c.PerImage != v.fixed || v.fixed > maxRow {
		return nil
	}
	return v
}

// tokens returns the length of the row for an image of this size. If the engine refuses the image, ok is false.
func (v *vision) tokens(width, height int) (n int, ok bool) {
	if v.fixed > 0 {
		return v.fixed, true
	}
	if width <= 0 || height <= 0 || max(width, height) > 200*min(width, height) {
		return 0, false
	}
	unit, w, h := float64(v.unit), float64(width), float64(height)
	rows, columns := math.RoundToEven(h/unit), math.RoundToEven(w/unit)
	switch area := rows * columns * unit * unit; {
	case area > float64(v.most):
		shrink := math.Sqrt(h * w / float64(v.most))
		rows, columns = max(1, math.Floor(h/shrink/unit)), max(1, math.Floor(w/shrink/unit))
	case area < float64(v.least):
		grow := math.Sqrt(float64(v.least) / (h * w))
		rows, columns = math.Ceil(h*grow/unit), math.Ceil(w*grow/unit)
	}
	return int(rows * columns), true
}

// expand replaces each target in ids by the row of an image. features says where the tokens of each image begin. If the
// template did not write exactly one target for each image, ok is false.
func (v *vision) expand(ids []block.Token, images []picture) (out []block.Token, features []block.Feature, ok bool) {
	total, targets := 0, 0
	for _, id := range ids {
		if id == v.target {
			targets++
		}
	}
	if targets != len(images) {
		return ids, nil, false
	}
	for i := range images {
		total += images[i].tokens + len(v.before) + len(v.after)
	}
	out = make([]block.Token, 0, len(ids)+total)
	features = make([]block.Feature, 0, len(images))
	for _, id := range ids {
		if id != v.target {
			out = append(out, id)
			continue
		}
		image := &images[len(features)]
		features = append(features, block.Feature{ID: image.id, Offset: len(out)})
		out = append(out, v.before...)
		for range image.tokens {
			out = append(out, v.row)
		}
		out = append(out, v.after...)
	}
	if v.newlines != nil {
		out = v.melt(out, features)
	}
	return out, features, true
}

// melt merges neighbouring tokens of line feeds in three passes, as vLLM does: first a token of one line feed with a
// token of two line feeds, then two with one, then two with two.
func (v *vision) melt(ids []block.Token, features []block.Feature) []block.Token {
	one, two := v.newlines[0], v.newlines[1]
	for _, rule := range [...]struct{ a, b, to block.Token }{{one, two, v.newlines[2]}, {two, one, v.newlines[2]},
		{two, two, v.newlines[3]}} {
		out, next := ids[:0], 0
		for i := 0; i < len(ids); i++ {
			at, width := len(out), 1
			if i+1 < len(ids) && ids[i] == rule.a && ids[i+1] == rule.b {
				width = 2
			}
			// A placeholder that began in the second of two merged tokens begins in the merged token.
			for next < len(features) && features[next].Offset < i+width {
				features[next].Offset = at
				next++
			}
			if width == 2 {
				out = append(out, rule.to)
				i++
				continue
			}
			out = append(out, ids[i])
		}
		ids = out
	}
	return ids
}
