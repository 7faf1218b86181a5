package testenv_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/color/palette"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
	"github.com/warmpath/warmpath/test/testenv"
)

// TestImages runs tiny models of three families with vision. For each request, the router must compute the same token
// ids and image identifiers as vLLM.
func TestImages(t *testing.T) {
	besideAnother(t)
	dir := root(t, "vllm")
	client := testenv.StartClient(t)
	// One engine after the other, to save memory.
	for _, family := range []string{"qwen2vl", "llava", "gemma3"} {
		args := []string{"--enable-scale-out", "--limit-mm-per-prompt", `{"image":8}`}
		// With llava and gemma3, vLLM cannot load the weights, because the vision weights have other names in Transformers 5
		// than in vLLM. With dummy weights these engines can still render prompts.
		if family != "qwen2vl" {
			args = append(args, "--load-format", "dummy")
		}
		model := dir + "/images-" + family
		e := begin(t, family, launch{kind: "vllm", env: []string{"MODEL=" + model}, args: args})
		e.await(t)
		t.Run(family+" prompts equal the engine's", func(t *testing.T) { sameImages(t, model, e) })
		if family == "qwen2vl" {
			t.Run("conversations about images", func(t *testing.T) {
				k := &clientTalk{client: client, gateway: testenv.Serve(t, "--model-path", model, "--worker", e.url)}
				k.gateway.Ready(t)
				waitTrust(t, k.gateway, "exact", 1)
				aboutImages(t, k)
			})
		}
		e.stop()
	}
}

// aboutImages plays conversations with several questions about the same images. The predictions must equal the engine's
// cached tokens.
func aboutImages(t *testing.T, k *clientTalk) {
	random := rand.New(rand.NewPCG(7, 7))
	for talk := range 3 {
		shown := picture(random, "png", 200, 150)
		history := []chatMessage{{"role": "user", "content": []any{part(sentences(fmt.Sprintf("look%d", talk), 30)), shown, part(sentences("what", 20))}}}
		for turn := range 4 {
			r := k.chat(t, "tiny", history, nil)
			what := fmt.Sprintf("talk %d about an image, turn %d", talk, turn)
			r.exact(t, what)
			if source := k.lastSource(t); source != "local" {
				t.Errorf("%s: ids from %s", what, source)
			}
			if turn > 0 && r.cached == 0 {
				t.Errorf("%s: nothing was cached", what)
			}
			history = append(history, say("assistant", r.Text), say("user", sentences(fmt.Sprintf("more%d", turn), 20)))
			if turn == 1 {
				history = append(history, chatMessage{"role": "user", "content": []any{picture(random, "jpeg", 90, 300), part("and this?")}})
			}
		}
		other := []chatMessage{{"role": "user", "content": []any{part(sentences(fmt.Sprintf("look%d", talk), 30)), picture(random, "png", 200, 150), part(sentences("what", 20))}}}
		r := k.chat(t, "tiny", other, nil)
		r.exact(t, "another image of the same size")
		if again := k.chat(t, "tiny", other, nil); again.cached <= r.cached {
			t.Errorf("the other image's own prompt: %d cached, %d the first time", again.cached, r.cached)
		} else {
			again.exact(t, "the other image again")
		}
	}
	named := func(id string) []chatMessage {
		shown := picture(rand.New(rand.NewPCG(1, 1)), "png", 120, 120)
		shown["uuid"] = id
		return []chatMessage{{"role": "user", "content": []any{shown, part(sentences("named", 40))}}}
	}
	for _, id := range []string{"one", "one", "two", "one"} {
		r := k.chat(t, "tiny", named(id), nil)
		r.exact(t, "an image that the client names "+id)
	}
}

func part(text string) map[string]any { return map[string]any{"type": "text", "text": text} }

