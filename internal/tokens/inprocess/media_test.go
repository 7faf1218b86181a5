package inprocess

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// golden returns the output of testdata/images.py.
func golden(t testing.TB) (g struct {
	Images []struct {
		Name, Data, Hash string
		Width, Height    int
	}
	Sizes [][6]int
}) {
	t.Helper()
	data, err := os.ReadFile("testdata/images.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestImagesAreNamedAsVLLMNamesThem(t *testing.T) {
	exact := 0
	for _, image := range golden(t).Images {
		data, err := base64.StdEncoding.DecodeString(image.Data)
		if err != nil {
			t.Fatal(err)
		}
		h, ok := readHead(data)
		if !ok {
			// Only the engine reads extended WebP images.
			if image.Name != "WEBP RGBA" && !strings.HasPrefix(image.Name, "WEBP lossless RGBA") {
				t.Errorf("%s: not read", image.Name)
			}
			continue
		}
		exact++
		if h.width != image.Width || h.height != image.Height {
			t.Errorf("%s: %d×%d, vLLM shows %d×%d", image.Name, h.width, h.height, image.Width, image.Height)
		}
		if got := imageDigest(data, h.converted, "org/model"); got != image.Hash {
			t.Errorf("%s: named %s, vLLM names it %s", image.Name, got, image.Hash)
		}
	}
	if exact < 20 {
		t.Errorf("only %d images were read", exact)
	}
}

func TestRowsAreAsLongAsQwensProcessorMakesThem(t *testing.T) {
	for _, s := range golden(t).Sizes {
		v := vision{unit: s[2], least: s[3], most: s[4]}
		if n, ok := v.tokens(s[0], s[1]); !ok || n != s[5] {
			t.Errorf("%d×%d in squares of %d within %d..%d: %d tokens, not %d", s[0], s[1], s[2], s[3], s[4], n, s[5])
		}
	}
	v := vision{unit: 28, least: 3136, most: 1003520}
	for _, side := range [][2]int{{1, 201}, {0, 5}, {5000, 24}} {
		if _, ok := v.tokens(side[0], side[1]); ok {
			t.Errorf("%v: the engine refuses it", side)
		}
	}
}

// seeing returns the files of a model that takes images. config is the content of config.json, and processor is the
// content of preprocessor_config.json.
func seeing(config, processor string) fstest.MapFS {
	f := files()
	maps.Copy(f, fstest.MapFS{
		"tokenizer.json": {Data: []byte(`{"version":"1.0","added_tokens":[
			{"id":9,"content":"<img>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
			{"id":8,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
			{"id":11,"content":"\n","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false},
			{"id":12,"content":"\n\n","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false},
			{"id":13,"content":"\n\n\n","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false},
			{"id":14,"content":"\n\n\n\n","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false}],
			"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
			"model":{"type":"WordLevel","vocab":{"[UNK]":0,"see":1,"and":2},"unk_token":"[UNK]"}}`)},
		"tokenizer_config.json": {Data: []byte(`{"bos_token":"<s>","chat_template":"{{ bos_token }}{% for m in messages %}{% for c in m.content %}{% if c.type == 'image' %}<img>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}"}`)},
		"config.json":           {Data: []byte(config)}, "preprocessor_config.json": {Data: []byte(processor)},
	})
	return f
}

const (
	llavaConfig  = `{"model_type":"llava","image_token_index":9,"vision_feature_select_strategy":"default","vision_config":{"model_type":"clip_vision_model","image_size":28,"patch_size":14}}`
	qwenConfig   = `{"model_type":"qwen2_5_vl","image_token_id":9,"vision_config":{"patch_size":14,"spatial_merge_size":2}}`
	gemmaConfig  = `{"model_type":"gemma3","boi_token_index":9,"eoi_token_index":8,"image_token_index":10,"mm_tokens_per_image":3}`
	qwenPictures = `{"min_pixels":784,"max_pixels":2000,"patch_size":14,"merge_size":2}`
)

func chatWith(parts ...string) string {
	return `{"model":"m","messages":[{"role":"user","content":[` + strings.Join(parts, ",") + `]}]}`
}

func words(s string) string { return fmt.Sprintf(`{"type":"text","text":%q}`, s) }

func TestPlaceholdersAreExpandedAsTheFamilyDoes(t *testing.T) {
	g := golden(t).Images[0] // an image of 23×14 pixels
	shown := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + g.Data + `"}}`
	named := strings.Replace(shown, `"type"`, `"uuid":"mine","type"`, 1)
	far := `{"type":"image_url","image_url":{"url":"http://example.org/a.png"},"uuid":"far"}`
	for _, c := range []struct {
		name, config, processor, body string
		want                          []block.Token
		features                      []block.Feature
	}{
		{"llava", llavaConfig, `{}`, chatWith(words("see"), shown, words("and"), named),
			[]block.Token{8, 1, 9, 9, 9, 9, 2, 9, 9, 9, 9}, []block.Feature{{ID: g.Hash, Offset: 2}, {ID: "mine", Offset: 7}}},
		{"llava far away", llavaConfig, `{}`, chatWith(far, words("see")), []block.Token{8, 9, 9, 9, 9, 1},
			[]block.Feature{{ID: "far", Offset: 1}}},
		{"qwen", qwenConfig, qwenPictures, chatWith(words("see"), shown), []block.Token{8, 1, 9, 9},
			[]block.Feature{{ID: g.Hash, Offset: 2}}},
		{"gemma", gemmaConfig, `{"image_seq_length":3}`, chatWith(words("see\n"), shown, words("and"), shown, words("\n")),
			[]block.Token{8, 1, 13, 9, 10, 10, 10, 8, 12, 2, 12, 9, 10, 10, 10, 8, 13},
			[]block.Feature{{ID: g.Hash, Offset: 2}, {ID: g.Hash, Offset: 10}}},
	} {
		files := seeing(c.config, c.processor)
		if c.name == "gemma" {
			files["processor_config.json"] = &fstest.MapFile{Data: []byte(c.processor)}
		}
		got, err := load(t, files).Encode(nil, read(t, api.OpenAIChat, c.body), Origin{Root: "org/model"})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(c.want, got.Tokens); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if diff := cmp.Diff(c.features, got.Features); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if got.Stable.Tokens != 0 {
			t.Errorf("%s: a mark of ids that were changed afterwards", c.name)
		}
	}
}

func TestImagesThatOnlyTheEngineCanEncodeAreLeftToIt(t *testing.T) {
	shown := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + golden(t).Images[0].Data + `"}}`
	m := load(t, seeing(qwenConfig, qwenPictures))
	root := Origin{Root: "org/model"}
	for _, c := range []struct {
		name, body string
		origin     Origin
		model      *Model
	}{
		{"engines of unknown root", chatWith(shown), Origin{}, m},
		{"SGLang", chatWith(shown), Origin{Kind: tokens.SGLang, Root: "org/model"}, m},
		{"an image elsewhere", chatWith(`{"type":"image_url","image_url":{"url":"http://example.org/a.png"}}`), root, m},
		{"a name without a size", chatWith(`{"type":"image_url","image_url":{"url":"http://example.org/a.png"},"uuid":"u"}`),
			root, m},
		{"a sound", chatWith(`{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}`), root, m},
		{"a film", chatWith(`{"type":"video_url","video_url":{"url":"data:video/mp4;base64,AAAA"}}`), root, m},
		{"no image at all", chatWith(`{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}`), root, m},
		{"base64 with line feeds", chatWith(`{"type":"image_url","image_url":{"url":"data:image/png;base64,AA\nAA"}}`), root,
			m},
		{"a placeholder in the text", chatWith(words("<img>"), shown), root, m},
		{"an unknown family", chatWith(shown), root, load(t, seeing(`{"model_type":"phi4","image_token_id":9}`, `{}`))},
		{"pan and scan", chatWith(shown), root, load(t, seeing(gemmaConfig, `{"do_pan_and_scan":true}`))},
		{"no files on images", chatWith(shown), root, load(t, files())},
	} {
		if got, err := c.model.Encode(nil, read(t, api.OpenAIChat, c.body), c.origin); !errors.Is(err, ErrElsewhere) {
			t.Errorf("%s: ids %v, error %v", c.name, got.Tokens, err)
		}
	}
	got, err := m.Encode(nil, read(t, api.OpenAIChat, chatWith(words("see"))), Origin{})
	if err != nil || !slices.Equal(got.Tokens, []block.Token{8, 1}) {
		t.Errorf("a text for a model with vision: %v, %v", got.Tokens, err)
	}
}

func TestPromptsWithTooManyImagesAreLeftToTheEngine(t *testing.T) {
	f := seeing(strings.Replace(gemmaConfig, `"mm_tokens_per_image":3`, `"mm_tokens_per_image":1000`, 1), `{}`)
	f["processor_config.json"] = &fstest.MapFile{Data: []byte(`{"image_seq_length":1000}`)}
	m := load(t, f)
	part := `{"type":"image_url","uuid":"a","image_url":{"url":"http://a"}}`
	enough := chatWith(slices.Repeat([]string{part}, maxRows/1000+1)...)
	if got, err := m.Encode(nil, read(t, api.OpenAIChat, enough), Origin{}); !errors.Is(err, errRows) ||
		len(got.Tokens) > 0 {
		t.Errorf("%d ids, error %v", len(got.Tokens), err)
	}
}

func FuzzImageHead(f *testing.F) {
	for _, image := range golden(f).Images {
		data, _ := base64.StdEncoding.DecodeString(image.Data)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, ok := readHead(data); ok && !h.sane() {
			t.Errorf("%d×%d", h.width, h.height)
		}
	})
}
