package api

import (
	"encoding/json"
	"testing"
)

func TestMergeModelsListsEachModelOnce(t *testing.T) {
	bodies := [][]byte{
		[]byte(`{"object":"list","data":[{"id":"a","root":"x","permission":[{"id":"p"}]},{"id":"lora-1","parent":"a"}]}`),
		[]byte(` {"data" : [ {"id":"a","root":"y"} , {"id":"b"} ]} `),
		[]byte(`{"data":[],"object":"list"}`),
		[]byte(`{"data":null}`),
	}
	got, err := MergeModels(nil, bodies)
	want := `{"object":"list","data":[{"id":"a","root":"x","permission":[{"id":"p"}]},{"id":"lora-1","parent":"a"},{"id":"b"}]}`
	if err != nil || string(got) != want {
		t.Errorf("got %s (%v), want %s", got, err, want)
	}
	if got, err := MergeModels(nil, nil); err != nil || string(got) != `{"object":"list","data":[]}` {
		t.Errorf("nothing: %s (%v)", got, err)
	}
	for _, bad := range []string{``, `[]`, `{"data":[1]}`, `{"data":[{}]`, `{} x`} {
		if _, err := MergeModels(nil, [][]byte{[]byte(bad)}); err == nil {
			t.Errorf("%q was taken for a model list", bad)
		}
	}
}

func FuzzMergeModels(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"a"}]}`), []byte(`{"data":[{"id":"a"},{"id":"\u0062"}]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if got, err := MergeModels(nil, [][]byte{a, b}); err == nil && !json.Valid(got) {
			t.Fatalf("%q is not JSON", got)
		}
	})
}
