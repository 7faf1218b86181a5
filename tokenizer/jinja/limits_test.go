package jinja

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
)

// hostile has templates that try to take too much time or memory.
var hostile = map[string]string{
	"nested loops":     `{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}`,
	"growing text":     `{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`,
	"growing list":     `{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}`,
	"repeated text":    `{{ 'x' * 9999999999 }}`,
	"repeated list":    `{{ [1] * 9999999999 }}`,
	"wide padding":     `{{ 'x'.center(9999999999) }}`,
	"wide format":      `{{ '{:9999999999}'.format(1) }}{{ '%9999999999d' % 1 }}`,
	"replace all":      `{% set s = 'x' * 1000000 %}{{ s.replace('x', s) }}`,
	"join all":         `{% set s = 'x' * 1000000 %}{{ s.join(s) }}`,
	"endless macro":    `{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`,
	"branching macro":  `{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(150) }}`,
	"long output":      `{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{{ s }}{% endfor %}`,
	"large power":      `{{ 10 ** 10000000000 }}`,
	"power tower":      `{% set ns = namespace(n=9) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}`,
	"scanned text":     `{% set s = 'x' * 10000000 %}{% for i in range(100000) %}{% if 'y' in s %}{% endif %}{% endfor %}`,
	"deep value":       `{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}`,
	"deep json":        `{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}`,
	"doubled value":    `{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}`,
	"doubled repr":     `{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}`,
	"doubled compare":  `{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}`,
	"recursive loop":   `{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}`,
	"filled batches":   `{{ [1] | batch(999999999, 'x') | list }}`,
	"many slices":      `{{ [1] | slice(999999999) | list }}`,
	"indented lines":   `{{ ('\n' * 100000) | indent(100000, blank=true) }}`,
	"many lines":       `{{ ('\r' * 90000000).splitlines() | length }}`,
	"many words":       `{{ ('x ' * 50000000).split() | length }}`,
	"many parts":       `{{ ('x' * 90000000).split('x') | length }}`,
	"sorted texts":     `{% set s = 'x' * 1000000 %}{{ ([s + 'a', s + 'b'] * 100000) | sort | length }}`,
	"compared dicts":   `{% for i in range(100000) %}{% set d = {1: 2, 2: 3, (1, 2): 4, (2, 3): 5} %}{% for j in range(1000) %}{{ d[(2, 3)] }}{% endfor %}{% endfor %}`,
	"sum of lists":     `{{ ([[1] * 1000] * 10000) | sum(start=[]) | length }}`,
	"own list in list": `{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}`,
}

func TestHostileTemplatesCostBoundedTimeAndMemory(t *testing.T) {
	limits := DefaultLimits
	if testing.Short() {
		limits = Limits{Steps: limits.Steps / 10, OutputBytes: limits.OutputBytes / 10, Memory: limits.Memory / 10, Depth: limits.Depth}
	}
	for name, source := range hostile {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Parse(source)
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err = tmpl.Render(nil, Options{Limits: limits})
			if err == nil {
				t.Error("it rendered")
			}
			if d := time.Since(start); d > 2*time.Minute { // the bound is long enough for a busy machine; without limits the render never ends
				t.Errorf("it took %v", d)
			}
			runtime.ReadMemStats(&after)
			if got := (after.TotalAlloc - before.TotalAlloc) >> 20; got > 4096 {
				t.Errorf("it allocated %d MiB", got)
			}
			t.Logf("%v, %d MiB: %v", time.Since(start), (after.TotalAlloc-before.TotalAlloc)>>20, err)
		})
	}
}

func TestLimitsAreSettings(t *testing.T) {
	tmpl, err := Parse(`{% for i in range(1000) %}x{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tmpl.Render(nil, Options{Limits: Limits{Steps: 100}}); !errors.Is(err, ErrLimit) {
		t.Errorf("100 steps: %v", err)
	}
	if _, err := tmpl.Render(nil, Options{Limits: Limits{OutputBytes: 100}}); !errors.Is(err, ErrLimit) {
		t.Errorf("100 bytes: %v", err)
	}
	out, err := tmpl.Render([]byte("before "), Options{Limits: Limits{OutputBytes: 1000}})
	if err != nil || string(out) != "before "+strings.Repeat("x", 1000) {
		t.Errorf("1000 bytes: %d bytes, %v", len(out), err)
	}
}

func TestSourcesThatNestTooDeepAreRefused(t *testing.T) {
	for name, source := range map[string]string{
		"parentheses": strings.Repeat("{{ ", 1) + strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000) +
			" }}",
		"lists":      "{{ " + strings.Repeat("[", 100000) + " }}",
		"not":        "{{ " + strings.Repeat("not ", 100000) + "1 }}",
		"minus":      "{{ " + strings.Repeat("-", 100000) + "1 }}",
		"if":         strings.Repeat("{% if 1 %}", 100000),
		"attributes": "{{ x" + strings.Repeat(".y", 100000) + " }}",
		"filters":    "{{ x" + strings.Repeat("|upper", 100000) + " }}",
		"sum":        "{{ 1" + strings.Repeat("+1", 100000) + " }}",
		"or":         "{{ 1" + strings.Repeat(" or 1", 100000) + " }}",
		"else":       "{{ 1" + strings.Repeat(" if 1 else 1", 100000) + " }}",
		"brackets":   "{{ x" + strings.Repeat("[0]", 100000) + " }}",
	} {
		if _, err := Parse(source); !errors.Is(err, ErrSyntax) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := new(Decoder).DecodeText(strings.Repeat("[", 100000), Python); err == nil {
		t.Error("deep JSON was read")
	}
}

func TestUnsupportedTagsAndFiltersAreRefusedByName(t *testing.T) {
	for _, source := range []string{
		"{% include 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% extends 'x' %}",
		"{% block x %}{% endblock %}",
		"{{ x | random }}", "{% if false %}{{ x | pprint }}{% endif %}", "{% autoescape true %}{% endautoescape %}",
	} {
		_, err := Parse(source)
		if !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), "not supported") {
			t.Errorf("%s: %v", source, err)
		}
	}
}
