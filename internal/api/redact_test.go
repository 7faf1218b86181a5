package api

import "testing"

func TestWithoutSecrets(t *testing.T) {
	const secret = "s3cret-key<1>"
	for text, want := range map[string]string{
		"":                                   "",
		"403: Bearer s3cret-key<1> no":       "403: Bearer [redacted] no",
		`{"pass":"s3cret-key\u003c1\u003e"}`: `{"pass":"[redacted]"}`,
		"s3cret-key<1>s3cret-key<1>":         "[redacted][redacted]",
		"the answer is cut: s3cret-k":        "the answer is cut: [redacted]",
		"the answer is cut: s3cret-k…":       "the answer is cut: [redacted]…",
		"no beginning in the midst s3cr it":  "no beginning in the midst s3cr it",
		"too short: s3c":                     "too short: s3c",
		"user u":                             "user u",
	} {
		if got := WithoutSecrets(text, "", "u", secret); got != want {
			t.Errorf("WithoutSecrets(%q) = %q, want %q", text, got, want)
		}
	}
}
