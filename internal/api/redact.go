package api

import (
	"encoding/json"
	"strings"
)

// Redacted replaces a secret in a text.
const Redacted = "[redacted]"

// shortestSecret is the least length, in bytes, of a secret and of the beginning of a secret that WithoutSecrets
// replaces. Shorter texts occur by chance.
const shortestSecret = 4

// WithoutSecrets returns the text of another program without the secrets that this program sends to it: the other
// program may repeat them, as they are or escaped as in JSON. The text may be cut within a secret, so the beginning of
// a secret is replaced, too. Call it before a log or an answer shows the text.
func WithoutSecrets(text string, secrets ...string) string {
	for _, secret := range secrets {
		text = withoutSecret(text, secret)
		if escaped, err := json.Marshal(secret); err == nil && len(escaped) != len(secret)+2 {
			text = withoutSecret(text, string(escaped[1:len(escaped)-1]))
		}
	}
	return text
}

// withoutSecret replaces secret, and a beginning of secret at the end of text or before an ellipsis.
func withoutSecret(text, secret string) string {
	if len(secret) < shortestSecret {
		return text
	}
	text = strings.ReplaceAll(text, secret, Redacted)
	body, ellipsis := strings.CutSuffix(text, "…")
	for n := min(len(secret)-1, len(body)); n >= shortestSecret; n-- {
		if rest, found := strings.CutSuffix(body, secret[:n]); found {
			if ellipsis {
				return rest + Redacted + "…"
			}
			return rest + Redacted
		}
	}
	return text
}
