package jinja

import (
	"errors"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// small has limits that keep a fuzzing run fast.
var small = Limits{Steps: 20_000, OutputBytes: 1 << 16, Memory: 1 << 20, Depth: 20}

func FuzzTemplate(f *testing.F) {
	for _, source := range hostile {
		f.Add(source, `[{"role": "user", "content": "hi"}]`)
	}
	f.Add(`{% for m in messages %}{{ m.role | upper ~ m['content'][1:-1] }}{% endfor %}{% macro x(a, b=1) %}{{ caller(a) }}{% endmacro %}`, `[{"role": "user", "content": "hi"}]`)
	f.Add("{%- raw -%} {{ {%- endraw -%}{# c -#}\n{% set x %}a{% endset %}", "null")
	f.Add(`{{ '%s %(a)d {} {x!r:>5}' % messages }}{{ '{0.a[b]:{1}}'.format(messages, 3) }}`, "[1.5, -0, 1e400, NaN]")
	f.Fuzz(func(t *testing.T, source, messages string) {
		tmpl, err := Parse(source)
		if err != nil {
			if !errors.Is(err, ErrSyntax) {
				t.Fatalf("a parse error that is no syntax error: %v", err)
			}
			return
		}
		v, err := new(Decoder).Decode([]byte(messages))
		if err != nil {
			return
		}
		vars := &Dict{}
		vars.Set("messages", v)
		one, err1 := tmpl.Render(nil, Options{Limits: small, Now: testenv.TemplateTime}, vars)
		two, err2 := tmpl.Render(nil, Options{Limits: small, Now: testenv.TemplateTime}, vars)
		if string(one) != string(two) || (err1 == nil) != (err2 == nil) {
			t.Fatalf("two renders differ: %q %v, %q %v", one, err1, two, err2)
		}
	})
}