// picture returns a part of a message: an image of random colours.
func picture(r *rand.Rand, format string, width, height int) map[string]any {
	rect := image.Rect(0, 0, width, height)
	noise := func(set func(x, y int, c color.Color)) {
		at := r.Uint32()
		for y := range height {
			for x := range width {
				v := at + uint32(x*y)
				set(x, y, color.RGBA{uint8(v), uint8(v >> 3), uint8(x), 255})
			}
		}
	}
	var out bytes.Buffer
	var err error
	switch format {
	case "jpeg":
		m := image.NewRGBA(rect)
		noise(m.Set)
		err = jpeg.Encode(&out, m, nil)
	case "gray":
		m := image.NewGray(rect)
		noise(m.Set)
		format, err = "png", png.Encode(&out, m)
	case "clear":
		m := image.NewNRGBA(rect)
		noise(m.Set)
		m.Set(0, 0, color.NRGBA{1, 2, 3, 4})
		format, err = "png", png.Encode(&out, m)
	case "gif":
		m := image.NewPaletted(rect, palette.WebSafe)
		noise(m.Set)
		err = gif.Encode(&out, m, nil)
	default:
		m := image.NewRGBA(rect)
		noise(m.Set)
		err = png.Encode(&out, m)
	}
	if err != nil {
		panic("bug: " + err.Error())
	}
	url := fmt.Sprintf("data:image/%s;base64,%s", format, base64.StdEncoding.EncodeToString(out.Bytes()))
	return map[string]any{"type": "image_url", "image_url": map[string]any{"url": url}}
}

// sameImages compares token ids, image identifiers and image positions that the router computes with the engine's, for
// requests of all kinds.
func sameImages(t *testing.T, dir string, e *realEngine) {
	m, err := inprocess.OpenOne(dir)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	formats := []string{"png", "jpeg", "gray", "clear", "gif"}
	compared := 0
	for i := range 60 {
		var content []any
		for n := range 1 + random.IntN(3) {
			content = append(content, part(snippets[random.IntN(len(snippets))]+"x"))
			shown := picture(random, formats[random.IntN(len(formats))], 1+random.IntN(700), 1+random.IntN(500))
			if random.IntN(5) == 0 {
				// Use a new name for each image, because the engine keeps the first image with a name.
				shown["uuid"] = fmt.Sprintf("name-%d-%d", i, n)
			}
			content = append(content, shown, part(" and "+snippets[random.IntN(len(snippets))]))
		}
		body := encode(map[string]any{"model": "tiny", "max_tokens": 1, "messages": []chatMessage{say("system", "See."), {"role": "user", "content": content}}})
		want, features, status := rendered(t, e, body)
		if status != http.StatusOK {
			continue // the engine refuses the request
		}
		var read api.Request
		if err := api.Read(api.OpenAIChat, body, &read); err != nil {
			t.Fatal(err)
		}
		got, err := m.Encode(nil, &read, inprocess.Origin{Kind: tokens.VLLM, Root: dir})
		if err != nil {
			t.Errorf("request %d: %v", i, err)
			continue
		}
		compared++
		if !slices.Equal(got.Tokens, want) {
			t.Errorf("request %d: %d ids, the engine has %d", i, len(got.Tokens), len(want))
		}
		if !slices.Equal(got.Features, features) {
			t.Errorf("request %d: images %v, the engine has %v", i, got.Features, features)
		}
	}
	t.Logf("%d of 60 requests compared with %s", compared, e.name)
	if compared < 40 {
		t.Errorf("only %d of 60 requests could be compared", compared)
	}
}

// rendered asks the engine for the token ids and images of a prompt.
func rendered(t *testing.T, e *realEngine, body []byte) ([]block.Token, []block.Feature, int) {
	t.Helper()
	resp, err := http.Post(e.url+"/v1/chat/completions/render", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var said struct {
		IDs      []block.Token `json:"token_ids"`
		Features struct {
			Hashes map[string][]string               `json:"mm_hashes"`
			Places map[string][]struct{ Offset int } `json:"mm_placeholders"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		t.Fatal(err)
	}
	var features []block.Feature
	for i, id := range said.Features.Hashes["image"] {
		features = append(features, block.Feature{ID: id, Offset: said.Features.Places["image"][i].Offset})
	}
	return said.IDs, features, resp.StatusCode
}
