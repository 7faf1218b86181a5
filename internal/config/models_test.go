package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/internal/gateway"
)

func TestAliasesAndFallbacksOfModelsAreRead(t *testing.T) {
	cfg, err := filled(t, "model_aliases: {gpt-4o: llama}\nmodel_fallbacks:\n  llama: [small, tiny]\n")
	if err != nil {
		t.Fatal(err)
	}
	want := gateway.ModelNames{Aliases: map[string]string{"gpt-4o": "llama"}, Fallbacks: map[string][]string{"llama": {"small", "tiny"}}}
	if diff := cmp.Diff(want, cfg.ModelNames()); diff != "" {
		t.Error(diff)
	}
}

func TestMistakesInNamesOfModelsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		`model_aliases: {a: b, b: c}`:                      "model_aliases.a: b is an alias, too: name its model, c",
		`model_aliases: {a: a}`:                            "model_aliases.a: the alias is the model's own name",
		`model_aliases: {a: ""}`:                           "model_aliases.a: the model is missing",
		`model_aliases: {"": a}`:                           "an alias has no name",
		`model_fallbacks: {m: []}`:                         "model_fallbacks.m: 0 fall-backs",
		`model_fallbacks: {m: [1,2,3,4,5,6,7,8,9]}`:        "model_fallbacks.m: 9 fall-backs: name 1 to 8 models",
		`model_fallbacks: {m: [m]}`:                        "model_fallbacks.m[0]: a model cannot be its own fall-back",
		`model_fallbacks: {m: [a, a]}`:                     "model_fallbacks.m[1]: a is listed twice",
		`model_fallbacks: {m: [""]}`:                       "model_fallbacks.m[0]: a model has no name",
		"model_aliases: {a: m}\nmodel_fallbacks: {a: [b]}": "model_fallbacks.a: a is an alias: give the fall-backs to its model, m",
		"model_aliases: {a: x}\nmodel_fallbacks: {m: [a]}": "model_fallbacks.m[0]: a is an alias: name its model, x",
	} {
		if _, err := filled(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
