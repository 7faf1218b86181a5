package jinja

import (
	"sync"
	"testing"
)

func TestConcurrentRendersOfOneTemplateAreEqual(t *testing.T) {
	tmpl, err := Parse(`{% macro f(x, y=2) %}{{ x * y }}{% endmacro %}{% for m in messages %}{{ f(m) }}{{ loop.index }}{% endfor %}{{ 10 ** 30 }}`)
	if err != nil {
		t.Fatal(err)
	}
	numbers, nothing := &Dict{}, &Dict{}
	large, err := new(Decoder).Decode([]byte(`[1, 2, 100000000000000000000]`))
	if err != nil {
		t.Fatal(err)
	}
	numbers.Set("messages", large)
	nothing.Set("messages", List([]Value{None}))
	want, err := tmpl.Render(nil, Options{}, numbers)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				got, err := tmpl.Render(nil, Options{}, numbers)
				if err != nil || string(got) != string(want) {
					t.Errorf("%q, %v, want %q", got, err, want)
				}
				if _, err := tmpl.Render(nil, Options{}, nothing); err == nil {
					t.Error("None times 2 was rendered")
				}
			}
		})
	}
	wg.Wait()
}
