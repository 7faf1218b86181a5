package tokenizer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// golden has the content of testdata/golden.json: hashes of corpora, and hashes of the ids that the official Rust
// tokenizer returns for them.
type golden struct {
	Corpora map[string]string
	Models  map[string]struct {
		Dir, File, Rust, Decoded string
		Tokens                   int
		IDs                      map[string]string `json:"ids"`
	}
	Features map[string]string
}

var readGolden = sync.OnceValue(func() *golden {
	data, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		panic(err)
	}
	g := &golden{}
	if err := json.Unmarshal(data, g); err != nil {
		panic(err)
	}
	return g
})

// cacheFolder returns the folder into which `make golden` puts models, corpora and ids.
func cacheFolder(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("takes half a minute: not with -short")
	}
	return testenv.Installed(t, "tokenizers", "make golden")
}

// readInstalled reads a file of the cache folder.
func readInstalled(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		testenv.Missing(t, path, "make golden")
	}
	return data
}

func corpus(t testing.TB, dir, name string) []string {
	t.Helper()
	data := readInstalled(t, filepath.Join(dir, "corpus", name+".json"))
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != readGolden().Corpora[name] {
		t.Fatalf("corpus %s has hash %s, golden.json says %s: run make golden again", name, got,
			readGolden().Corpora[name])
	}
	var docs []string
	if err := json.Unmarshal(data, &docs); err != nil {
		t.Fatal(err)
	}
	return docs
}

func loadGolden(t testing.TB, name string) (*Tokenizer, string) {
	t.Helper()
	dir := cacheFolder(t)
	m, ok := readGolden().Models[name]
	if !ok {
		t.Fatalf("golden.json has no model %s", name)
	}
	data := readInstalled(t, filepath.Join(dir, m.Dir, "tokenizer.json"))
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != m.File {
		t.Fatalf("%s: the model file is not the one of golden.json", name)
	}
	tok, err := Parse(data, nil)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return tok, dir
}

func TestIDsEqualTheRustTokenizers(t *testing.T) {
	cacheFolder(t)
	for name, m := range readGolden().Models {
		t.Run(name, func(t *testing.T) {
			tok, dir := loadGolden(t, name)
			for _, c := range []string{"mixed", "runs", "fuzz", "special", "ends"} {
				file := c
				switch c {
				case "special":
					file = "special-" + name
				case "ends":
					file = "mixed"
				}
				docs := corpus(t, dir, file)
				if c == "ends" {
					docs = docs[:50]
				}
				opts := Options{AddSpecial: c == "ends"}
				compareIDs(t, tok, docs, opts, m.IDs[c], filepath.Join(dir, "ids", name+"."+c+".bin"))
			}
		})
	}
}

func TestEveryComponentAgreesWithTheRustTokenizer(t *testing.T) {
	dir := cacheFolder(t)
	for name, want := range readGolden().Features {
		t.Run(name, func(t *testing.T) {
			data := readInstalled(t, filepath.Join(dir, "features", name+".json"))
			tok, err := Parse(data, nil)
			if err != nil {
				t.Fatal(err)
			}
			compareIDs(t, tok, corpus(t, dir, "features"), Options{}, want,
				filepath.Join(dir, "ids", "features-"+name+".bin"))
		})
	}
}

// compareIDs encodes docs, and compares the hash of all ids. If the hash differs, it finds the first difference in the
// stored ids.
func compareIDs(t *testing.T, tok *Tokenizer, docs []string, opts Options, want, file string) {
	t.Helper()
	hash := sha256.New()
	var ids []block.Token
	var stream []byte
	streams := make([][]block.Token, 0, len(docs))
	for _, d := range docs {
		var err error
		if ids, err = tok.Append(ids[:0], d, opts); err != nil {
			t.Fatalf("encode %q: %v", clip(d), err)
		}
		stream = binary.LittleEndian.AppendUint32(stream[:0], uint32(len(ids)))
		for _, id := range ids {
			stream = binary.LittleEndian.AppendUint32(stream, id)
		}
		hash.Write(stream)
		streams = append(streams, slices.Clone(ids))
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got == want {
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("ids of %s differ from the reference's, and the stored ids are missing: %v", filepath.Base(file), err)
		return
	}
	bad := 0
	for i, d := range docs {
		n := int(binary.LittleEndian.Uint32(data))
		ref := make([]block.Token, n)
		for k := range ref {
			ref[k] = binary.LittleEndian.Uint32(data[4+4*k:])
		}
		data = data[4+4*n:]
		if slices.Equal(ref, streams[i]) {
			continue
		}
		if bad++; bad <= 3 {
			t.Errorf("%s text %d: %s", filepath.Base(file), i, firstDifference(tok, d, streams[i], ref))
		}
	}
	t.Errorf("%s: %d of %d texts differ", filepath.Base(file), bad, len(docs))
}

func firstDifference(tok *Tokenizer, text string, got, want []block.Token) string {
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	show := func(ids []block.Token) string {
		var b strings.Builder
		for _, id := range ids[at:min(at+6, len(ids))] {
			s, _ := tok.Spelling(id)
			fmt.Fprintf(&b, "%d:%+q ", id, s)
		}
		return b.String()
	}
	return fmt.Sprintf("at id %d of %d: got %swant %sin %+q", at, len(want), show(got), show(want),
		text[:min(len(text), 150)])
}

func TestDecodedTextEqualsTheRustTokenizers(t *testing.T) {
	cacheFolder(t)
	for name, m := range readGolden().Models {
		t.Run(name, func(t *testing.T) {
			tok, dir := loadGolden(t, name)
			want := readInstalled(t, filepath.Join(dir, "ids", name+".decoded.json"))
			sum := sha256.Sum256(want)
			if hex.EncodeToString(sum[:]) != m.Decoded {
				t.Fatal("stored texts are not those of golden.json")
			}
			var texts []string
			if err := json.Unmarshal(want, &texts); err != nil {
				t.Fatal(err)
			}
			bad := 0
			for i, d := range corpus(t, dir, "mixed")[:2500] {
				ids, err := tok.Append(nil, d, Options{})
				if err != nil {
					t.Fatal(err)
				}
				if got := tok.Decode(ids, false); got != texts[i] {
					if bad++; bad < 3 {
						t.Errorf("text %d: got %+q want %+q", i, clip(got), clip(texts[i]))
					}
				}
			}
		})
	}
}
