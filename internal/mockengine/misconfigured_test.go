package mockengine

import (
	"strings"
	"testing"
)

// An engine without a prefix cache uses no block again, and publishes nothing.
func TestAnEngineWithoutAPrefixCache(t *testing.T) {
	for _, kind := range []Kind{VLLM, SGLang} {
		s := start(t, func(c *Config) { c.Kind, c.NoPrefixCaching = kind, true })
		body := object{"model": "mock", "messages": []any{userSays(strings.Repeat("the same words ", 40))}}
		for range 2 {
			if c := complete(t, s, chatPath, body); c.Usage.Details != nil && c.Usage.Details.Cached > 0 {
				t.Errorf("%s: usage %+v", kind, c.Usage)
			}
		}
		if len(s.Sources()) != 0 {
			t.Errorf("%s: events at %v", kind, s.Sources())
		}
	}
}
