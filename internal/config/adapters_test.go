package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/internal/gateway"
)

func TestAdaptersAreRead(t *testing.T) {
	cfg, err := filled(t, "adapters:\n- {name: sql, base: llama, path: /adapters/sql}\nadapter_slots: 2\nadapter_timeout: 90s\n")
	if err != nil {
		t.Fatal(err)
	}
	want := gateway.AdapterConfig{List: []gateway.Adapter{{Name: "sql", Base: "llama", Path: "/adapters/sql"}}, Slots: 2, Timeout: 90 * time.Second}
	if diff := cmp.Diff(want, cfg.GatewayAdapters()); diff != "" {
		t.Error(diff)
	}
}

func TestMistakesInAdaptersAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		`adapters: [{base: m, path: p}]`:                                       "adapters[0].name: the name is missing",
		`adapters: [{name: a, path: p}]`:                                       "adapters[0].base: the base model is missing",
		`adapters: [{name: a, base: m}]`:                                       "adapters[0].path: the path is missing",
		`adapters: [{name: a, base: m, path: p}, {name: a, base: m, path: q}]`: "adapters[1].name: a is listed twice",
		`adapters: [{name: a, base: b, path: p}, {name: b, base: m, path: q}]`: "adapters[0].base: b is an adapter",
		"adapters: [{name: a, base: m, path: p}]\nmodel_aliases: {a: m}":       "adapters[0].name: a is an alias of m",
		"adapters: [{name: a, base: x, path: p}]\nmodel_aliases: {x: m}":       "adapters[0].base: x is an alias: name its model, m",
		`adapters: [{name: a, base: m, path: p, rank: 8}]`:                     "rank",
		`adapter_slots: -1`:   "adapter_slots: -1 is outside 0..4096",
		`adapter_timeout: 0s`: "adapter_timeout: 0s is not positive",
		"adapters:\n" + strings.Repeat("- {name: a, base: m, path: p}\n", 4097): "4097 adapters: list at most 4096",
	} {
		if _, err := filled(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text[:min(len(text), 100)], err, want)
		}
	}
}
